"""Tests of the simulated GPU through the real PyTorch. If the simulated libraries are not loaded, pytest starts itself again with them.

Every test ends with the GPU as it found it, and without a violation of CUDA's rules, unless it is marked `violates`.
"""

import gc
import os
import re
import sys

import pytest

import simulated


def pytest_configure(config):
    config.addinivalue_line("markers", "violates: breaks a rule of CUDA on purpose")
    config.addinivalue_line("markers", "adapter(reason): cenote cannot do this without its adapter, as docs/pytorch.md says")
    if simulated.is_loaded():
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture:
        capture.stop_global_capturing()
    os.execve(sys.executable, [sys.executable, "-m", "pytest", *config.invocation_params.args], simulated.environment())


LAST = ("test_captures_fail.py", "test_pool_lives.py")  # after these, PyTorch's own allocator keeps some of the pools that they misused


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name in LAST)
    if not simulated.allocator():
        return
    for item in items:
        mark = item.get_closest_marker("native")
        if item.path.name == "test_async_backend.py":
            item.add_marker(pytest.mark.skip(reason="judges another allocator of PyTorch's"))
        elif mark:
            item.add_marker(pytest.mark.skip(reason=f"PyTorch's own allocator: {mark.args[0]}"))
        needs = item.get_closest_marker("adapter")
        if needs and is_fallback():
            item.add_marker(pytest.mark.skip(reason=f"no adapter: {needs.args[0]}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Without an adapter, what PyTorch's interface for any allocator does not have is a reason to skip. And the last error is forgotten: it holds the
    tensors of the test, the fixtures would freeze that cycle, and the tests after it would run out of memory."""
    report = yield
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    said = str(call.excinfo.value) if report.failed and is_fallback() else ""
    lacks = re.search(r"does not yet support (\w+)|(needs the adapter)", said)
    if lacks and "terminate called" not in said:  # a process that ends by it has no error that its program could meet
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: no adapter: {lacks[1] or lacks[2]}")
    return report


def is_fallback():
    return simulated.allocator().get("CENOTE") == "fallback"


@pytest.fixture(scope="session", autouse=True)
def allocator():
    """PyTorch uses the allocator that CENOTE_TEST_ALLOCATOR names: otherwise every test would judge another one."""
    torch = pytest.importorskip("torch")
    assert torch.cuda.get_allocator_backend() == simulated.backend(), "CENOTE=on has no effect in this Python: cenote.pth is not installed"


@pytest.fixture(scope="session")
def sim():
    return simulated.Hand()


imported = 0


def collect():
    """Collects garbage after each test. Objects of modules that were imported are frozen, so that not every collection walks all of PyTorch."""
    global imported
    gc.collect()
    if len(sys.modules) > imported + 100:
        imported = len(sys.modules)
        gc.freeze()


@pytest.fixture(autouse=True)
def gpu(sim, request):
    torch = pytest.importorskip("torch")
    before = sim.books().violations
    yield
    sim.set_lag(0)
    for device in range(torch.cuda.device_count()):
        sim.set_foreign(device, 0)
    torch.cuda.set_per_process_memory_fraction(1.0)
    collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if not is_fallback():  # which has no figures
        for device in range(torch.cuda.device_count()):
            torch.cuda.memory_reserved(device)  # cenote defers a trim that follows others like steps until a figure is read: not in the next test
        torch.cuda.reset_peak_memory_stats()
    if "violates" not in request.keywords:
        assert sim.books().violations == before, sim.last_violation()
