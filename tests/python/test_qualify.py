"""`cenote qualify`: the program of tools/qualify under the command; tests/tools/qualify.py tests the program."""
import json
import pathlib
import re

from cenote.launch import environment
from cenote.replay import qualify

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_on_the_simulated_gpu(run, tmp_path):
    done = run("qualify", "--sim", "8GiB", "--quirk", "fabric-invalid", "--seconds", "0", "--no-torch", "--json", str(tmp_path / "q.json"))
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("verdict: fit without fabric handles\n\n") and not done.stderr
    assert json.loads((tmp_path / "q.json").read_text())["without"] == ["fabric handles"]


def test_what_is_missing_is_said_to_its_end(run):
    """A driver that is not there: the last words say what to do. They were cut off after 159 bytes."""
    done = run("qualify", CENOTE_DRIVER=f"/nonexistent/{'a' * 160}/libcuda.so.1")
    assert done.returncode == 1 and done.stderr.endswith("CENOTE_DRIVER names the library to load\n"), done.stderr


def test_the_simulated_gpu_is_tried_shortly_and_its_allocators_are_not_compared(monkeypatch):
    """Its random programs run for five seconds, unless --seconds says otherwise."""
    called = []
    monkeypatch.setattr(qualify.subprocess, "run", lambda command, **_: called.append(command[1:]) or type("Done", (), {"returncode": 0}))
    monkeypatch.setattr(qualify.card_trial, "run", lambda *_: called.append("compared") or [])
    for arguments, expected in ((["--sim", "8GiB"], [["--seconds", "5"]]), (["--sim", "8GiB", "--seconds", "9"], [["--seconds", "9"]]),
                                (["--sim", "8GiB", "--torch"], [["--seconds", "5"], "compared"])):
        called.clear()
        assert qualify.main(arguments) == 0 and called == expected


def test_allocators_are_compared(run, tmp_path):
    """On a card that native cannot play `lstm` on, and that has no room for `resnet50_amp`."""
    done = run("qualify", "--sim", "16GiB", "--torch", "--seconds", "0", "--json", str(tmp_path / "q.json"))
    assert done.returncode == 0 and not done.stderr, done.stderr
    found = json.loads((tmp_path / "q.json").read_text())
    trials = {(trial["trial"], trial["allocator"]): trial for trial in found["allocators"]}
    allocators = ("native", "expandable", "cenote")
    assert set(trials) == {(name, allocator) for name in ("lstm", "resnet50_amp", "training step") for allocator in allocators}
    assert trials["lstm", "native"]["outcome"] == "out of memory"
    assert {trials["resnet50_amp", allocator]["outcome"] for allocator in allocators} == {"no room"}
    for name in ("lstm", "training step"):
        ours, expandable = trials[name, "cenote"], trials[name, "expandable"]
        assert ours["requested_peak_bytes"] <= ours["reserved_peak_bytes"] < expandable["reserved_peak_bytes"]
        assert ours["first_ns"] > 0 and ours["later_ns"] > 0
    table = done.stdout.partition("PyTorch's allocators on this GPU (simulated: the times are this machine's)\n")[2].splitlines()
    assert len(table) == 10 and re.match(r"  lstm +native +12\.78 GiB  out of memory$", table[1]), table


def test_an_allocator_that_cannot_be_tried(run, tmp_path):
    """The others go on."""
    (tmp_path / "torch.py").write_text("raise ImportError('this torch is broken')")
    done = run("qualify", "--sim", "8GiB", "--torch", "--seconds", "0", PYTHONPATH=f"{tmp_path}:{ROOT}/python")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [f"cenote qualify: {name}: ImportError: this torch is broken" for name in ("native", "expandable", "cenote")]


def test_prices_of_a_card(run, tmp_path):
    prices = tmp_path / "card.prices"
    prices.write_text("cuMemCreate 5\n")
    done = run("run", "--sim", "8GiB", "--prices", str(prices), "--quiet", "--", "sh", "-c", "echo $CENOTE_SIM")
    assert done.returncode == 0 and f"prices:{prices}" in done.stdout
    done = run("run", "--sim", "8GiB", "--prices", str(tmp_path / "none"), "--", "true")
    assert done.returncode == 2 and "No such file" in done.stderr


def test_lists_of_prices(run, tmp_path):
    rows = (ROOT / "sim/machine/cost.def").read_text()
    assert tuple(re.findall(r"^PRICES\((\w+),", rows, re.M)) == environment.PRICES
    for command in (["run", "--sim", "8GiB"], ["dry-run", "--gpu", "8GiB"], ["replay"]):
        broken = tmp_path / "broken"
        broken.write_text("cuMemCreate fast\n")
        done = run(*command, "--prices", str(broken), str(ROOT / "traces/pipeline.csv.gz"))
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
        assert f"cenote {command[0]}: --prices: " in done.stderr and "cuMemCreate fast" in done.stderr and "h100" in done.stderr
    done = run("run", "--sim", "8GiB", "--prices", "h100", "--quiet", "--", "sh", "-c", "echo $CENOTE_SIM")
    assert done.returncode == 0 and ",prices:h100," in done.stdout


def test_the_list_of_a_card_is_what_was_measured_there():
    measured = dict(line.split() for line in (ROOT / "bench/results/2026-11-26-h200-prices.def").read_text().splitlines() if line[0] != "#")
    rows = re.findall(r"^COST\((\w+), \w+, ([\d, ]+)\)", (ROOT / "sim/machine/cost.def").read_text(), re.M)
    listed = {call: ns.split(", ")[environment.PRICES.index("h200")] for call, ns in rows}
    assert len(measured) == 12 and measured == {call: listed[call] for call in measured}


def test_wrong_arguments(run):
    for arguments in (["--quirk", "fabric"], ["--sim", "x"], ["--sim", "8GiB", "--quirk", "nonsense"], ["--sim", "8GiB", "--what"]):
        done = run("qualify", *arguments)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and done.stderr.startswith("cenote qualify: "), done.stderr
    done = run("qualify", "--sim", "8GiB", "--json", "no/such/folder")
    assert done.returncode == 2 and "no/such/folder" in done.stderr


def test_the_options_of_the_program_are_those_of_the_command():
    usage = re.search(r"usage\[\] =(.*?)\n\n", (ROOT / "tools/qualify/main.c").read_text(), re.DOTALL)[1]
    program = dict(re.findall(r"(--[\w-]+)(?: [A-Z]+)? {2,}(.*?)\\n\"", usage))
    assert program == {**{name: text for name, (_, text) in qualify.VALUED.items()}, qualify.FIRST_USE[0]: qualify.FIRST_USE[1]}
