"""Tests of torch.cuda's memory as its documentation promises it. PyTorch's own allocator passes them; any other has to.

A test that only the native allocator can pass is marked `native`, with the reason.
"""

import gc

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "native(reason): judges what the native allocator does, not what the documentation promises")


@pytest.fixture(scope="module", autouse=True)
def processes():
    """A module's processes end with it, but for the ones that fork for each test."""
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
    """Whatever a test allocates is free again when it ends."""
    import torch

    import contents  # not before this process has the simulated libraries

    before = [torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count())]
    yield
    torch.cuda.set_stream(torch.cuda.default_stream())  # a capture that fails leaves its own behind
    contents.let_go()
    gc.freeze()  # what is left stays: the next collection need not walk all of PyTorch again
    assert all(torch.cuda.memory_allocated(device) <= then for device, then in enumerate(before))
