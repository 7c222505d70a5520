"""The boards of processes with cenote: memory that libcenote writes its counters into, and that this reads (base/board.c, stats/report/board.c).

    /proc/PID/fd/N -> "/memfd:cenote-board (deleted)": a head of text, which says where everything lies, then a slot for each pool

Whoever may look at a process's open files may read its board: its user, and root. The process makes no call for it. A board is the input of
another process: what does not fit its own head, is too long, or says nothing that can be printed is passed by. What the head has beyond what is
read here is of another version, and is passed by, too.
"""
from __future__ import annotations

import os
import struct
from contextlib import suppress
from typing import Iterator, Mapping, NamedTuple, Optional

NAME = "cenote-board"
LINK = f"/memfd:{NAME} (deleted)"
HEAD_MAX, SLOT_MAX, SLOTS_MAX = 65536, 1 << 20, 4096
ROWS_MAX = 1024
SIZES = {"u8": "B", "u32": "I", "i32": "i", "u64": "Q", "count": "Q", "figure": "Q"}
TRIES = 3  # to read a slot while no answer is being written into it


class Level(NamedTuple):
    current: int
    peak: int
    total_in: int
    total_out: int


class Row(NamedTuple):
    name: str
    current: int
    peak: int
    reserved: int
    blocks: int


class Note(NamedTuple):
    """What a step left behind."""

    step: int
    ns: int
    live: int
    reserved: int
    peak: int


class Place(NamedTuple):
    """A board, as it was found."""

    pid: int
    number: int  # in that process
    inode: int


class Pool(NamedTuple):
    """A pool of a process at one moment. A number is as the process wrote it last; of two, one may be a block older."""

    place: Place
    slot: int
    numbers: Mapping[str, int]  # by name: "serial", "limit", "waits", "asleep", ...
    figures: Mapping[str, int]  # as of the last answer to a wish
    levels: Mapping[str, Level]
    texts: Mapping[str, str]
    kinds: tuple[Row, ...]
    phases: tuple[Row, ...]
    tags: tuple[Row, ...]  # as of the last answer, the largest
    groups: tuple[Row, ...]
    notes: tuple[Note, ...]  # of the last steps, the oldest first

    def current(self, level: str) -> int:
        return self.levels[level].current if level in self.levels else 0

    def peak(self, level: str) -> int:
        return self.levels[level].peak if level in self.levels else 0


class Field(NamedTuple):
    what: str
    name: str
    at: int
    size: int


class Head(NamedTuple):
    pid: int
    first: int
    slot: int
    rows: int
    kept_steps: int
    wishes: Mapping[str, int]
    fields: tuple[Field, ...]

    def find(self, what: str, name: str) -> Optional[Field]:
        return next((field for field in self.fields if (field.what, field.name) == (what, name)), None)


def printable(raw: bytes) -> str:
    text = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def read_head(raw: bytes) -> Optional[Head]:
    """None: it is no board that can be read."""
    lines = raw.split(b"\0", 1)[0].decode("ascii", "replace").split("\n")
    if lines[0] != f"{NAME} 1":
        return None
    found: dict[str, list[str]] = {}
    fields: list[Field] = []
    try:
        for line in lines[1:]:
            what, _, rest = line.partition(" ")
            words = rest.split(" ")
            if what in ("pid", "slots", "kept_rows", "kept_steps", "wishes", "version"):
                found[what] = words
            elif len(words) >= 3:
                fields.append(Field(what, printable(" ".join(words[:-2]).encode()), int(words[-2]), int(words[-1])))
        wishes = {name: int(value) for name, value in (wish.split("=") for wish in found["wishes"])}
        head = Head(int(found["pid"][0]), int(found["slots"][0]), int(found["slots"][1]), int(found["kept_rows"][0]), int(found["kept_steps"][0]),
                    wishes, tuple(fields))
    except (KeyError, ValueError, IndexError):
        return None
    fits = 0 < head.first <= HEAD_MAX and 0 < head.slot <= SLOT_MAX and 0 <= head.rows <= ROWS_MAX and 0 < head.kept_steps <= ROWS_MAX
    return head if fits and all(field.at >= 0 and 0 <= field.size and field.at + field.size <= head.slot for field in fields) else None


def row_of(name: str, raw: bytes, at: int) -> Row:
    """Of struct row (pool/core/row.h)."""
    current, peak, _, blocks = struct.unpack_from("=4Q", raw, at)
    return Row(name, current, peak, 0, blocks)


def listed(head: Head, raw: bytes, field: Field, count: int) -> Iterator[Row]:
    """Of struct board_row (stats/account/board.h): a name, and four numbers."""
    for place in range(min(count, head.rows)):
        at = field.at + place * field.size
        name = printable(raw[at:at + field.size - 32])
        yield Row(name, *struct.unpack_from("=4Q", raw, at + field.size - 32))


def noted(head: Head, raw: bytes, field: Field, steps: int) -> Iterator[Note]:
    kept = min(steps, head.kept_steps)
    for step in range(steps - kept, steps):
        note = Note(*struct.unpack_from("=5Q", raw, field.at + step % head.kept_steps * field.size))
        if note.step == step + 1:  # else it is being written, or of the time before
            yield note


