"""`--gpu` with the names of cards: the table, its spellings, and one question about several cards."""
import argparse
import re

import pytest
from conftest import ROOT

from cenote.fit import cards, several, verdict
from cenote.fit.cards import Card
from cenote.fit.outcome import Outcome
from cenote.fit.replays import Replay

GIB, MIB = 1 << 30, 1 << 20
SOURCE = re.compile(r"-|[\w.-]+/[\w.-]+/(issues|pull)/\d+")


def test_each_card_has_its_sources():
    rows = [line.split() for line in (ROOT / "python/cenote/fit/cards.def").read_text().splitlines() if line.strip() and not line.startswith("#")]
    assert len(rows) == len(cards.table()) > 15
    for name, cuda, smi, sm, of_cuda, of_smi in rows:
        assert SOURCE.fullmatch(of_cuda) and SOURCE.fullmatch(of_smi) and (cuda, smi) != ("-", "-")
        assert (cuda == "-") == (of_cuda == "-") and (smi == "-") == (of_smi == "-"), name
        assert cuda == "-" or smi == "-" or 0.39 < 100 * (int(smi) / int(cuda) - 1) < 2.3, name  # what cards.def and caveats() say
        assert cards.named(name).capacity == int(smi if cuda == "-" else cuda) * MIB


def test_prices_are_those_of_known_cards_and_say_of_when():
    assert set(cards.prices("akash")) < set(cards.table()) and all(0 < price < 10 for price in cards.prices("akash").values())
    asked = [cards.priced(card, "akash") for card in cards.read_list("rtx4090,l40,24GiB")]
    assert [card.hourly for card in asked] == [0.39, 0, 0]
    assert cards.price_lines(asked, "akash") == [f"per hour: {cards.PRICED['akash']}, for one card; no price of l40, 24GiB"]
    assert "2026-" in cards.PRICED["akash"] and cards.price_lines(asked, None) == [] and cards.priced(asked[0], None) == asked[0]
    with pytest.raises(argparse.ArgumentTypeError, match="no list of prices; there is akash"):
        cards.per_hour("mine.toml")


