"""cudnn.benchmark in a dry run: what its searches take is told apart from the need. For fit_report.py.

The simulated cuDNN does it (sim/libraries/cudnn/search.c): once asked, it makes no plan that a search would try and never choose, and notes what the
device would have had in use with it. Here is only how to ask. A cuDNN that is not the simulated one has no searches to tell of.
"""
import ctypes
import os
from typing import Any, Optional

LIBRARY = "libcudnn.so.9"
_library: Any = None


def library() -> Optional[Any]:
    try:
        found = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD)
        found.cenote_sim_searched.restype = ctypes.c_uint64
        return found
    except (OSError, AttributeError):
        return None


def begin() -> None:
    global _library
    _library = library()
    if _library is not None:
        _library.cenote_sim_search_apart(ctypes.c_bool(True))


def most(device: int) -> int:
    """What would have been in use on the device in the largest search so far; 0: there was none."""
    return int(_library.cenote_sim_searched(ctypes.c_int(device))) if _library is not None else 0
