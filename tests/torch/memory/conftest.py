"""Tests of what the documentation of torch.cuda promises about memory. PyTorch's own allocator passes them, and any other allocator has to.

A test that only the native allocator can pass is marked `native`, with the reason.
"""

import gc

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "native(reason): judges what the native allocator does, not what the documentation promises")


@pytest.fixture(scope="module", autouse=True)
def processes():
    """Ends the processes of a module with the module, except those that fork for each test."""
    import elsewhere

    yield
    elsewhere.end_all(but_alone=True)


@pytest.fixture(scope="session", autouse=True)
def all_processes():
    import elsewhere

    yield
    elsewhere.end_all()


@pytest.fixture(autouse=True)
def memory(gpu):
    """Checks that a test has freed at its end what it allocated."""
    import torch

    import contents  # only now: at the top it would load PyTorch before pytest has started itself again

    has_statistics = torch.cuda.get_allocator_backend() != "pluggable"
    before = [torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()) if has_statistics]
    yield
    torch.cuda.set_stream(torch.cuda.default_stream())  # a capture that fails leaves its own stream current
    contents.let_go()
    gc.freeze()  # the next collection need not walk all of PyTorch again
    assert all(torch.cuda.memory_allocated(device) <= then for device, then in enumerate(before))
