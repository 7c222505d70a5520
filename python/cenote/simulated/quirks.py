"""The quirks of real machines that the simulated GPU can imitate: the rows of sim/quirks.def, asked of the built library."""
import ctypes
import os

from cenote import places
from cenote.base.mistake import Mistake


def names() -> list[str]:
    name_of = ctypes.CDLL(os.path.join(places.simulation_folder(), "libcuda.so.1")).sim_quirk_name
    name_of.restype = ctypes.c_char_p
    found: list[str] = []
    while (name := name_of(len(found))) is not None:
        found.append(name.decode())
    return found


def check(text: str) -> None:
    """Raises Mistake if `text`, names separated by commas, has an unknown one: with it the simulated GPU would end the program at its first call."""
    known = names()
    for name in text.split(","):
        if name not in known:
            raise Mistake(f"{name[:40]!r} is no quirk of the simulated GPU; the quirks are {', '.join(known)}")
