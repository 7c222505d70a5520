"""Green contexts (torch.cuda.GreenContext): streams on a part of the GPU, and the default stream while such a context is current."""

import pathlib

import pytest
import torch

import simulated

pytestmark = pytest.mark.skipif(
    not hasattr(torch.cuda.green_contexts, "SMPartition"), reason="green contexts of an older PyTorch are written in C++"
)

HERE = pathlib.Path(__file__).parent
PROGRAM = f"""
import sys
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
import bindings
bindings.stand_in()
import gc, warnings
import torch
import simulated
from contents import LONG, MIB, block, filled, holds, overlap

warnings.simplefilter("ignore") # set_context and pop_context are deprecated
sim = simulated.Hand()
source, target = filled(12 * MIB, 2), block(12 * MIB)
green = torch.cuda.GreenContext.create(num_sms=16, device_id=0)
assert green.sm_count == 16
side = green.Stream()


def judge(value):
    '''What the long work copied is what lay there when it was put on the stream.'''
    block(12 * MIB).copy_(source)
    torch.cuda.synchronize()
    assert holds(target, value), value
    target.zero_()
    torch.cuda.synchronize()

"""


def run(code: str) -> None:
    end = "del green, side\ngc.collect()\nassert sim.books().violations == 0, sim.last_violation()\n"
    simulated.fresh(PROGRAM + code + end)


def test_streams_of_green_contexts():
    """What they take, what others lend them, and those of a context that was made of another one's part."""
    run(
        """
with torch.cuda.stream(side):
    a = filled(12 * MIB, 1)
    sim.work(side, LONG)
    target.copy_(a)
    del a
judge(1)

a = filled(12 * MIB, 3)
torch.cuda.synchronize()
with torch.cuda.stream(side):
    sim.work(side, LONG)
    target.copy_(a)
a.record_stream(side)
del a
judge(3)

whole = torch.cuda.green_contexts.SMPartition.from_device(0)
assert whole.sm_count == torch.cuda.get_device_properties(0).multi_processor_count
other = torch.cuda.GreenContext(sm_partition=green.sm_partition)
assert other.sm_count == 16
with torch.cuda.stream(other.Stream()):
    assert not overlap(block(MIB), target)
torch.cuda.synchronize()
del other, whole
"""
    )


def test_the_default_stream_while_a_green_context_is_current():
    run(
        """
a = filled(12 * MIB, 4)
sim.work(torch.cuda.current_stream(), LONG)
target.copy_(a)
del a
green.set_context()
a = filled(12 * MIB, 5)
sim.work(torch.cuda.current_stream(), LONG)
more = block(12 * MIB)
more.copy_(a)
del a
green.pop_context()
judge(4)
assert holds(more, 5)
"""
    )
