"""A number in the main script, changed in memory: `cenote dry-run --search BATCH=8..512` of a script that says BATCH = 128.

`begin` is called as Python starts, before it looks at the script. A hook of sys.path_hooks then takes the script's path, so that Python asks the
loader here for the code of __main__. The file stays as it is, and so do the numbers of its lines. It is not for modules and not for `-m`.
"""
from __future__ import annotations

import ast
import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Iterator


def is_number(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def assigned(tree: ast.AST, name: str) -> Iterator[Any]:
    """The values of NAME = 128."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            yield node.value  # type: ignore[attr-defined]


def passed(tree: ast.AST, name: str) -> Iterator[Any]:
    """Those of call(NAME=128), def function(NAME=128) and {"NAME": 128}."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == name:
            yield node.value
        elif isinstance(node, ast.Dict):
            yield from (value for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant) and key.value == name)
        elif isinstance(node, ast.arguments):
            ordered = [*node.posonlyargs, *node.args]
            pairs = [*zip(ordered[len(ordered) - len(node.defaults):], node.defaults), *zip(node.kwonlyargs, node.kw_defaults)]
            yield from (value for argument, value in pairs if argument.arg == name)


def places(tree: ast.AST, name: str) -> list[Any]:
    """Where the script has a number by that name: what it assigns, else what it passes on."""
    found = [node for node in assigned(tree, name) if is_number(node)]
    return found or [node for node in passed(tree, name) if is_number(node)]


def code(path: str, name: str, value: int) -> Any:
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    for node in places(tree, name):
        node.value = value
    at = 0
    while at < len(tree.body) and (isinstance(tree.body[at], ast.Expr) or isinstance(tree.body[at], ast.ImportFrom)
                                   and tree.body[at].module == "__future__"):  # type: ignore[attr-defined]
        at += 1
    tree.body[at:at] = ast.parse("__spec__ = None").body  # as in any script: multiprocessing asks
    return compile(tree, path, "exec")


class Loader:
    """The importer of a path that is the script's, and the loader of __main__ there."""

    def __init__(self, path: str, name: str, value: int) -> None:
        self.path, self.name, self.value = path, name, value

    def find_spec(self, name: str, target: Any = None) -> ModuleSpec | None:
        if name != "__main__":
            return None
        from importlib.machinery import ModuleSpec
        spec = ModuleSpec(name, self, origin=self.path)  # type: ignore[arg-type]
        spec.has_location = True
        return spec

    def get_code(self, name: str) -> Any:
        sys.path[0] = os.path.dirname(os.path.realpath(self.path))  # Python has put the script itself there
        return code(self.path, self.name, self.value)


def begin(text: str) -> None:
    """NAME=VALUE=PATH, the path as in the command line. Python makes it absolute before it asks the hooks."""
    name, value, path = text.split("=", 2)
    path = os.path.abspath(path)
    importlib.import_module("importlib.machinery")

    def hook(entry: str) -> Loader:
        if os.path.abspath(entry) != path:
            raise ImportError
        return Loader(path, name, int(value))
    sys.path_hooks.insert(0, hook)