def read_slot(place: Place, slot: int, head: Head, raw: bytes) -> Pool:
    """struct.error: the head says what is not there."""
    numbers: dict[str, int] = {}
    figures: dict[str, int] = {}
    levels: dict[str, Level] = {}
    texts: dict[str, str] = {}
    kinds: list[Row] = []
    phases: list[Row] = []
    lists: dict[str, tuple[Row, ...]] = {}
    for what, name, at, size in head.fields:
        if what in SIZES:
            into = figures if what == "figure" else numbers
            into[name] = struct.unpack_from("=" + SIZES[what], raw, at)[0]
        elif what == "level":
            levels[name] = Level(*struct.unpack_from("=4Q", raw, at))
        elif what == "text":
            texts[name] = printable(raw[at:at + size])
        elif what == "kind":
            kinds.append(row_of(name, raw, at))
        elif what == "phase":
            phases.append(row_of(name, raw, at))
        elif what == "rows" and size > 32:
            lists[name] = tuple(listed(head, raw, Field(what, name, at, size), numbers.get(name, 0)))
    notes = head.find("notes", "steps")
    steps = tuple(noted(head, raw, notes, numbers.get("steps", 0))) if notes else ()
    labelled = bool(numbers.get("is_labelled"))
    return Pool(place, slot, numbers, figures, levels, texts, tuple(kinds) if labelled else (), tuple(phases) if labelled else (),
                lists.get("tags", ()), lists.get("groups", ()), steps)


def settled(file: int, head: Head, slot: int) -> Optional[bytes]:
    """The bytes of a slot, if it can be while no answer is being written."""
    answers = head.find("u32", "answers")
    for _ in range(TRIES):
        raw = os.pread(file, head.slot, head.first + slot * head.slot)
        if len(raw) < head.slot or answers is None:
            return None
        again = os.pread(file, 4, head.first + slot * head.slot + answers.at)
        if not raw[answers.at] & 1 and again == raw[answers.at:answers.at + 4]:
            return raw
    return raw


def pid_inside(pid: int) -> int:
    """What the process takes its number to be, where it is in a container with numbers of its own."""
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return pid


def open_board(place: Place, flags: int) -> int:
    """OSError: it is not there any more."""
    file = os.open(f"/proc/{place.pid}/fd/{place.number}", flags | os.O_CLOEXEC)
    if os.fstat(file).st_ino != place.inode:
        os.close(file)
        raise FileNotFoundError(place.pid)
    return file


def read(place: Place) -> list[Pool]:
    """The pools on a board. Empty: it is gone, or another process's, or no board."""
    found: list[Pool] = []
    try:
        file = open_board(place, os.O_RDONLY)
    except OSError:
        return found
    with suppress(OSError, struct.error, ValueError):
        try:
            head = read_head(os.pread(file, HEAD_MAX, 0))
            if head is None or head.pid != pid_inside(place.pid):  # a child of fork has its parent's
                return found
            for slot in range(min((os.fstat(file).st_size - head.first) // head.slot, SLOTS_MAX)):
                raw = settled(file, head, slot)
                pool = read_slot(place, slot, head, raw) if raw else None
                if pool and pool.numbers.get("serial"):
                    found.append(pool)
        finally:
            os.close(file)
    return found


def boards_of(pid: int) -> Iterator[Place]:
    """OSError: the process is gone, or another user's."""
    folder = f"/proc/{pid}/fd"
    for number in os.listdir(folder):
        with suppress(OSError):
            link = f"{folder}/{number}"
            if os.readlink(link) == LINK:
                yield Place(pid, int(number), os.stat(link).st_ino)


def find() -> Iterator[Place]:
    """All boards that this user may read."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                yield from boards_of(int(name))


def write(pool: Pool, what: str, name: str, value: bytes) -> bool:
    """Into the slot of a pool that is there still. False: the board is gone, or has no such thing."""
    with suppress(OSError, ValueError):
        file = open_board(pool.place, os.O_RDWR)
        try:
            head = read_head(os.pread(file, HEAD_MAX, 0))
            field = head.find(what, name) if head else None
            serial = head.find("u32", "serial") if head else None
            if head and field and serial and len(value) <= field.size and 0 <= field.at <= head.slot - field.size:
                begin = head.first + pool.slot * head.slot
                same = os.pread(file, 4, begin + serial.at) == struct.pack("=I", pool.numbers["serial"])
                return same and os.pwrite(file, value, begin + field.at) == len(value)
        finally:
            os.close(file)
    return False


def wish(pool: Pool, what: str, path: str = "") -> bool:
    """The process does it at its next call that allocates or ends a step: "refresh", "trim" or "snapshot" into a file."""
    with suppress(OSError, ValueError):
        file = open_board(pool.place, os.O_RDONLY)
        try:
            head = read_head(os.pread(file, HEAD_MAX, 0))
        finally:
            os.close(file)
        if head and what in head.wishes and (not path or write(pool, "text", "path", os.fsencode(path) + b"\0")):
            return write(pool, "u32", "wished", struct.pack("=I", head.wishes[what] | head.wishes.get("refresh", 0)))
    return False


def forget_peaks(pool: Pool) -> None:
    """From now on peak_allocated and peak_reserved are what comes."""
    for name in ("peak_allocated", "peak_reserved"):
        write(pool, "u64", name, bytes(8))
