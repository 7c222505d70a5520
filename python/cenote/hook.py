"""CENOTE=on: cenote becomes PyTorch's allocator as soon as a program has imported torch.

cenote.pth calls `add` when Python starts with CENOTE, or a variable that `cenote run` sets, in its environment. `add` puts one entry into
sys.meta_path, which waits for `import torch` and removes itself then. This module imports as little as it can: every Python that a program starts
with CENOTE=on imports it.
"""
from __future__ import annotations

import os
import sys

from cenote.base import switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Sequence

    from cenote.inside.arguments import Arguments

VARIABLE = "CENOTE"
SUMMARY = "CENOTE_SUMMARY"  # set by `cenote run`
DRY_RUN = "CENOTE_DRY_RUN"  # set by `cenote dry-run`, beside CENOTE=on or off
PHANTOMS = "CENOTE_PHANTOMS"  # set for the ranks of `cenote dry-run --world`, beside CENOTE_DRY_RUN
DRY_COPY = "CENOTE_DRY_COPY"  # set by `cenote dry-run --search`
DRY_CONSTANT = "CENOTE_DRY_CONSTANT"  # set by `cenote dry-run --search` for a number in the script
DRY_REDIRECT = "CENOTE_DRY_REDIRECT"  # set by `cenote dry-run` where the system does not let it mount


def is_on(text: str) -> bool:
    try:
        return switch.accepts_fallback(text) or switch.is_on(text)
    except ValueError:
        raise ValueError(f"{VARIABLE}={text[:40]!r} is neither on nor off; set {VARIABLE}=on for cenote, or unset it") from None


class Finder:
    """Lets the other finders find torch, and makes its loader call `act` after it has executed the module."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not Finder and hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    watch(spec)
                return spec
        return None


def watch(spec: ModuleSpec) -> None:
    loader = spec.loader
    assert loader is not None
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        if module.__name__ == "torch":
            remove()
            act(os.environ.get(VARIABLE, ""))
    loader.exec_module = exec_module  # type: ignore[method-assign]


def act(text: str) -> None:
    """`text`: CENOTE at this moment, because a program may change it before it imports torch. A wrong value ends the import with an error: otherwise
    the program would run under another allocator than the user asked for."""
    from cenote.inside import last_threads
    last_threads.register()
    if os.environ.get(DRY_REDIRECT):
        from cenote.guard import redirect
        from cenote.torch import features
        features.begin("files", redirect.begin_with)
    if is_on(text):
        from cenote.inside import plugin
        plugin.install()
    if os.environ.get(DRY_RUN):
        from cenote.inside import fit_report
        fit_report.begin(sys.modules["torch"])
        from cenote.phantoms import entry
        begin = entry.begin if os.environ.get(PHANTOMS) else entry.begin_whole
        begin(sys.modules["torch"])
    if os.environ.get(SUMMARY, "off") != "off":
        from cenote.inside import run_summary
        run_summary.begin(sys.modules["torch"])


def leave_copy(number: int, files: set[str], arguments: Arguments) -> None:
    from cenote.inside import waiting
    waiting.look(number, files, arguments)


def add() -> None:
    if os.environ.get(DRY_REDIRECT):
        from cenote.guard import redirect
        redirect.begin(os.environ[DRY_REDIRECT])
    if os.environ.get(DRY_COPY):
        from cenote.inside import arguments
        arguments.begin(os.environ.pop(DRY_COPY), leave_copy)
    if os.environ.get(DRY_CONSTANT):
        from cenote.inside import constant
        constant.begin(os.environ.pop(DRY_CONSTANT))
    is_wanted = os.environ.get(VARIABLE, "") not in switch.OFF or os.environ.get(DRY_RUN) or os.environ.get(SUMMARY, "off") != "off"
    if is_wanted and "torch" not in sys.modules and Finder not in sys.meta_path:
        sys.meta_path.insert(0, Finder)


def remove() -> None:
    if Finder in sys.meta_path:
        sys.meta_path.remove(Finder)
