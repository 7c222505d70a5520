"""Shared by the tests of labels: fixtures, and functions that read the figures of the package."""

import sys

import pytest
import torch

import simulated

sys.path.insert(0, str(simulated.ROOT / "python"))
MIB = 1 << 20
only_cenote = pytest.mark.skipif(not simulated.allocator(), reason="CENOTE_TEST_ALLOCATOR is not cenote")


@pytest.fixture
def cenote():
    """The package, with a GPU in use. Labels are off before and after each test."""
    import cenote

    torch.empty(1, device="cuda")
    cenote.label(False)
    yield cenote
    cenote.label(False)


@pytest.fixture
def labels(cenote):
    cenote.label()
    return cenote


def block(size: int, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def rounded(*tensors) -> int:
    """Allocated bytes of the storages under the tensors; each storage counts once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum((size + 511) // 512 * 512 for at, size in storages.items() if at)


def by(division: str, device=None) -> dict:
    import cenote

    return {row.name: row.live for row in cenote.rows(division, device)}


def kinds(device=None) -> dict:
    return {name: live for name, live in by("kind", device).items() if live}


def phase_of(tensor) -> str:
    """The phase in which the block under a tensor was allocated."""
    from cenote.native import bindings

    at = tensor.untyped_storage().data_ptr()
    piece = next(piece for piece in bindings.pieces(tensor.device) if piece.address == at)
    return bindings.phases()[piece.phase]


def kind_of(tensor) -> str:
    from cenote.native import bindings

    at = tensor.data_ptr()
    piece = next(piece for piece in bindings.pieces(tensor.device) if piece.address <= at < piece.address + piece.size)
    return bindings.kinds()[piece.kind]


def phase_now() -> str:
    from cenote.native import bindings

    return bindings.phases()[bindings.function("cenote_phase_now")()]


class Spy(torch.nn.Module):
    """Keeps the phases in which it was called."""

    def __init__(self):
        super().__init__()
        self.phases = []

    def forward(self, x):
        self.phases.append(phase_now())
        return x
