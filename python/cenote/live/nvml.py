"""What NVIDIA's management library says of the cards: their memory, and which processes hold how much of it. It starts no driver.

Read through its C functions by ctypes, because a view needs five of them. None stands for what it does not say: a figure that is not known is
not zero.
"""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional

NOT_KNOWN = (1 << 64) - 1  # what a process holds, where the library may not say
INSUFFICIENT_SIZE = 7
TEXT = 96


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


class Bus(ctypes.Structure):
    _fields_ = [("short_id", ctypes.c_char * 16), ("domain", ctypes.c_uint), ("bus", ctypes.c_uint), ("device", ctypes.c_uint),
                ("kind", ctypes.c_uint), ("subsystem", ctypes.c_uint), ("id", ctypes.c_char * 32)]


class Card(NamedTuple):
    number: int
    uuid: str
    name: str
    bus: tuple[int, int, int]
    total: int
    used: int
    processes: dict[int, Optional[int]]  # bytes, by pid


def bus_of(text: str) -> Optional[tuple[int, int, int]]:
    """Of "0000:1B:00.0", as the driver writes it. None: it is none."""
    try:
        domain, bus, device = text.split(":")
        return int(domain, 16), int(bus, 16), int(device.partition(".")[0], 16)
    except ValueError:
        return None


class Library:
    def __init__(self, name: str = "libnvidia-ml.so.1") -> None:
        """OSError: there is none, or it does not start."""
        self.library = ctypes.CDLL(name)
        if self.library.nvmlInit_v2():
            raise OSError("nvmlInit_v2")

    def text(self, call: str, handle: Any) -> str:
        room = ctypes.create_string_buffer(TEXT)
        return room.value.decode("ascii", "replace") if not getattr(self.library, call)(handle, room, ctypes.c_uint(TEXT)) else ""

    def processes(self, handle: Any) -> dict[int, Optional[int]]:
        call = getattr(self.library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        room = 64
        while call is not None:
            count, list_ = ctypes.c_uint(room), (Process * room)()
            result = call(handle, ctypes.byref(count), list_)
            if not result:
                return {one.pid: None if one.bytes == NOT_KNOWN else one.bytes for one in list_[:count.value]}
            if result != INSUFFICIENT_SIZE or room > 1 << 16:
                break
            room *= 4
        return {}

    def card(self, index: int) -> Optional[Card]:
        handle, memory, bus = ctypes.c_void_p(), Memory(), Bus()
        library = self.library
        if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) or \
                library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) or library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(bus)):
            return None
        return Card(index, self.text("nvmlDeviceGetUUID", handle), self.text("nvmlDeviceGetName", handle), (bus.domain, bus.bus, bus.device),
                    memory.total, memory.used, self.processes(handle))

    def cards(self) -> list[Card]:
        count = ctypes.c_uint()
        if self.library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        return [card for card in map(self.card, range(count.value)) if card]
