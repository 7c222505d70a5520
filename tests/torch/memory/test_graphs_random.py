"""Random programs of graphs and eager work against the model of shadow.py, which knows the owner and the content of each byte.

Each bunch runs in a process of its own, so that what a program leaves behind (PyTorch's statistics by pool) does not reach other tests.
"""

import pathlib
import subprocess

import pytest

import simulated

HERE = pathlib.Path(__file__).parent
BUNCH, BUNCHES = 500, 6
BROKEN_MAX = 1000  # programs; one of them at least has to fail


def run(first: int, count: int, check: bool = True, **environ: str) -> subprocess.CompletedProcess:
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import programs; programs.run_all(range({first}, {first + count}))"
    return simulated.forked(code, check=check, **environ)


def library() -> pathlib.Path:
    return simulated.folder().parent / "libcenote.so"


@pytest.mark.parametrize("bunch", range(BUNCHES))
def test_every_byte_has_one_owner_and_holds_what_that_one_wrote(bunch):
    run(bunch * BUNCH, BUNCH)


@pytest.mark.skipif(not simulated.allocator(), reason="the rules are cenote's")
@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(3, id="3: what is in flight is not unmapped"),
        pytest.param(4, id="4: memory of a private group stays where it is"),
        pytest.param(5, id="5: nothing is asked or given back during a capture"),
    ],
)
def test_a_broken_rule_is_noticed(rule):
    """The library breaks the rule on purpose, and the same programs fail."""
    if b"CENOTE_BREAK" not in library().read_bytes():
        pytest.skip("rules can be broken in debug builds only: -DCENOTE_DEBUG=1")
    broken = run(0, BROKEN_MAX, check=False, CENOTE_BREAK=str(rule), CENOTE_SHADOW="quick")
    assert broken.returncode != 0, f"{BROKEN_MAX} programs did not notice that rule {rule} is broken"
    assert "shadow.Failed" in broken.stderr or "check failed" in broken.stderr, broken.stderr
