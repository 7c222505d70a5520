"""The unchanged CUDA build of PyTorch under `cenote run`, and the ways in which programs start others: all run on one simulated machine."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import CENOTE

pytestmark = [pytest.mark.torch, pytest.mark.simulation]
SECONDS = 300


@pytest.fixture
def gpu(clean, tmp_path, nursed_python):
    """gpu(OPTION..., code=PROGRAM): its lines of output. `gpu(..., command=[...])` runs the command instead, with the program in program.py. What a
    `nursed` program shows has nothing to do with how PyTorch is imported: the import is done."""
    clean["PATH"] = str(pathlib.Path(sys.executable).parent) + os.pathsep + clean["PATH"]
    clean["OMP_NUM_THREADS"] = "1"

    def call(*options, code, command=("program.py",), status=0, nursed=False, **variables):
        (tmp_path / "program.py").write_text(code)
        python = nursed_python if nursed else sys.executable
        done = subprocess.run([python, *CENOTE[1:], "run", *(options or ("--sim", "8GiB")), *command], cwd=tmp_path, env={**clean, **variables},
                              capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout.splitlines()
    return call


DEVICE = """
import torch
assert torch.cuda.is_available()
"""


def test_a_device_with_the_memory_asked_for(gpu):
    code = DEVICE + """
print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).total_memory, torch.cuda.mem_get_info()[1])
x = torch.empty(1 << 28, device="cuda")
print(torch.cuda.memory_allocated(), x.device, torch.cuda.mem_get_info()[0] < (7 << 30))
"""
    assert gpu(code=code) == [f"1 {8 << 30} {8 << 30}", f"{1 << 30} cuda:0 True"]


def test_several_devices(gpu):
    code = DEVICE + "print(*(torch.empty(1, device=f'cuda:{i}').device for i in range(torch.cuda.device_count())))"
    assert gpu("--sim", "4GiB", "--devices", "4", code=code, nursed=True) == ["cuda:0 cuda:1 cuda:2 cuda:3"]


def test_no_device(gpu):
    assert gpu("--sim", "4GiB", "--devices", "0", code="import torch; print(torch.cuda.is_available())") == ["False"]


def test_out_of_memory_is_pytorchs_own_error(gpu):
    code = DEVICE + """
