"""Reads a trace (docs/traces.md) for `cenote view`: a history for each device. What stats/records/reader.c refuses is refused here too."""
from __future__ import annotations

from typing import IO, Callable, Optional
from urllib.parse import unquote

from cenote.viewing_history import Broken, History

MOST = {"id": 1 << 54, "bytes": 1 << 63, "stream": 1 << 16, "device": 64, "tag": 1 << 16, "address": 1 << 63, "reserved": 1 << 63}
LONGEST_LINE = 1 << 16


class TraceReader:
    def __init__(self, title: str, file: IO[bytes]) -> None:
        self.title, self.file, self.line = title, file, 0
        self.histories: dict[int, History] = {}
        self.live: dict[int, tuple[History, int]] = {}  # id -> where its block is
        self.labels: dict[int, str] = {}
        self.reserved: dict[int, int] = {}  # by device, where the reader is
        self.steps = 0
        self.last = 0.0
        self.columns: list[str] = []
        self.at: dict[str, int] = {}

    def fail(self, reason: str) -> Broken:
        return Broken(f"{self.title}:{self.line}: {reason}")

    def next_line(self) -> Optional[list[bytes]]:
        line = self.file.readline(LONGEST_LINE)
        if not line:
            return None
        self.line += 1
        if len(line) == LONGEST_LINE:
            raise self.fail("a line that does not end")
        return line.rstrip(b"\r\n").split(b",")

    def read_columns(self) -> None:
        fields = self.next_line() or [b""]
        self.columns = [field.decode("utf-8", "replace") for field in fields]
        self.at = {name: i for i, name in enumerate(self.columns)}
        for name in ("t_us", "op", "id", "bytes"):
            if name not in self.at:
                raise self.fail(f"no column {name}, so that it is no trace; docs/traces.md says what one is")
        if len(self.at) != len(self.columns):
            raise self.fail("two columns of one name")

    def number(self, fields: list[bytes], name: str, default: Optional[int] = 0) -> int:
        i = self.at.get(name)
        text = fields[i] if i is not None else b""
        if not text and default is not None:
            return default
        if not text.isdigit() or len(text) > 20 or int(text) >= MOST[name]:
            raise self.fail(f"{name} is {text[:40].decode('ascii', 'backslashreplace')!r}, which is no number that it can be")
        return int(text)

    def time(self, fields: list[bytes]) -> float:
        text = fields[self.at["t_us"]]
        if not text.replace(b".", b"", 1).isdigit():
            raise self.fail(f"t_us is {text[:40].decode('ascii', 'backslashreplace')!r}, which is no time")
        now = float(text)
        if now < self.last:
            raise self.fail("time goes back")
        self.last = now
        return now

    def history(self, device: int) -> History:
        if device not in self.histories:
            history = History(self.title, device)
            if "address" not in self.at:
                history.address = None
                history.notes.append("This trace has no column address: it does not tell where blocks lay.")
            if "reserved" in self.at:
                history.reserved = type(history.change)("q")
                history.reserved_first = self.reserved.get(device, 0)
                history.notes.append("A trace does not tell which pages lay under the blocks: a snapshot does.")
            else:
                history.notes.append("This trace does not tell what was reserved, nor which pages lay under the blocks: a snapshot does.")
            history.steps.extend([0] * self.steps)
            for name in ("tag", "stream"):
                history.division(name)
            self.histories[device] = history
        return self.histories[device]

    def allocate(self, fields: list[bytes], now: float) -> None:
        number, size = self.number(fields, "id", None), self.number(fields, "bytes", None)
        if not size:
            raise self.fail("an allocation of 0 bytes")
        if number in self.live:
            raise self.fail(f"id {number} is allocated while it is live")
        history = self.history(self.number(fields, "device"))
        tag, stream = self.number(fields, "tag"), self.number(fields, "stream")
        if "label" in self.at and tag not in self.labels and fields[self.at["label"]]:
            self.labels[tag] = unquote(fields[self.at["label"]].decode("utf-8", "replace"))
        block = history.allocate(size, self.number(fields, "address"), now)
        for name, key in (("tag", tag), ("stream", stream)):
            names, numbers = history.division(name)
            numbers.append(names.number(key, f"{name} {key}"))
        self.live[number] = (history, block)

    def hold(self, fields: list[bytes]) -> None:
        """What the pool of the device held from the driver when this was recorded; nothing said: as before."""
        device = self.number(fields, "device")
        if fields[self.at["reserved"]]:
            self.reserved[device] = self.number(fields, "reserved")
        history = self.histories.get(device)
        if history is not None and history.reserved is not None:
            history.reserved.extend([self.reserved.get(device, 0)] * (len(history.time) - len(history.reserved)))

    def find(self, fields: list[bytes]) -> tuple[History, int, int]:
        number = self.number(fields, "id", None)
        if number not in self.live:
            raise self.fail(f"id {number} is not live")
        history, block = self.live[number]
        size = self.number(fields, "bytes")
        if size and size != history.size[block]:
            raise self.fail(f"id {number} has {history.size[block]} bytes, not {size}")
        if self.number(fields, "device", history.device) != history.device:
            raise self.fail(f"id {number} is of another device")
        return history, block, number

    def free(self, fields: list[bytes], now: float) -> None:
        history, block, number = self.find(fields)
        history.free(block, now)
        del self.live[number]

    def use(self, fields: list[bytes], now: float) -> None:
        self.find(fields)

    def step(self, fields: list[bytes], now: float) -> None:
        self.steps += 1
        for history in self.histories.values():
            history.steps.append(len(history.time))

    def read(self) -> list[History]:
        self.read_columns()
        does: dict[bytes, Callable[[list[bytes], float], None]] = {b"a": self.allocate, b"f": self.free, b"u": self.use, b"s": self.step}
        op = self.at["op"]
        while (fields := self.next_line()) is not None:
            if len(fields) != len(self.columns):
                raise self.fail(f"{len(fields)} fields, where the first line has {len(self.columns)}")
            if fields[op] not in does:
                raise self.fail(f"op is {fields[op][:40].decode('ascii', 'backslashreplace')!r}, which is none of a, f, u, s")
            does[fields[op]](fields, self.time(fields))
            if "reserved" in self.at:
                self.hold(fields)
        if not self.histories:
            raise Broken(f"{self.title} has no allocation in it: there is nothing to draw")
        for history in self.histories.values():
            self.finish(history)
        return [self.histories[device] for device in sorted(self.histories)]

    def finish(self, history: History) -> None:
        names = history.division("tag")[0]
        if self.labels and 0 in names.numbers:
            names.rename(0, "no tag")
        for tag, label in self.labels.items():
            if tag in names.numbers:
                names.rename(tag, label)
        history.divide_by_size()
        history.forget_what_divides_nothing()
