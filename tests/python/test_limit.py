"""`cenote dry-run --limit` and `--baseline`, for CI."""
import json

import pytest

from cenote.fit import limit

pytestmark = [pytest.mark.torch, pytest.mark.simulation]
SCRIPT = "import sys, torch\nkept = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device='cuda')\n"


@pytest.fixture
def dry(nursed_run, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)

    def call(mib, *options):
        return nursed_run("dry-run", "--gpu", "4GiB", "--allocator", "cenote", *options, "train.py", mib)
    return call


def test_in_ci(dry, tmp_path):
    """The first run writes the baseline; later ones are compared with it, and with a limit."""
    first = dry(1000, "--json", "memory.json", "--limit", "2GiB")
    needed = json.loads((tmp_path / "memory.json").read_text())["needed"]
    assert first.returncode == 0 and "limit: " in first.stdout and "below the limit of 2.00 GiB" in first.stdout, first.stdout + first.stderr
    more = dry(1100, "--baseline", "memory.json", "--json", "now.json")
    assert more.returncode == 8 and "baseline: +100.0 MiB since the baseline of" in more.stdout, more.stdout
    assert "(outside of modules +100.0 MiB)" in more.stdout
    assert json.loads((tmp_path / "now.json").read_text())["since_baseline"] == 100 << 20
    less = dry(1000, "--baseline", "memory.json", "--limit", str(needed - 1))
    assert less.returncode == 7 and "1 bytes above the limit" in less.stdout and "+0 bytes since" in less.stdout, less.stdout
    short = dry(9000, "--baseline", "memory.json")
    assert short.returncode == 1 and "baseline: +7.84 GiB since" in short.stdout, short.stdout


GOOD = {"largest": None, "needed": 5, "verdict": "fits", "allocator": "cenote", "processes": [{"devices": {"0": {"reserved_peak": 5}}}]}


@pytest.mark.parametrize("text, words", [
    (None, "No such file"), ("{", "is no file that"), ("[]", "is no file that"), ("[" * 100_000, "is no file that"), ('"x"', "is no file that"),
    (json.dumps({**GOOD, "needed": "5"}), "is no file that"), (json.dumps({**GOOD, "needed": True}), "is no file that"),
    (json.dumps({**GOOD, "needed": -1}), "is no file that"), (json.dumps({**GOOD, "processes": []}), "is no file that"),
    (json.dumps({**GOOD, "processes": [{"devices": {"0": {"reserved_peak": 5, "kinds": [1]}}}]}), "is no file that"),
    (json.dumps({**GOOD, "verdict": "unknown"}), "make it on a larger card"),
    (json.dumps({**GOOD, "allocator": "native"}), "of the allocator native"),
])
def test_a_baseline_that_is_none(run, tmp_path, text, words):
    (tmp_path / "train.py").write_text("")
    if text is not None:
        (tmp_path / "memory.json").write_text(text)
    done = run("dry-run", "--gpu", "4GiB", "--allocator", "cenote", "--baseline", "memory.json", "train.py")
    assert done.returncode == 2 and words in done.stderr and done.stdout == "", done.stderr


def rows(**modules):
    """Figures of a device with a parameter, a gradient or activations in each of these modules."""
    return {"names": {"patterns": [{"kind": "parameters", "name": f"{name.replace('__', '.')}.weight", "bytes": mib << 19}
                                   for name, mib in modules.items()] + [
        {"kind": "optimizer state", "name": f"exp_avg of {name.replace('__', '.')}.weight", "bytes": mib << 19} for name, mib in modules.items()] + [
        {"kind": "activations", "name": "outside modules: train.py:12", "bytes": 1 << 40}]}}


@pytest.mark.parametrize("now, before, expected", [
    (dict(encoder=100, decoder__up=500), dict(encoder=100, decoder__up=300), [("decoder.up", 200 << 20)]),      # the innermost one
    (dict(decoder__up=300, decoder__down=300), dict(decoder__up=100, decoder__down=100), [("decoder", 400 << 20)]),
    (dict(encoder=300, decoder=100), dict(encoder=100, decoder=300), [("decoder", -(200 << 20)), ("encoder", 200 << 20)]),
    (dict(encoder=103), dict(encoder=100), []),         # too little to be named
    (dict(decoder=50), {}, [("decoder", 50 << 20)]),
])
def test_the_module_with_the_difference(now, before, expected):
    assert limit.where(limit.modules_of(rows(**now)), limit.modules_of(rows(**before))) == expected
    assert limit.modules_of({}) == {}               # under allocators without names


def test_one_card_at_a_time(run, tmp_path):
    (tmp_path / "train.py").write_text("")
    done = run("dry-run", "--gpu", "4GiB,8GiB", "--limit", "1GiB", "train.py")
    assert done.returncode == 2 and "are for one card" in done.stderr


OWN = """
import sys, torch
torch.cuda.set_per_process_memory_fraction(float(sys.argv[2]))
kept = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.mark.parametrize("allocator", ["cenote", "native"])
def test_a_limit_that_the_program_sets(nursed_run, tmp_path, allocator):
    """It is that limit that memory ran out of, not the card, nor what lies between blocks."""
    (tmp_path / "train.py").write_text(OWN)

    def dry(card, mib, fraction):
        done = nursed_run("dry-run", "--gpu", card, "--allocator", allocator, "--json", "out.json", "train.py", mib, fraction)
        return done, json.loads((tmp_path / "out.json").read_text())
    done, found = dry("4GiB", 600, 0.25)
    assert done.returncode == 0 and "lets PyTorch hold 1.00 GiB (set_per_process_memory_fraction): 424.0 MiB of that left" in done.stdout, done.stdout
    done, _ = dry("4GiB", 1000, 0.25)
    assert done.returncode == 0 and "that is tight" in done.stdout, done.stdout
    done, found = dry("4GiB", 1500, 0.25)
    assert done.returncode == 1 and found["missing"] == 476 << 20 and found["others"] == [], done.stdout
    assert "1.46 GiB beside the context, and lets PyTorch hold 1.00 GiB" in done.stdout and "lost between blocks" not in done.stdout
    done, found = dry("4GiB", 1500, 1 / 1024)  # on the largest card it would have no room, either
    assert done.returncode == 1 and found["missing"] == 1496 << 20, done.stdout
    done, found = dry("4GiB", 9000, 0.5)  # the card is in the way, too: what is missing from the limit is more
    assert done.returncode == 1 and found["missing"] == 6952 << 20, done.stdout
    done, _ = dry("4GiB,8GiB", 1500, 0.25)
    assert "476.0 MiB missing of its own limit" in done.stdout and "564" not in done.stdout, done.stdout
