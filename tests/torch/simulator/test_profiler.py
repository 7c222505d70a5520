"""torch.profiler with CUDA activity: it runs, shows the memory of the program, and no kernels."""

import json

import pytest

torch = pytest.importorskip("torch")
from torch.profiler import ProfilerActivity, profile, record_function, schedule  # noqa: E402  (needs torch)

WIDTH = 256
BATCH = 64


def train(module, optimizer):
    module(torch.empty(BATCH, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def step():
    module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10)).cuda()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return lambda: train(module, optimizer)


def profiled(step, **options):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True, **options) as profiler:
        with record_function("a step"):
            step()
        torch.cuda.synchronize()
    return profiler


def memory_events(path):
    return [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == "[memory]"]


@pytest.mark.adapter("memory in the profiler")
def test_memory_events_are_in_the_trace(step, tmp_path):
    profiler = profiled(step)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    on_gpu = [event["args"] for event in memory_events(tmp_path / "trace.json") if event["args"]["Device Type"] == 1]
    assert on_gpu[0]["Bytes"] > 0
    assert any(args["Bytes"] == BATCH * WIDTH * 4 for args in on_gpu)
    assert any(args["Bytes"] == -BATCH * WIDTH * 4 for args in on_gpu)
    assert all(args["Total Allocated"] <= args["Total Reserved"] for args in on_gpu)
    assert max(args["Total Reserved"] for args in on_gpu) == torch.cuda.memory_reserved()


@pytest.mark.adapter("memory in the profiler")
def test_operators_know_their_memory_and_have_no_device_time(step):
    averages = {event.key: event for event in profiled(step, record_shapes=True).key_averages()}
    assert averages["a step"].count == 1
    assert averages["aten::empty"].self_device_memory_usage >= BATCH * WIDTH * 4
    assert averages["aten::addmm"].count == 2
    assert all(event.self_device_time_total == 0 for event in averages.values())


@pytest.mark.adapter("memory in the profiler")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_memory_timeline(step, tmp_path):
    profiler = profiled(step, record_shapes=True, with_stack=True)
    profiler.export_memory_timeline(str(tmp_path / "memory.json"), device="cuda:0")
    times, sizes = json.loads((tmp_path / "memory.json").read_text())
    assert len(times) == len(sizes) > 10
    assert max(sum(row) for row in sizes) >= BATCH * WIDTH * 4


def test_schedule_and_a_second_profiler(step, tmp_path):
    """Two profilers one after the other, with a schedule of steps, enable and disable the interface many times."""
    traces = []
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=lambda profiler: traces.append(len(profiler.events())),
    ) as profiler:
        for _ in range(8):
            step()
            profiler.step()
    assert len(traces) == 2 and all(traces)
    assert len(profiled(step).events()) > 10
