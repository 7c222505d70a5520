"""torch.cuda.empty_cache() after each step: repeated, it becomes cheap; a program that reads a counter still sees an empty cache."""

import json

import pytest

import simulated

pytestmark = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")

SHAPE = "capacity:4GiB,context_bytes:300MiB,spend_cost:1"  # driver calls take the time that the model gives them
PROGRAM = """
import ctypes, json, sys, torch

def step():
    block = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    del block
    torch.cuda.empty_cache()

def left():
    left, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert not ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(total))
    return left.value >> 20

step()
first = left()
for _ in range(40):
    step()
said = {"kept": first - left()}
"""


def told(code: str, **environ: str) -> dict:
    return json.loads(simulated.forked(PROGRAM + code + "\nprint(json.dumps(said))", SHAPE, whole=True, **environ).stdout)


LOOKS = ["torch.cuda.memory_reserved()", "torch.cuda.memory_stats()", "torch.cuda.memory_snapshot()", "torch.cuda.mem_get_info()",
         "torch.accelerator.get_memory_info()"]


@pytest.mark.parametrize("look", LOOKS)
def test_a_program_that_looks_sees_an_empty_cache(look):
    said = told(f"{look}\nsaid['after'] = first - left()\nstep()\nsaid['again'] = first - left()")
    assert said == {"kept": 256, "after": 0, "again": 256}


def test_reserved_memory_reads_as_empty():
    assert told("said['reserved'] = torch.cuda.memory_reserved()") == {"kept": 256, "reserved": 0}


def test_what_was_freed_later_is_not_deferred():
    said = told("block = torch.empty(64 << 20, device='cuda', dtype=torch.uint8)\ndel block\nsaid['reserved'] = torch.cuda.memory_reserved() >> 20")
    assert said == {"kept": 256, "reserved": 64}


def test_without_a_budget_everything_goes():
    assert told("", CENOTE_CONF="harvest_budget:off") == {"kept": 0}
