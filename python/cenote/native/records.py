"""Reads traces (docs/traces.md) in batches by libcenote_records.so, for `cenote replay` and `cenote view`."""
from __future__ import annotations

import ctypes
import os
import struct
from typing import Iterator, Optional

from cenote import places
from cenote.base.mistake import Mistake

# struct record of stats/records/records.h: t_ns, op, id, bytes, stream, device, tag, block, address, reserved
RECORD = struct.Struct("<QI4xQQIIIIQQ")
Record = tuple[int, int, int, int, int, int, int, int, int, int]
A, F, U, S = b"afus"
NOT_TOLD = (1 << 64) - 1
BATCH = 1 << 14
END, ONE, BROKEN = range(3)  # enum records_result
MOST = 20_000_000  # records of a file; TRACE_RECORDS_MAX of records.h
MOST_DEVICES = 16  # of the simulated machine, on which a trace is replayed


class BrokenTrace(Mistake):
    """The file is no trace, or a broken one; the text says where and why, in one line."""


def library() -> ctypes.CDLL:
    found = ctypes.CDLL(places.records_library())
    found.records_open.restype, found.records_open.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    found.records_limit.restype, found.records_limit.argtypes = None, [ctypes.c_void_p, ctypes.c_uint64]
    found.records_batch.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32)]
    found.records_tell.restype, found.records_tell.argtypes = ctypes.c_bool, [ctypes.c_void_p, ctypes.c_char_p]
    found.records_label.restype, found.records_label.argtypes = ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_uint32]
    found.records_message.restype, found.records_message.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    found.records_close.restype, found.records_close.argtypes = None, [ctypes.c_void_p]
    return found


class Reader:
    """A trace. `title` is its name in messages."""

    def __init__(self, path: str, title: Optional[str] = None, most: int = MOST) -> None:
        self.path, self.title = path, path if title is None else title
        self.library = library()
        self.reader = self.library.records_open(os.fsencode(path))
        if not self.reader:
            raise BrokenTrace(f"{self.title}: there is not enough host memory to read it")
        self.library.records_limit(self.reader, most)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.library.records_close(self.reader)

    def batches(self) -> Iterator[memoryview]:
        """Bytes for RECORD.iter_unpack. If a record is broken: BrokenTrace, after the last good one."""
        room, count, got = ctypes.create_string_buffer(BATCH * RECORD.size), ctypes.c_uint32(), ONE
        while got == ONE:
            got = self.library.records_batch(self.reader, room, BATCH, ctypes.byref(count))
            yield memoryview(room)[:count.value * RECORD.size]
        if got == BROKEN:
            said = os.fsdecode(self.library.records_message(self.reader))
            raise BrokenTrace(self.title + said.removeprefix(self.path))

    def tells(self, column: str) -> bool:
        """Whether the trace has this column. To be called after the first batch."""
        return bool(self.library.records_tell(self.reader, column.encode()))

    def label(self, tag: int) -> Optional[str]:
        """The name of a tag as the file has it; None if no line so far has one."""
        found: Optional[bytes] = self.library.records_label(self.reader, tag)
        return None if found is None else found.decode("utf-8", "replace")
