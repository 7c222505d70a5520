"""Tracebacks of the program's exceptions, without cenote's own frames.

A wrapper around a function of the program or of PyTorch calls `hide` for each exception that passes, and raises it again by a bare `raise`, which
leaves the traceback as it is; up to Python 3.10 that statement brings the old one back, and the frames are seen.
"""
from cenote.base import source


def hide(error: BaseException) -> None:
    """Takes away the frames at the outer end that are cenote's: that of the caller, and of wrappers that it called."""
    trace = error.__traceback__
    while trace is not None and source.is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    error.__traceback__ = trace
