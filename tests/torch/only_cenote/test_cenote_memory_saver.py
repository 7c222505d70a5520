"""torch_memory_saver, as it is released, on cenote: what its users call goes to cenote.pause and cenote.resume, and they change nothing."""

import pathlib
import sys

import pytest

import simulated

pytestmark = pytest.mark.skipif(simulated.allocator().get("CENOTE") != "on", reason="CENOTE_TEST_ALLOCATOR is not cenote")
INSTALLED = pathlib.Path(sys.prefix) / "libraries"  # python/requirements/libraries.txt

BEGINNING = f"""
import sys, torch
sys.path.append({str(INSTALLED)!r})
from torch_memory_saver import torch_memory_saver as saver
MIB = 1 << 20

def used():
    left, total = torch.cuda.mem_get_info()
    return (total - left) // MIB

def filled(mib, value):
    return torch.full((mib * MIB,), value, dtype=torch.uint8).cuda()

def holds(tensor, value):
    return bool((tensor.cpu() == value).all())
"""


def run(code, mode="torch", **environ):
    """`mode`: how the program uses the package. "preload" is its default."""
    if not (INSTALLED / "torch_memory_saver").exists():
        pytest.skip("`tools/setup test` installs torch_memory_saver")
    if mode == "preload":
        theirs = next(INSTALLED.glob("torch_memory_saver_hook_mode_preload_cu13*.so"))
        environ["LD_PRELOAD"] = f"{theirs}:{simulated.environment()['LD_PRELOAD']}"
        environ["LD_LIBRARY_PATH"] = str(simulated.folder())
    start = f"{BEGINNING}\nsaver.hook_mode = {mode!r}\n"
    return (simulated.fresh if mode == "preload" else simulated.forked)(start + code, **environ)


def test_regions_sleep_and_wake():
    code = """
with saver.region("weights", enable_cpu_backup=True):
    weights = filled(64, 3)
with saver.region("cache"):
    cache = filled(128, 4)
outside = filled(32, 5)
before, at = used(), weights.data_ptr()
saver.pause("cache")
print(before - used(), holds(weights, 3))
saver.pause()
print(before - used(), holds(outside, 5))
saver.pause()  # once more changes nothing
other = filled(100, 6)
saver.resume("weights")
print(weights.data_ptr() == at, holds(weights, 3), holds(other, 6))
del other
torch.cuda.empty_cache()
saver.resume()
print(before - used(), holds(cache, 4), holds(weights, 3))
"""
    assert run(code).stdout.split("\n")[:4] == ["128 True", "192 True", "True True True", "0 False True"]


def test_new_memory_is_never_asleep():
    """Under the package alone, a tensor that is freed and one that comes while its tag sleeps may get memory that sleeps."""
    code = """
with saver.region("cache"):
    first, second = filled(64, 1), filled(64, 2)
del first
saver.pause("cache")
with saver.region("cache"):
    born = filled(64, 7)
print(holds(born, 7))
saver.resume("cache")
print(holds(born, 7))
"""
    assert run(code).stdout.split() == ["True", "True"]


def test_what_was_kept_is_read_asleep():
    code = """
with saver.region("weights", enable_cpu_backup=True):
    weights = torch.arange(1 << 20).cuda()
with saver.region("cache"):
    cache = filled(16, 4)
print(saver.get_cpu_backup(weights))
saver.pause()
print(torch.equal(saver.get_cpu_backup(weights[10:]), torch.arange(10, 1 << 20)), saver.get_cpu_backup(cache))
saver.resume()
print(saver.get_cpu_backup(weights))
"""
    assert run(code).stdout.split("\n")[:3] == ["None", "True None", "None"]


def test_disabled_regions():
    code = """
with saver.region("weights", enable_cpu_backup=True):
    weights = filled(16, 3)
    with saver.disable():
        awake = filled(16, 8)
saver.pause()
print(holds(awake, 8))
saver.resume()
print(holds(weights, 3))
"""
    assert run(code).stdout.split() == ["True", "True"]


def test_a_graph_in_a_region():
    """Mode preload alone has cuda_graph."""
    code = """
source, graph = filled(8, 5), torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="graph"):
    target = torch.empty_like(source)
    target.copy_(source)
graph.replay()
torch.cuda.synchronize()
before = used()
saver.pause("graph")
print(before - used())
saver.resume("graph")
source.copy_(filled(8, 6))
graph.replay()
print(holds(target, 6))
saver.pause("graph")
del graph, target
torch.cuda.synchronize()
saver.resume()
"""
    assert run(code, "preload").stdout.split() == ["8", "True"]


def test_all_of_a_program_sleeps():
    """TMS_INIT_ENABLE, as trainers use it: also what is taken outside of regions."""
    code = """
weights = filled(64, 3)
with saver.region("buffers"):
    buffers = filled(32, 4)
before = used()
saver.pause()
print(before - used())
with saver.disable():
    sent = filled(16, 9)
    print(holds(sent, 9))
saver.pause()  # what came meanwhile in a pool of its own stays awake
print(holds(sent, 9))
del sent
saver.resume("default")
print(holds(weights, 3))
saver.resume()
print(holds(weights, 3), holds(buffers, 4))
"""
    done = run(code, "preload", TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1")
    assert done.stdout.split("\n")[:5] == ["96", "True", "True", "True", "True False"]


def test_a_package_that_has_changed():
    """Its regions are its own then, and one line says what is lost."""
    code = """
import sys, types
import torch
package, inside = types.ModuleType("torch_memory_saver"), types.ModuleType("torch_memory_saver.entrypoint")
from cenote.inside import memory_saver
memory_saver.begin_with(torch, inside)
print(torch.empty(1, device="cuda").is_cuda)
"""
    done = simulated.forked(code)
    assert done.stdout.split() == ["True"] and "regions of torch_memory_saver do not sleep" in done.stderr
