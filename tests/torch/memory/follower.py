"""Compiles and loads follower.cpp, a library that follows memory through PyTorch's trace trackers."""

import ctypes
import pathlib

import torch

ACTIONS = "alloc free_requested free_completed segment_alloc segment_free segment_map segment_unmap snapshot oom annotate".split()


def compiled() -> str:
    """The path of the library."""
    import compiled

    return compiled.library(pathlib.Path(__file__).with_name("follower.cpp"))


class Follower:
    """Begins to follow at once. PyTorch cannot detach a tracker, so that each follower has a process of its own."""

    def __init__(self, path: str, early: bool) -> None:
        self._library = ctypes.CDLL(path)
        for name in ("count", "stale", "registered", "live"):
            getattr(self._library, f"follower_{name}").restype = ctypes.c_uint64
        self._library.follower_problem.restype = ctypes.c_char_p
        self._library.follower_begin(ctypes.c_bool(early))

    def register(self, segments: list) -> None:
        """Registers the segments that a snapshot shows."""
        for s in segments:
            address, size = ctypes.c_uint64(s["address"]), ctypes.c_uint64(s["total_size"])
            self._library.follower_register(s["device"], address, size, ctypes.c_bool(not s["is_expandable"]))

    def count(self, *actions: str) -> int:
        return sum(self._library.follower_count(ACTIONS.index(action)) for action in actions)

    def churn(self, threads: int, turns: int, size: int) -> None:
        """Allocates and frees at random, without Python's lock."""
        self._library.follower_churn(threads, turns, ctypes.c_uint64(size))

    def problem(self) -> str:
        """The first entry that contradicts the ones before it."""
        return self._library.follower_problem().decode()

    def is_stale(self, tensor: torch.Tensor) -> bool:
        """Says whether the memory under a tensor is not the memory that was registered."""
        storage = tensor.untyped_storage()
        return bool(self._library.follower_stale(tensor.device.index or 0, ctypes.c_uint64(storage.data_ptr()), ctypes.c_uint64(storage.nbytes())))

    def registered(self, device: int = 0) -> int:
        return self._library.follower_registered(device)

    def live(self, device: int = 0) -> int:
        return self._library.follower_live(device)
