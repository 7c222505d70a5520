"""Reads the pickle that torch.cuda.memory._dump_snapshot writes, for `cenote view` and `cenote replay`, and writes one. Needs no torch and trusts no
file.

A pickle can name any function to be called while it is read. This reader refuses every name, so that only dictionaries, lists, tuples, strings
and numbers come out. It checks that the two lists of a snapshot are there; the caller checks their elements.
"""
from __future__ import annotations

import pickle
from typing import IO, Any, NoReturn

from cenote.base.inputs import Bounded, TooMuch
from cenote.base.mistake import Mistake

PROTOCOL = 4  # that PyTorch's memory_viz opens; Python 3.14 writes 5 by default
LIVE_STATES = ("active_allocated", "active_awaiting_free", "active_pending_free")  # of the blocks in `segments`
# Events in `device_traces`: PyTorch takes memory from the driver, or gives memory back.
SEGMENT_GROWS, SEGMENT_SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


def dump(snapshot: Any, file: IO[bytes]) -> None:
    pickle.dump(snapshot, file, protocol=PROTOCOL)


class BrokenPickle(Mistake):
    """The file is not a memory snapshot of PyTorch; the text says why, in one line."""


class Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {ascii(f'{module}.{name}'[:80])}, and a snapshot has only dictionaries, lists, strings and numbers")

    def persistent_load(self, number: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to an object outside the file")


def load(title: str, file: IO[bytes]) -> dict[str, Any]:
    """A dictionary with at least the lists `segments` and `device_traces`. `title` is the file's name in messages."""
    try:
        snapshot = Reader(Bounded(file)).load()
    except TooMuch as problem:
        raise BrokenPickle(f"{title}: a snapshot of {problem}; record fewer events (max_entries), without stacks (stacks='python', context=None)") \
            from None
    except (OSError, MemoryError) as problem:
        raise BrokenPickle(f"{title} cannot be read: {problem or 'there is not enough host memory'}") from None
    except Exception as problem:  # a damaged pickle can raise any exception
        raise BrokenPickle(f"{title} is damaged or no memory snapshot of PyTorch: {type(problem).__name__}: "
                           f"{' '.join(str(problem).split())[:200]}") from None
    if not isinstance(snapshot, dict) or not all(isinstance(snapshot.get(name), list) for name in ("segments", "device_traces")):
        raise BrokenPickle(f"{title} is no memory snapshot of PyTorch: the lists device_traces and segments are missing")
    return snapshot