@pytest.mark.parametrize("text, name", [("rtx4090", "rtx4090"), ("RTX 4090", "rtx4090"), ("NVIDIA GeForce RTX 4090", "rtx4090"),
                                        ("A100-80GB", "a100-80gb"), ("a10", "a10"), ("h100", "h100"), ("V100 32GB", "v100-32gb"),
                                        ("4090", "rtx4090"), ("A10G", "a10g"), ("NVIDIA A10G", "a10g"), ("b200", "b200"),
                                        ("RTX PRO 6000", "rtx-pro-6000"), ("rtxpro6000", "rtx-pro-6000"), ("a4000", "rtx-a4000"),
                                        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000")])
def test_spellings(text, name):
    assert cards.read(text).name == name


@pytest.mark.parametrize("text, words", [("80", "was 80GiB meant"), ("a100", "a100-40gb, a100-80gb"), ("rtx4900", "rtx4090"), ("h10", "h100"),
                                         ("", "there are a10,"), ("tpu-v5", "there are"), ("80GiB,", "nor a card"),
                                         ("MI300", "AMD"), ("mi300x", "AMD"), ("AMD Instinct MI250", "AMD"), ("l4x0", "nor a card")])
def test_what_is_no_card(text, words):
    with pytest.raises(argparse.ArgumentTypeError, match=words):
        cards.read_list(text)


def test_sizes_are_cards_and_the_same_one_counts_once():
    found = cards.read_list("24GiB,rtx4090,24GiB")
    assert [card.title for card in found] == ["24GiB", "rtx4090"] and found[0] == Card("", 24 * GIB)
    lines = cards.caveats(cards.read_list("h200,rtx4090"))
    assert "rtx4090 has 8.9" in lines[0] and "h200" not in lines[0] and lines[1].startswith("for h200 only what nvidia-smi shows")
    assert cards.caveats(found[:1]) == []


@pytest.mark.parametrize("text, name, devices", [("l4x2", "l4", 2), ("2xL4", "l4", 2), ("2x L4", "l4", 2), ("rtx4090x8", "rtx4090", 8),
                                                 ("2x4090", "rtx4090", 2), ("L4x2,a100-80gbx2", "l4", 2), ("l4", "l4", None)])
def test_a_name_times_a_number_is_so_many_devices(text, name, devices):
    found = cards.read_list(text)
    assert found[0].name == name and cards.devices(found, None) == devices


@pytest.mark.parametrize("text, asked", [("l4x2", 4), ("l4x2,t4x4", None), ("l4,t4x4", None), ("l4,l4x2", None), ("l4x17", None)])
def test_numbers_of_devices_that_contradict_each_other(text, asked):
    with pytest.raises(argparse.ArgumentTypeError):
        cards.devices(cards.read_list(text), asked)


class Stage:
    """Stands for the runs of a program that needs so many bytes live, and holds what a rule says."""

    options = argparse.Namespace(allocator="cenote", per_hour=None)

    def __init__(self, live, held=lambda live, capacity: live, catches=False):
        self.live, self.held, self.catches, self.runs = live, held, catches, []

    def play(self, capacity, allocator, program, more=None):
        self.runs.append(capacity // GIB)
        live = self.live(capacity) if callable(self.live) else self.live
        is_short = live > capacity
        devices = {"0": {"live_peak": min(live, capacity), "reserved_peak": min(self.held(live, capacity), capacity), "requested_peak": live,
                         "others": 0, "peak_step": 1, "capacity": capacity}}
        error = {"is_out_of_memory": True, "stack": [], "text": "", "type": "OutOfMemoryError"} if is_short and not self.catches else None
        failures = [{"device": 0, "bytes": 1, "step": 1, "phase": "outside", "stack": [], "live": 0, "reserved": 0, "kinds": {}, "phases": {}}]
        report = {"pid": 7, "rank": None, "end": "exit" if error else "steps", "steps": 5, "used_gpu": True, "devices": devices, "error": error,
                  "failures": failures if is_short else [], "failures_count": int(is_short), "values": None}
        return Outcome(capacity, allocator, 7, int(error is not None), [report], "")


def ask(stage, *sizes):
    answer = several.ask(stage, [Card("", size * GIB) for size in sizes], ["train.py"])
    several.text(["train.py"], answer, "cenote")
    return [row.verdict for row in answer.rows], [row.basis.split(" ")[0] for row in answer.rows], answer


def test_two_runs_are_enough_if_they_did_the_same():
    stage = Stage(20 * GIB)
    assert ask(stage, 16, 24, 40, 48, 80)[:2] == (["fits not", "fits", "fits", "fits", "fits"], ["a", "a", "runs", "runs", "a"])
    assert stage.runs == [80, 24, 16]
    stage = Stage(50 * GIB)
    assert ask(stage, 16, 24, 40, 80)[0] == ["fits not"] * 3 + ["fits"] and stage.runs == [80, 40]


def test_a_program_that_takes_what_there_is_runs_on_each_card():
    stage = Stage(lambda capacity: capacity * 9 // 10)
    verdicts, bases, _ = ask(stage, 16, 24, 40, 80)
    assert verdicts == ["fits"] * 4 and bases == ["a"] * 4 and sorted(stage.runs) == [16, 24, 40, 80]
    stage = Stage(20 * GIB, held=lambda live, capacity: capacity)  # an allocator that keeps more where there is more
    assert ask(stage, 16, 24, 40, 80)[0] == ["fits not", "fits", "fits", "fits"] and sorted(stage.runs) == [16, 24, 40, 80]


def test_the_largest_card_is_too_small():
    stage = Stage(100 * GIB)
    verdicts, bases, answer = ask(stage, 80, 24)
    assert verdicts == ["fits not"] * 2 and stage.runs == [80, 1024] and answer.verdict == "fits not"
    table = several.text(["train.py"], answer, "cenote")
    assert "20.00 GiB missing" in table and "76.00 GiB missing" in table
    assert "needs at least 100.00 GiB, live tensors and context (missing: of that)" in table
    assert "left" not in table and "a100-40gb" not in table and "smallest known cards that would be enough: h200 (137.17 GiB)" in table
    assert "seen: " not in table  # nothing that trains
    assert several.hint(answer, ["--gpu", "80GiB,24GiB"], ["x.py"]) == ["what would help, in numbers: cenote dry-run --advise --gpu 80GiB x.py"]
    ours, program = ["--quiet", "--json=a", "--gpu=80GiB,24GiB"], ["t.py", "--gpu", "0"]
    assert several.hint(answer, ours, program)[0].endswith("--advise --gpu 80GiB --quiet t.py --gpu 0")
    assert several.hint(answer, [], ["t.py", "--gpu", "0"])[0].endswith("--advise --gpu 80GiB t.py --gpu 0")


def test_a_table_counts_from_figures_that_it_names():
    answer = ask(Stage(20 * GIB, held=lambda live, capacity: live + GIB), 16, 24)[2]
    table = several.text(["train.py"], answer, "cenote")
    assert "4.00 GiB missing" in table and "3.00 GiB left" in table, table
    assert "needs at least 20.00 GiB, live tensors and context (missing: of that); peak 21.00 GiB with what the allocator keeps (left: " in table
    assert "would get through" not in table
    played = answer._replace(played={"native": Replay(22 * GIB, 19 * GIB)})
    assert "  it would get through with 19.00 GiB under PyTorch's own allocator" in several.text(["train.py"], played, "native").splitlines()


def test_a_table_calls_cards_by_their_names():
    stage = Stage(15 * GIB)
    answer = several.ask(stage, cards.read_list("t4,rtx3060,rtx4090,a100-40gb,v100-16gb"), ["train.py"])
    bases = {row.card.name: row.basis for row in answer.rows}
    assert bases["rtx3060"] == "a run on t4 that ran out" and bases["rtx4090"] == "runs on v100-16gb and a100-40gb, which did the same"


def test_a_table_with_prices(monkeypatch):
    monkeypatch.setattr(Stage.options, "per_hour", "akash")
    answer = several.ask(Stage(20 * GIB), cards.read_list("rtx4090,l40"), ["train.py"])
    table = several.text(["train.py"], answer, "cenote").splitlines()
    assert "GiB left, 0.39 $ per hour" in table[3] and "per hour" not in table[4], table
    assert [row.get("per_hour") for row in several.content(["train.py"], answer)["cards"]] == [0.39, None]


def test_cards_that_are_enough_have_it_for_sure():
    assert [card.name for card in cards.enough(15 * GIB)] == ["rtx-a4000", "v100-16gb", "a10g"]
    assert "l4" not in [card.name for card in cards.enough(22 * GIB)]  # nvidia-smi shows 22.49 GiB
    assert cards.enough(200 * GIB) == []


def smallest(stage):
    answer = several.smallest(stage, ["train.py"])
    assert "--- cenote dry-run train.py: the smallest cards that are known, cenote ---" in several.text(["train.py"], answer, "cenote", True)
    return [(row.card.title, row.verdict) for row in answer.rows], answer


def test_without_a_card_the_smallest_and_the_two_above_it():
    stage = Stage(15 * GIB)
    rows, answer = smallest(stage)
    assert rows == [("rtx-a4000", "fits"), ("v100-16gb", "fits"), ("a10g", "fits")] and stage.runs == [1024, 15]
    assert answer.rows[2].basis == "runs on rtx-a4000 and 1TiB, which did the same" and answer.verdict == "fits"


def test_without_a_card_one_on_which_memory_is_lost_between_blocks_is_passed_over():
    stage = Stage(lambda capacity: 15 * GIB if capacity > 16 * GIB else 17 * GIB)
    rows, _ = smallest(stage)
    assert [row[0] for row in rows] == ["a10g", "l4", "a10"] and {row[1] for row in rows} == {"fits"}
    assert stage.runs == [1024, 15, 15, 22, 21], stage.runs  # for sure a10g has less than a10, and at best more


def test_without_a_card_a_program_that_is_too_large_for_all():
    rows, answer = smallest(Stage(500 * GIB))
    assert rows == [("b200", "fits not")] and "missing" in several.text(["train.py"], answer, "cenote")
    rows, answer = smallest(Stage(2000 * GIB))
    assert rows == [("1TiB", "fits not")]


def test_the_list_of_cards(run):
    done = run("dry-run", "--gpu", "list")
    assert done.returncode == 0 and all(re.search(rf"^  {name} +[0-9.]+ GiB", done.stdout, re.M) for name in cards.table()), done.stdout
    done = run("dry-run", "--gpu", "tpu-v5", "train.py")
    assert done.returncode == 2 and "nor a card that is known" in done.stderr and "give its memory: --gpu 16GiB" in done.stderr


def test_a_program_that_catches_the_error_runs_on_each_card():
    stage = Stage(100 * GIB, catches=True)
    assert ask(stage, 80, 24)[0] == ["caught"] * 2 and stage.runs == [80, 24]


@pytest.mark.torch
@pytest.mark.simulation
def test_a_table_of_a_real_program(nursed_run, tmp_path):
    (tmp_path / "train.py").write_text("import torch\nkept = torch.empty(20 << 30, dtype=torch.uint8, device='cuda')\n")
    done = nursed_run("dry-run", "--gpu", "t4,rtx4090,a100-40gb,a100-80gb", "--json", "out.json", "train.py")
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if " GiB " in line and not line.lstrip().startswith(("needs", "peak"))}
    assert done.returncode == 1 and "does not fit" in rows["t4"] and "missing" in rows["t4"], done.stdout + done.stderr
    assert rows["rtx4090"].endswith("a run on a card of that size") and "left" in rows["rtx4090"]
    assert rows["a100-40gb"].endswith("which did the same") and "fits" in rows["a100-80gb"]
    assert "t4 has 7.5" in done.stdout


def test_an_allocator_that_fits_is_named_with_what_to_type():
    short, fits = Stage(20 * GIB).play(16 * GIB, "native", []), Stage(2 * GIB).play(16 * GIB, "expandable", [])
    line = verdict.allocator_lines(short, None, [fits], {})[0]
    assert line == "  under which allocator it fits: expandable (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"


def test_memory_ran_out_before_values_were_read():
    short = Stage(20 * GIB).play(16 * GIB, "native", [])
    short.reports[0]["values"] = {"unknown": [], "known_reads": 0}
    assert verdict.value_lines(short, None) == ["it read back no values until memory ran out"]
    short.reports[0]["values"]["known_reads"] = 1
    assert verdict.value_lines(short, None) == ["it read back 1 value until memory ran out, known without a GPU"]
