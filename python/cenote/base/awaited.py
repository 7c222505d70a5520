"""Waits until the program imports a module of another library: an entry in sys.meta_path, which removes itself when it is asked for the module."""
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional, Sequence


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Calls `then` with the module: now, or once it is executed."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, Finder(name, then))


class Finder:
    """Lets the other finders find one module, and calls `then` with it once it is executed."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Optional[ModuleSpec]:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                self.watch(spec.loader)
                return spec
        return None

    def watch(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            self.then(module)
        loader.exec_module = exec_module
