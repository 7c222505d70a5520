"""The command with good and bad arguments. After a mistake it prints one line, exits with status 2, and runs nothing."""
import pathlib
import re

import pytest

from cenote import command
from cenote.launch import command_line, environment

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def refuse(run, tmp_path):
    """refuse(ARGUMENT..., NAME=VALUE...): the one line that the command prints. A program comes after the arguments, and must not run."""
    script, trace = tmp_path / "program.py", tmp_path / "ran"
    script.write_text(f"open({str(trace)!r}, 'w')")

    def call(*arguments, program=True, status=2, **variables):
        done = run("run", *arguments, *([script] if program else []), **variables)
        assert done.returncode == status, done.stderr
        assert done.stdout == "" and not trace.exists()
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("cenote run: "), done.stderr
        return done.stderr
    return call


@pytest.mark.parametrize("arguments, ours", [
    (["a.py", "--sim", "1"], 0), (["--sim", "8g", "a.py", "--sim"], 2), (["--sim=8g", "-m", "pytest", "-m", "x"], 1), (["--", "--sim"], 0),
    (["--devices", "2", "--lag", "5", "--", "env"], 4), (["-"], 0), ([], 0), (["--sim"], 1), (["--what", "a.py"], 1), (["--allocator", "-m", "a"], 2),
])
def test_our_options_end_where_the_program_begins(arguments, ours):
    assert command_line.split(arguments, command.make_parser()) == (arguments[:ours], arguments[ours:])


@pytest.mark.parametrize("size", [
    "", "0", "-1GiB", "80", "80 GiB", "1GiB,devices:4", "1GiB\n", "1e9", "nan", "80XiB", "2TiB", "99999999999999999999TiB",
    "9" * 1000, "٨٠GiB", "\udcff", "a" * 5000,
    "$(touch ran)", "1048575",
])
def test_a_size_that_is_none(refuse, size):
    assert "--sim" in refuse("--sim", size)


@pytest.mark.parametrize("option, value", [
    ("--devices", "-1"), ("--devices", "17"), ("--devices", "1.5"), ("--devices", ""), ("--devices", "two"),
    ("--lag", "-5"), ("--lag", "1ms"), ("--lag", "1" * 21),
    ("--lag", str(1 << 64)), ("--allocator", "malloc"), ("--allocator", ""), ("--allocator", "Native"),
])
def test_a_value_that_is_none(refuse, option, value):
    assert option in refuse("--sim", "8GiB", option, value)


def test_an_allocator_and_a_switch_that_contradict_each_other(refuse):
    assert "CENOTE says 'on' already" in refuse("--allocator", "native", CENOTE="on")
    assert "CENOTE says 'off' already" in refuse("--allocator", "cenote", CENOTE="off")
    assert "backend:cudaMallocAsync" in refuse("--allocator", "cenote", PYTORCH_ALLOC_CONF="backend:cudaMallocAsync")


def test_an_option_that_is_none(refuse):
    assert "--what" in refuse("--what")
    assert "--dev" in refuse("--sim", "8GiB", "--dev", "2")
    assert "expected one argument" in refuse("--sim", program=False)


def test_a_program_is_needed(refuse):
    assert "no program" in refuse(program=False)
    assert "no program after --" in refuse("--", program=False)
    assert "no module after -m" in refuse("-m", program=False)
    assert "no code after -c" in refuse("-c", program=False)
    assert "there is no file 'torchrun'; a program that is not a Python script goes after --" in refuse("torchrun", program=False)


def test_the_shape_of_a_simulation_needs_a_simulation(refuse):
    assert "--sim SIZE" in refuse("--devices", "2")
    assert "--sim SIZE" in refuse("--lag", "2")
    assert "--sim SIZE" in refuse("--quirk", "wsl-rdma")


@pytest.mark.simulation
def test_a_wrong_quirk_lists_those_that_there_are(refuse):
    known = re.findall(r'^QUIRK\(\w+, "([a-z-]+)", ', (ROOT / "sim/quirks.def").read_text(), re.MULTILINE)
    for wrong in ("wsl-rmda", "wsl-rdma,", "wsl-rdma,none-such"):
        assert ", ".join(known) in refuse("--sim", "8GiB", "--quirk", wrong)
    assert "quirks:fabric" in refuse("--sim", "8GiB", "--quirk", "wsl-rdma", CENOTE_SIM="quirks:fabric")


@pytest.mark.simulation
def test_contradictions(refuse):
    assert "capacity:16GiB" in refuse("--sim", "8GiB", CENOTE_SIM="capacity:16GiB")
    assert "backend:cudaMallocAsync" in refuse("--sim", "8GiB", "--allocator", "native", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")


def test_nothing_is_built(refuse, tmp_path):
    assert "`make build` makes it" in refuse("--sim", "8GiB", CENOTE_BUILD=str(tmp_path / "nowhere"))
    (tmp_path / "half/sim").mkdir(parents=True)
    assert "libcenote_sim.so is not there" in refuse("--sim", "8GiB", CENOTE_BUILD=str(tmp_path / "half"))


def test_files_that_cannot_be(refuse, tmp_path):
    assert "does not end in .html" in refuse("--report", "memory.txt")
    assert "use --allocator cenote" in refuse("--allocator", "cudaMallocAsync", "--report", "memory.html")
    assert "CENOTE says 'off' already" in refuse("--report", "memory.html", CENOTE="off")
    assert "there is no folder" in refuse("--json", tmp_path / "nowhere/figures.json")
    assert "expected one argument" in refuse("--report", program=False)


def test_version_help_and_nonsense(run):
    assert re.fullmatch(r"cenote \d+\.\d+\.\d+\n", run("--version").stdout)
    for arguments in (["--help"], ["run", "--help"], ["run", "-h"]):
        done = run(*arguments)
        assert done.returncode == 0 and "usage: cenote" in done.stdout
    nonsense = run("walk", "a.py")
    assert nonsense.returncode == 2 and re.fullmatch(r"cenote: 'walk' is no command; there are .*`cenote run`.*\n", nonsense.stderr)
    assert run().returncode == 2


def test_limits_are_those_of_the_simulated_gpu():
    rows = dict(re.findall(r"^SHAPE\((\w+), \w+, (.*)\)", (ROOT / "sim/machine/shape.def").read_text(), re.MULTILINE))
    limits = {name: [eval(word.replace("ull", "")) for word in text.split(", ")][1:] for name, text in rows.items()}  # smallest and largest value
    assert limits["capacity"] == [command_line.LEAST_CAPACITY, command_line.MOST_CAPACITY]
    assert limits["devices"] == [0, command_line.MOST_DEVICES]
    assert limits["lag"] == [0, 0]  # no bound


def test_every_allocator_is_in_the_help(run):
    assert all(name in run("run", "--help").stdout for name in environment.ALLOCATORS)
