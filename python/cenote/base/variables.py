"""The variables of a running function, read without a trace: no value lives longer because it was looked at."""
import sys
import types
from typing import Any


def variables(frame: types.FrameType) -> dict[str, Any]:
    """The variables of a frame. Up to Python 3.12 the frame keeps the dictionary of f_locals, with all values in it, so the values are removed again;
    not if the program has that dictionary, because it called locals()."""
    found = frame.f_locals
    if type(found) is not dict and sys.version_info < (3, 13):
        return {}  # a class body with a namespace of its own
    copy = dict(found)
    code = frame.f_code
    is_programs = sys.getrefcount(found) > 3  # beside the frame's, ours and this call's
    if sys.version_info < (3, 13) and code.co_flags & 1 and not is_programs:  # CO_OPTIMIZED: the dictionary is a copy
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            found.pop(name, None)
    return copy
