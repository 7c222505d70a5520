"""Reads a trace (docs/traces.md) for `cenote view`: makes a history for each device of the records that native/records.py reads."""
from __future__ import annotations

from array import array
from typing import Callable, Optional
from urllib.parse import unquote

from cenote.native.records import MOST, NOT_TOLD, RECORD, A, BrokenTrace, F, Reader, S
from cenote.view.history import Broken, History

Progress = Callable[[int], None]  # called with the number of records read so far


class TraceReader:
    def __init__(self, title: str, path: str, progress: Optional[Progress] = None) -> None:
        self.title, self.path, self.progress = title, path, progress
        self.histories: dict[int, History] = {}
        self.numbers = array("L")  # the reader's number of a block -> its number in the history of its device
        self.reserved: dict[int, int] = {}  # by device, at the current record
        self.steps = self.records = 0
        self.has_address = self.has_reserved = False

    def history(self, device: int) -> History:
        if device not in self.histories:
            history = History(self.title, device)
            if not self.has_address:
                history.address = None
                history.notes.append("This trace has no column `address`: it does not tell where blocks lay.")
            if self.has_reserved:
                history.reserved = type(history.change)("q")
                history.reserved_first = self.reserved.get(device, 0)
                history.notes.append("A trace does not tell which pages lay under the blocks: a snapshot does.")
            else:
                history.notes.append("This trace does not tell what was reserved, nor which pages lay under the blocks: a snapshot does.")
            history.step(self.steps)
            for name in ("tag", "stream"):
                history.division(name)
            self.histories[device] = history
        return self.histories[device]

    def allocate(self, block: int, size: int, device: int, keys: tuple[int, int], address: int, now: float) -> None:
        history = self.history(device)
        if block >= len(self.numbers):
            self.numbers.extend([0] * (block + 1 - len(self.numbers)))
        self.numbers[block] = history.allocate(size, 0 if address == NOT_TOLD else address, now)
        for name, key in zip(("tag", "stream"), keys):
            names, numbers = history.division(name)
            numbers.append(names.number(key, f"{name} {key}"))

    def set_reserved(self, device: int, reserved: int) -> None:
        """Sets the reserved bytes of the device at this record. If the record does not tell them, the last value holds."""
        if reserved != NOT_TOLD:
            self.reserved[device] = reserved
        history = self.histories.get(device)
        if history is not None and history.reserved is not None:
            history.reserved.extend([self.reserved.get(device, 0)] * (len(history.time) - len(history.reserved)))

    def take(self, batch: memoryview) -> None:
        for t_ns, op, _, size, stream, device, tag, block, address, reserved in RECORD.iter_unpack(batch):
            if op == A:
                self.allocate(block, size, device, (tag, stream), address, t_ns / 1e3)
            elif op == F:
                self.histories[device].free(self.numbers[block], t_ns / 1e3)
            elif op == S:
                self.steps += 1
                for history in self.histories.values():
                    history.step()
            if self.has_reserved:
                self.set_reserved(device, reserved)

    def read(self) -> list[History]:
        try:
            with Reader(self.path, self.title, MOST) as reader:
                for batch in reader.batches():
                    self.has_address, self.has_reserved = reader.tells("address"), reader.tells("reserved")
                    self.take(batch)
                    self.records += len(batch) // RECORD.size
                    if self.progress is not None:
                        self.progress(self.records)
                for history in self.histories.values():
                    self.finish(history, reader)
        except BrokenTrace as problem:
            raise Broken(str(problem)) from None
        if not self.histories:
            raise Broken(f"{self.title}: there is no allocation in it")
        return [self.histories[device] for device in sorted(self.histories)]

    def finish(self, history: History, reader: Reader) -> None:
        names = history.division("tag")[0]
        labels = {tag: label for tag in names.numbers if (label := reader.label(tag)) is not None}
        if labels and 0 in names.numbers:
            names.rename(0, "no tag")
        for tag, label in labels.items():
            names.rename(tag, unquote(label))
        history.divide_by_size()
        history.drop_plain_divisions()
