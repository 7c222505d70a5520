"""What a dry run keeps of the past: a recording of what was allocated and freed, for models of other allocators (fit/replays.py), and, if it is asked
for, a page (`--report`). For fit_report.py.

plugins/names records; here is how it begins, hears of torch.cuda.empty_cache() and ends. A device has one recording, and a process has one page; both
are written when the process ends.
"""
import ctypes
import os
import sys
from types import ModuleType
from typing import Any, Optional

from cenote.base import outputs
from cenote.inside import report_page, searches
from cenote.labels.names import Names
from cenote.launch import environment
from cenote.native import bindings
from cenote.torch import patches

_names: Optional[Names] = None


def prepare(torch: ModuleType, names: Optional[Names]) -> None:
    """Before the first use of a GPU."""
    global _names
    if names is None or not os.environ.get(environment.DRY_RECORDS):
        return
    _names = names
    if os.environ.get(environment.DRY_PAGE):
        names.log(report_page.LOG_MAX)
    if not bindings.is_torchs(torch):  # cenote's adapter tells of it
        patches.around("dry-run", "torch._C._cuda_emptyCache", patches.nothing, lambda *arguments: names.emptied())


def begin() -> None:
    """At the first use of a GPU: libraries are loaded, and nothing is allocated."""
    if _names is not None:
        cudnn: Any = searches.library()
        told = getattr(cudnn, "cenote_sim_told", None)
        _names.record(ctypes.cast(told, ctypes.c_void_p).value if told is not None else None)


def save(folder: str, devices: list[int]) -> dict[int, str]:
    """The names of the files, by device."""
    names = {device: f"{os.getpid()}-{device}{environment.DRY_RECORD}" for device in devices}
    return {device: name for device, name in names.items() if _names is not None and _names.save(device, os.path.join(folder, name))}


def save_page(folder: str, devices: list[int]) -> str:
    """The name of the file; empty: there is none."""
    if _names is None or not os.environ.get(environment.DRY_PAGE):
        return ""
    from cenote.view import html_page
    program, name = os.path.basename(sys.argv[0]), f"{os.getpid()}.html"
    histories = [report_page.from_ledger(program, device, _names, report_page.logged(_names, device)) for device in devices]
    outputs.write(os.path.join(folder, name), html_page.page([history for history in histories if history.time], None).encode())
    return name
