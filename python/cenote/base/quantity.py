"""Sizes as people write them: 80GiB, 24576MiB, 80GB, 80g, 1.5TiB, 1073741824. ASCII only; no sign, no exponent."""
import re

UNITS = {
    "": 1, "b": 1,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,  # as `docker run -m` and `java -Xmx` read them
}
SIZE = re.compile(r"([0-9]{1,20})(?:\.([0-9]{1,15}))?([A-Za-z]*)", re.ASCII)
GIB, MIB = 1 << 30, 1 << 20
COUNT = re.compile(r"[0-9]{1,20}", re.ASCII)


def read_size(text: str) -> int:
    """Bytes. ValueError if the text is no size."""
    match = SIZE.fullmatch(text)
    unit = UNITS.get(match[3].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(text)
    fraction = match[2] or ""
    digits: int = int(match[1] + fraction)
    return digits * unit // int(10 ** len(fraction))


def readable(size: int) -> str:
    """For people: 1.50 GiB, 64.0 MiB, 512 bytes."""
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB" if size >= MIB else f"{size} bytes"


def duration(seconds: float) -> str:
    """For people, without more digits than an estimate has: 40 s, 3 min."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def read_count(text: str) -> int:
    if not COUNT.fullmatch(text):
        raise ValueError(text)
    return int(text)


def write_size(size: int) -> str:
    """The shortest text that CENOTE_SIM reads as `size`."""
    for name, unit in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)
