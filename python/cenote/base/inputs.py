"""Opens the files that `cenote view` and `cenote replay` read, and tells their kind: a trace, JSON (a snapshot of a pool), a memory snapshot of
PyTorch, a page, a log of RMM.

The kind is known by the first bytes, not by the name; each kind may be plain or gzip. A pipe is copied to a file first, because it can be read only
once.
"""
from __future__ import annotations

import gzip
import io
import os
import stat
import tempfile
import zlib
from contextlib import contextmanager
from typing import IO, Iterator, NamedTuple, cast

TRACE, JSON, PYTORCH, PAGE, RMM = "trace", "json", "pytorch", "page", "rmm"
RMM_HEAD = b"Thread,Time,Action,Pointer,Size,Stream"  # of a log of RMM
MOST_BYTES = 4 << 30  # of a pipe, and of a snapshot after gunzip, which has to be in memory as a whole


class TooMuch(ValueError):
    """The file is too large; the text says what the limit is."""


class Bounded:
    """A file for an unpickler, which raises TooMuch after MOST_BYTES. It counts bytes after gunzip: a small gzip file may become large."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.left = file, MOST_BYTES
        self.took(b"", os.fstat(file.fileno()).st_size)

    def took(self, data: bytes, ahead: int = 0) -> bytes:
        self.left -= len(data)
        if self.left < ahead:
            raise TooMuch(f"more than {MOST_BYTES >> 30} GiB")
        return data

    def read(self, size: int = -1) -> bytes:
        return self.took(self.file.read(size if 0 <= size <= self.left else self.left + 1))

    def readline(self, size: int = -1) -> bytes:
        return self.took(self.file.readline(size if 0 <= size <= self.left else self.left + 1))


class Input(NamedTuple):
    kind: str
    path: str  # of the plain file or its copy, for readers that open it themselves
    file: io.BufferedReader  # at its start, after gunzip


def copied(raw: IO[bytes]) -> IO[bytes]:
    copy, bounded = tempfile.TemporaryFile(), Bounded(raw)
    while part := bounded.read(1 << 20):
        copy.write(part)
    copy.seek(0)
    return copy


def kind_of(file: io.BufferedReader) -> str:
    """A broken or empty file counts as a trace: the reader of traces says what is wrong."""
    try:
        start = file.peek(1)[:256]
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return TRACE
    if start[:1] == b"\x80":  # how pickles begin
        return PYTORCH
    first = start.lstrip()
    if first.startswith(RMM_HEAD):
        return RMM
    return JSON if first[:1] == b"{" else PAGE if first[:14].lower() == b"<!doctype html" else TRACE


@contextmanager
def opened(path: str) -> Iterator[Input]:
    """OSError, EOFError, zlib.error or TooMuch, here or while the file is read."""
    with open(path, "rb") as given:
        is_plain = stat.S_ISREG(os.fstat(given.fileno()).st_mode)
        with given if is_plain else copied(given) as raw:
            buffered = cast(io.BufferedReader, raw)
            zipped = buffered.peek(2)[:2] == b"\x1f\x8b"
            file = cast(io.BufferedReader, io.BufferedReader(gzip.GzipFile(fileobj=buffered), 1 << 16) if zipped else buffered)
            yield Input(kind_of(file), path if is_plain else f"/proc/self/fd/{raw.fileno()}", file)
