"""cenote.lend: what one process does not use for a while, another on the card has meanwhile. Both are processes of PyTorch on one simulated card."""

import os

import pytest

import simulated

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")

# Holds 1 GiB of parameters and their gradients, does what the lines of its input say, and answers each.
TRAINER = """
import sys, torch, cenote
model = torch.nn.Linear(8192, 16384, device="cuda")
model.weight.grad = torch.empty_like(model.weight)
def asleep():
    assert cenote.stats()["asleep"] > 0
loan = None
def lend():
    global loan
    loan = cenote.lend(model).__enter__()
orders = {"lend": lend, "end": lambda: loan.end(), "call": lambda: model(torch.zeros(1, 8192, device="cuda")), "asleep": asleep}
print("ready", flush=True)
for line in sys.stdin:
    try:
        orders[line.strip()]()
        print("done", flush=True)
    except (torch.OutOfMemoryError, cenote.Error, AssertionError) as error:
        print(type(error).__name__, flush=True)
"""

ENGINE = f"""
import subprocess, sys, torch
trainer = subprocess.Popen([sys.executable, "-c", {TRAINER!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert trainer.stdout.readline().strip() == "ready"
def tell(order):
    print(order, file=trainer.stdin, flush=True)
    return trainer.stdout.readline().strip()
def take():
    return torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
try:
    take()
    sys.exit("it fits: the card is too large for this test")
except torch.OutOfMemoryError:
    pass
assert tell("lend") == "done"
assert tell("asleep") == "AssertionError", "nobody has asked"
cache = take()
assert tell("asleep") == "done"
assert tell("call") == "Error", "it sleeps"
assert tell("end") == "OutOfMemoryError", "the card is in use"
assert tell("asleep") == "done"
del cache
torch.cuda.empty_cache()
assert tell("end") == "done"
assert tell("asleep") == "AssertionError"
assert tell("call") == "done"
trainer.stdin.close()
assert trainer.wait() == 0
print("whole")
"""


def test_a_trainer_lends_and_has_it_back():
    done = simulated.fresh(ENGINE, shape=f"capacity:2GiB,devices:1,context_bytes:100MiB,machine:lend-{os.urandom(4).hex()}")
    assert done.stdout.strip() == "whole", done.stderr