try:
    torch.empty(9 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print("8.00 GiB" in str(error), "9.00 GiB" in str(error))
"""
    assert gpu(code=code, nursed=True) == ["True True"]


@pytest.mark.parametrize("allocator, backend, expandable", [
    ("native", "native", "False"), ("expandable", "native", "True"), ("cudaMallocAsync", "cudaMallocAsync", "False"),
])
def test_the_allocator_is_the_one_asked_for(gpu, allocator, backend, expandable):
    code = DEVICE + """
x = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
is_expandable = any(s["is_expandable"] for s in torch.cuda.memory_snapshot()) if torch.cuda.get_allocator_backend() == "native" else False
print(torch.cuda.get_allocator_backend(), is_expandable, torch.cuda.memory_allocated() >= 40 << 20)
"""
    assert gpu("--sim", "8GiB", "--allocator", allocator, code=code) == [f"{backend} {expandable} True"]


def test_a_wait_for_a_device_is_noted(gpu, tmp_path):
    """With announced:0, on a device that is not the current one, with the adapter and without a compiler for it (tests/torch/only_cenote has a device
    that is). Memory of a stream that ended without a word, or that was retired, comes back."""
    code = """
import cenote, ctypes, torch
driver, MIB = ctypes.CDLL("libcuda.so.1"), 1 << 20
def leave(retires=False):
    handle = ctypes.c_void_p()
    with torch.cuda.device(1):
        assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
        side = torch.cuda.ExternalStream(handle.value)
        with torch.cuda.stream(side):
            x = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del x
        if retires:
            cenote.retire(side)
        assert driver.cuStreamDestroy_v2(handle) == 0
    return held()
def held():
    torch.cuda.empty_cache()
    return cenote.stats(1)["reserved"].current
torch.empty(1, device="cuda:1")
for wait in torch.cuda.synchronize, torch.accelerator.synchronize:
    assert leave() >= 64 * MIB
    wait(0)
    assert held() >= 64 * MIB
    wait(1)
    left = held()
    assert left < 64 * MIB, (wait.__module__, left)
    assert torch.cuda.current_device() == 0
assert leave(retires=True) < 64 * MIB
print(torch.cuda.get_allocator_backend())
"""
    options = ("--sim", "1GiB", "--devices", "2", "--allocator", "cenote")
    assert gpu(*options, code=code, CENOTE_CONF="announced:0", nursed=True)[0] == "cenote"
    without = {"CXX": "/nonexistent/c++", "XDG_CACHE_HOME": str(tmp_path / "none")}
    assert gpu(*options, code=code, CENOTE="fallback", CENOTE_CONF="announced:0", **without)[0] == "pluggable"


def test_settings_of_the_user_stay(gpu):
    code = DEVICE + "torch.empty(1, device='cuda'); print(torch.cuda.memory._snapshot()['allocator_settings']['max_split_size'] >> 20)"
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        assert gpu("--sim", "8GiB", "--allocator", "expandable", code=code, **{name: "max_split_size_mb:64"}) == ["64"]


def test_what_torch_asks_for_is_there(gpu, clean, tmp_path):
    """The simulated GPU has all that the installed torch needs: nothing is printed."""
    done = subprocess.run([*CENOTE, "run", "--sim", "8GiB", "--", "true"], env={**clean, "XDG_CACHE_HOME": str(tmp_path)},
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_multiprocessing(gpu, method):
    """A parent that has not used CUDA may fork; the memory of its children comes from one device."""
    code = f"""
import multiprocessing, sys
def child(queue, barrier):
    import torch
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    barrier.wait()
    queue.put(torch.cuda.mem_get_info()[0] >> 30)
    barrier.wait()
if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    queue, barrier = context.Queue(), context.Barrier(2)
    children = [context.Process(target=child, args=(queue, barrier)) for _ in range(2)]
    [c.start() for c in children]
    print(*(queue.get() for _ in children))
    [c.join() for c in children]
    print(*(c.exitcode for c in children))
"""
    free, codes = gpu("--sim", "8GiB", code=code)
    assert codes == "0 0"
    assert free == "5 5"  # 8 GiB less two contexts and two blocks of 1 GiB


def test_a_fork_after_cuda_is_refused_by_pytorch(gpu):
    code = DEVICE + """
import os
torch.empty(1, device="cuda")
if os.fork() == 0:
    try:
        torch.empty(1, device="cuda")
    except RuntimeError as error:
        os._exit(7 if "forked subprocess" in str(error) else 8)
print(os.waitstatus_to_exitcode(os.wait()[1]), torch.empty(1, device="cuda").device)
"""
    assert gpu(code=code, nursed=True) == ["7 cuda:0"]


def test_data_loader_workers(gpu):
    code = DEVICE + """
from torch.utils.data import DataLoader, TensorDataset
def main():
    data = TensorDataset(torch.arange(64).float())
    for context in ("fork", "spawn"):
        loader = DataLoader(data, batch_size=16, num_workers=2, pin_memory=True, multiprocessing_context=context)
        batches = [batch.cuda(non_blocking=True) for batch, in loader]
        print(len(batches), batches[0].is_pinned(), sum(batch.cpu().sum().item() for batch in batches))
if __name__ == "__main__":
    torch.empty(1, device="cuda")
    main()
"""
    assert gpu(code=code) == [f"4 False {sum(range(64))}.0"] * 2


RANK = """
import os, torch, torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
x = torch.empty(1 << 20, device="cuda")
open(f"rank{rank}", "w").write(f"{os.environ['CENOTE_SIM']} {torch.cuda.device_count()} {x.device}")
"""


def ranks(folder):
    rows = [(folder / f"rank{rank}").read_text().split() for rank in range(2)]
    assert [row[1:] for row in rows] == [["2", "cuda:0"], ["2", "cuda:1"]]
    assert rows[0][0] == rows[1][0] and "machine:run-" in rows[0][0]


def test_torchrun(gpu, tmp_path):
    gpu("--sim", "8GiB", "--devices", "2", code=RANK, command=("--", "torchrun", "--standalone", "--nproc-per-node", "2", "program.py"))
    ranks(tmp_path)


def test_torchrun_as_a_module(gpu, tmp_path):
    gpu("--sim", "8GiB", "--devices", "2", code=RANK, command=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "program.py"))
    ranks(tmp_path)


def test_accelerate_launch(gpu, tmp_path):
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    gpu("--sim", "8GiB", "--devices", "2", code=RANK, HF_HOME=str(tmp_path), command=(
        "--", "accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "program.py"))
    ranks(tmp_path)


def test_pytest(gpu, tmp_path):
    (tmp_path / "test_inner.py").write_text(
        "import torch\ndef test_it(): assert torch.empty(4, device='cuda').is_cuda\ndef test_not(): assert False\n")
    lines = gpu(code="", command=("-m", "pytest", "-q", "test_inner.py"), status=1)
    assert lines[-1].startswith("1 failed, 1 passed")


def test_two_runs_are_on_two_machines(clean, tmp_path):
    """The second run sees a device that no process uses, while the first holds most of its own device."""
    holds = "import sys, torch; x = torch.empty(7 << 30, dtype=torch.uint8, device='cuda'); print('held', flush=True); sys.stdin.read()"
    sees = "import torch; print(torch.cuda.mem_get_info()[0] >> 30)"
    command = [*CENOTE, "run", "--sim", "8GiB", "--", sys.executable, "-c"]
    with subprocess.Popen([*command, holds], env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        second = subprocess.run([*command, sees], env=clean, capture_output=True, text=True, timeout=SECONDS)
        first.stdin.close()
    assert second.stdout == "7\n", second.stderr


def test_libraries_of_nvidias_are_all_simulated(gpu, simulation_library):
    """Each library is loaded once, from the simulated ones, even if real ones are installed."""
    code = DEVICE + """
torch.empty(1, device="cuda")
import re
paths = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if re.search(r"lib(cu|nccl|nv)[^/]*\\\\.so", line)}
print(*sorted(paths), sep="\\n")
""".replace("\\\\", "\\")
    paths = [pathlib.Path(path) for path in gpu(code=code)]
    assert len(paths) > 10 and {path.parent for path in paths} == {simulation_library.parent}
