"""The management library through torch.cuda and pynvml."""

import json
import os
import re

import pytest

import simulated

torch = pytest.importorskip("torch")

MIB = 1 << 20


@pytest.fixture(scope="module")
def nvml():
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    pynvml.nvmlInit()
    yield pynvml
    pynvml.nvmlShutdown()


def test_counting_devices_does_not_start_cuda():
    """With PYTORCH_NVML_BASED_CUDA_CHECK a program may ask, fork, and use the GPU in the child."""
    simulated.forked(
        """
        import os, torch
        assert torch.cuda.is_available() and torch.cuda.device_count() == 3
        assert not torch.cuda.is_initialized()
        child = os.fork()
        if not child:
            assert torch.tensor([3], device="cuda").item() == 3
            os._exit(42)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        """,
        shape="capacity:1GiB,devices:3",
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
    )


def test_no_question_starts_cuda():
    """A monitor asks for names, memory and processes, too; the child of a fork can use the GPU all the same."""
    simulated.forked(
        """
        import ctypes, os, torch
        nvml, device, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
        name, count, processes = ctypes.create_string_buffer(96), ctypes.c_uint(8), (ctypes.c_ulonglong * 24)()
        assert nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
        assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0 and list(memory) == [1 << 30, 1 << 30, 0]
        assert nvml.nvmlDeviceGetName(device, name, 96) == 0 and name.value
        assert nvml.nvmlDeviceGetUUID(device, name, 96) == 0 and name.value.startswith(b"GPU-")
        assert nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), processes) == 0 and count.value == 0
        child = os.fork()
        if not child:
            assert torch.tensor([3], device="cuda").item() == 3
            os._exit(42)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert torch.tensor([4], device="cuda").item() == 4
        """,
        shape="capacity:1GiB,devices:1,context_bytes:0",
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
    )


# Which of three devices CUDA_VISIBLE_DEVICES names, by index. {0}, {1}, {2} stand for their UUIDs.
VISIBLE = {
    "2,0": [2, 0],
    "": [],
    "-1": [],
    "1": [1],
    "0,9,1": [0],
    "0,-1,1": [0],
    "1,1": [],
    "no": [],
    "{1}": [1],
    "{2},{0}": [2, 0],
    "GPU-none": [],
}


@pytest.mark.parametrize("by_nvml", [False, True])
@pytest.mark.parametrize("text", VISIBLE)
def test_pytorch_and_the_driver_see_the_same_devices(text, by_nvml):
    """If NVML counts, PyTorch reads the variable itself; when it uses a device, it asks the driver."""
    code = """
        import json, os, torch
        every = ["GPU-" + uuid.removeprefix("GPU-") for uuid in torch.cuda._raw_device_uuid_nvml()]
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["WANTED"].format(*every)
        answers = [torch.cuda.is_available(), torch.cuda.device_count(), torch._C._cuda_getDeviceCount()]
        seen = ["GPU-" + str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())]
        print(json.dumps([answers, [every.index(uuid) for uuid in seen], len(every)]))
    """
    more = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if by_nvml else {}
    done = simulated.forked(code, shape="capacity:1GiB,devices:3", WANTED=text, **more)
    expected = VISIBLE[text]
    assert json.loads(done.stdout) == [[bool(expected), len(expected), len(expected)], expected, 3]


def test_out_of_memory_names_the_memory_of_the_process():
    """The text of the error comes from the list of processes."""
    keep = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as raised:
        torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
    free, total = torch.cuda.mem_get_info()
    said = re.search(r"this process has ([\d.]+) ([MG])iB memory in use", str(raised.value))
    assert said, raised.value
    unit = MIB if said[2] == "M" else 1024 * MIB
    assert float(said[1]) == pytest.approx((total - free) / unit, abs=0.006)
    assert total - free > 100 * MIB
    del keep


def test_memory_is_the_drivers(nvml):
    keep = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda:1")
    free, total = torch.cuda.mem_get_info(1)
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    for memory in (nvml.nvmlDeviceGetMemoryInfo(handle), nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)):
        assert (memory.total, memory.free, memory.used) == (total, free, total - free)
    assert torch.cuda.device_memory_used(1) == total - free
    del keep


def test_processes(nvml):
    keep = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda:2")
    found = nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(2))
    free, total = torch.cuda.mem_get_info(2)
    assert [(process.pid, process.usedGpuMemory) for process in found] == [(os.getpid(), total - free)]
    assert f"process {os.getpid():>10d} uses" in torch.cuda.list_gpu_processes(2)
    assert nvml.nvmlDeviceGetGraphicsRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(2)) == []
    assert nvml.nvmlSystemGetProcessName(os.getpid())
    del keep


def test_the_same_devices(nvml):
    properties = torch.cuda.get_device_properties(3)
    handle = nvml.nvmlDeviceGetHandleByIndex(3)
    assert nvml.nvmlDeviceGetCount() == torch.cuda.device_count() == 4
    assert nvml.nvmlDeviceGetName(handle) == properties.name
    assert nvml.nvmlDeviceGetUUID(handle) == f"GPU-{properties.uuid}"
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")) == 3
    bus = nvml.nvmlDeviceGetPciInfo(handle).busId
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(bus)) == 3
    assert nvml.nvmlDeviceGetCudaComputeCapability(handle) == (properties.major, properties.minor)
    assert nvml.nvmlSystemGetDriverVersion() and nvml.nvmlSystemGetCudaDriverVersion() == 13000


def test_figures_without_a_device(nvml):
    assert torch.cuda.utilization(0) == torch.cuda.memory_usage(0) == 0
    assert torch.cuda.clock_rate(0) == 1980
    for ask in (torch.cuda.temperature, torch.cuda.power_draw):
        with pytest.raises(nvml.NVMLError_NotSupported):
            ask(0)
