"""A dry run under one allocator tells what the others would need: its recording, played by cenote-replay. And how far a card may be off."""
import json

import pytest

from cenote.base.quantity import MIB
from cenote.fit import replays, verdict
from cenote.fit.outcome import Outcome
from cenote.fit.replays import Replay

pytestmark = [pytest.mark.torch, pytest.mark.simulation]
CONVOLUTIONS = """
import torch
model = torch.nn.Sequential(*[torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
side = torch.cuda.Stream()
for i in range(4):
    x = torch.randn(8 + 4 * i, 16, 96, 96, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.cuda.stream(side):
        y = torch.ones(3 << 18, device="cuda")
    if i == 1:
        torch.cuda.empty_cache()
"""
GROWING = """
import torch
for n in range(10, 60, 10):
    x = torch.empty(n << 18, device="cuda")
    del x
"""
LINEAR = """
import torch
x = [torch.empty(n << 18, device="cuda") for n in (1, 5, 9)]
"""


@pytest.fixture
def asked(nursed_run, tmp_path):
    """asked(CODE, OPTION..., NAME=VALUE...): the JSON and the text of the dry run."""
    def ask(code, *options, **variables):
        path, script = tmp_path / "verdict.json", tmp_path / "script.py"
        script.write_text(code)
        done = nursed_run("dry-run", "--json", path, *options, script, **variables)
        assert path.exists(), done.stderr
        return json.loads(path.read_text()), done.stdout
    return ask


def device(answer):
    return answer["processes"][0]["devices"]["0"]


def test_one_run_answers_for_all(asked):
    """Each recording says what the real allocators held: PyTorch's own two to the byte. The cache was emptied, and a second stream had memory."""
    answers = {name: asked(CONVOLUTIONS, "--gpu", "8GiB", "--allocator", name)[0] for name in replays.PLAYED}
    for answer in answers.values():
        assert set(answer["replays"]) == set(replays.PLAYED)
        for name in ("native", "expandable"):
            assert answer["replays"][name]["held"] == device(answers[name])["reserved_peak"], (answer["allocator"], name)
        assert answer["replays"]["cenote"]["held"] == pytest.approx(device(answers["cenote"])["reserved_peak"], rel=0.03)


def test_it_gets_through_with_the_least(asked):
    """The real allocator does, and with a segment less it does not."""
    answer, text = asked(GROWING, "--gpu", "8GiB", "--allocator", "native")
    least = answer["replays"]["native"]["least"] + device(answer)["others"]
    assert answer["replays"]["native"]["least"] == 50 * MIB < answer["replays"]["native"]["held"] == 150 * MIB
    assert "it would get through with " in text and " under PyTorch's own allocator, " in text and "with CENOTE=on" in text
    assert asked(GROWING, "--gpu", f"{least // MIB}MiB", "--allocator", "native")[0]["out_of_memory"] == 0
    assert asked(GROWING, "--gpu", f"{least // MIB - 2}MiB", "--allocator", "native")[0]["out_of_memory"] > 0


def test_a_range_where_a_number_would_lie(asked):
    answer, text = asked(CONVOLUTIONS, "--gpu", "8GiB", "--allocator", "native")
    own = answer["replays"]["native"]
    assert own["low"] < own["held"] < own["high"] and "  on a card it may hold " in text
    plain, text = asked(LINEAR, "--gpu", "8GiB", "--allocator", "native")
    assert plain["replays"]["native"]["low"] == plain["replays"]["native"]["high"] == 22 * MIB and "on a card it may hold" not in text


@pytest.mark.parametrize("room, held, span", [(1024, 150, [54, 168]), (110, 100, [54, 100]), (60, 60, [38, 94])])
def test_a_range_is_that_of_the_card(tmp_path, room, held, span):
    """Blocks of 10 to 50 MiB, one after the other, which a card may make a quarter to twice as large. Where there is room, PyTorch's own allocator
    holds them all; on a card with room for each alone, no more than the card has; and on one that is too small for one of them, what that needs."""
    lines = [f"0,a,{n},{n << 20},0,1\n0,f,{n},,,\n" for n in range(10, 60, 10)]
    (tmp_path / "t.csv").write_text("t_us,op,id,bytes,stream,tag\n" + "".join(lines))
    (row,) = replays.play(str(tmp_path / "t.csv"), room * MIB + replays.CONTEXT, "--seeds", "16", "--under", "native")
    assert (row["reserved_peak_bytes"], row["range_bytes"]) == (held * MIB, [part * MIB for part in span])


@pytest.mark.parametrize("variables, code, allocator", [
    ({}, "", "native"),
    ({"CENOTE": "on"}, "", "cenote"),
    ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "", "expandable"),
    ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "", "expandable"),
    ({}, "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'", "expandable"),
])
def test_the_allocator_that_the_script_would_have(run, tmp_path, variables, code, allocator):
    (tmp_path / "script.py").write_text(code + LINEAR)
    done = run("dry-run", "--gpu", "2GiB", "--json", "verdict.json", "script.py", **variables)
    answer = json.loads((tmp_path / "verdict.json").read_text())
    assert answer["allocator"] == allocator and answer["verdict"] == "fits", done.stdout + done.stderr
    assert verdict.NAMES.get(allocator, allocator) + " ---" in done.stdout


@pytest.mark.parametrize("torch, ties", [("2.11.0+cu130", "address"), ("2.12.1", "piece"), ("2.13.0", "segment"), ("3.0", "segment"),
                                         ("x", "segment")])
def test_which_of_equal_blocks(torch, ties):
    assert replays.ties(torch) == ties


def run_of(**figures):
    row = {"live_peak": 1 << 30, "reserved_peak": 3 << 29, "others": 1 << 29, "capacity": 3 << 30, **figures}
    report = {"pid": 1, "used_gpu": True, "devices": {"0": row}, "failures": [], "failures_count": 0, "torch": "2.15.0", "error": None, "end": "exit",
              "steps": 1, "rank": None, "growth": None}
    return Outcome(3 << 30, "native", 1, 0, [report], "", recording="/nowhere.record")


def test_a_recording_that_cannot_be_played():
    assert replays.of(run_of()) == {} and replays.of(run_of()._replace(recording="")) == {}
    assert verdict.replay_lines(run_of(), {}) == verdict.range_lines(run_of(), {}, 1) == []


def test_a_card_inside_the_range():
    """The upper end decides what to count on."""
    played = {"native": Replay(3 << 29, 5 << 28, 1 << 30, 5 << 29)}
    assert verdict.range_lines(run_of(), played, 2 << 30)[1:] == ["  do not count on less than 3.00 GiB"]
    assert len(verdict.range_lines(run_of(), played, 3 << 30)) == 1
    assert verdict.range_lines(run_of(), {"native": Replay(3 << 29, 0, 3 << 29, 3 << 29)}, 1) == []
