"""Which quirks of real machines the simulated GPU can take on: sim/quirks.def, as the built library has it."""
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
    """`text`: names with commas between. The simulated GPU would end the program at its first call of CUDA."""
    known = names()
    for name in text.split(","):
        if name not in known:
            raise Mistake(f"{name[:40]!r} is no quirk of the simulated GPU; there are {', '.join(known)}")
