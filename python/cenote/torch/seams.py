"""The private names of PyTorch that cenote touches. seams.def is their table; no other module writes such a name as code (tools/check/seams.py).

Imports nothing of PyTorch: what is looked up is there once the program has imported torch.
"""
import functools
import importlib
import os
import re
import sys
from contextlib import suppress
from typing import Any, Iterator, NamedTuple, NoReturn

TABLE = os.path.join(os.path.dirname(__file__), "seams.def")
IMPORT, HEADER, SOURCE = "import", "header:", "source:"  # ways to probe; all others are attributes


class Seam(NamedTuple):
    name: str
    probe: str
    since: str
    until: str


class Feature(NamedTuple):
    name: str
    runs: str
    lost: str
    test: str
    seams: tuple[Seam, ...]


class NotThere(AttributeError):
    """A private name of PyTorch is missing."""


class Missing:
    """In place of what PyTorch does not have. It is false, and its use says what is missing."""

    def __init__(self, name: str) -> None:
        self.__dict__["name"] = name

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, part: str) -> NoReturn:
        raise NotThere(f"this PyTorch has no {self.__dict__['name']}")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotThere(f"this PyTorch has no {self.__dict__['name']}")


@functools.cache
def table() -> dict[str, Feature]:
    """The features by their names, in the order in which their wrappers lie, the innermost first."""
    found: dict[str, Feature] = {}
    with open(TABLE, encoding="utf-8") as file:
        for line in file:
            first, _, rest = line.strip().partition(" ")
            if first == "feature":
                name, runs = rest.split()
                found[name] = Feature(name, runs, "", "", ())
            elif first == "lost":
                found[name] = found[name]._replace(lost=rest)
            elif first == "test":
                found[name] = found[name]._replace(test=rest)
            elif first and not line.startswith("#"):
                found[name] = found[name]._replace(seams=(*found[name].seams, Seam(first, *rest.split())))
    return found


# --- looking up

def get(name: str) -> Any:
    """What has the name, found from the innermost module that is imported. Raises AttributeError."""
    module, parts = name, []
    while module and module not in sys.modules:
        module, _, last = module.rpartition(".")
        parts.append(last)
    found = sys.modules.get(module)
    for part in reversed(parts):
        found = getattr(found, part)
    return found


def find(name: str) -> Any:
    """The same, or a Missing."""
    try:
        return get(name)
    except AttributeError:
        return Missing(name)


def is_there(seam: Seam) -> bool:
    """A name of a module that the program has not imported counts as there: the feature has nothing to do yet."""
    if seam.probe.startswith((HEADER, SOURCE)):
        return True
    if seam.probe == IMPORT and seam.name.rpartition(".")[0] not in sys.modules:
        return True
    return not isinstance(find(seam.name), Missing)


def stands_in_text(seam: Seam) -> bool:
    kind, _, name = seam.probe.partition(":")
    folder = os.path.dirname(os.path.abspath(str(sys.modules["torch"].__file__)))
    path = os.path.join(folder, "include" if kind + ":" == HEADER else "", name)
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return re.search(rf"\b{re.escape(re.split('[.:]', seam.name)[-1])}\b", file.read()) is not None
    except OSError:
        return False


def is_too_young(seam: Seam, version: str) -> bool:
    """Whether code goes on without the name, because it is one of a PyTorch newer than `version`: an older one has its work under another name."""
    numbers = [tuple(map(int, re.findall(r"\d+", text)[:2])) for text in (seam.since, version)]
    return seam.probe.startswith((HEADER, SOURCE)) and numbers[0] > numbers[1]


def examined() -> Iterator[tuple[Feature, Seam, bool]]:
    """Each row of the table, and whether it is there: imports the modules that have such names, and reads sources and headers."""
    for feature in table().values():
        for seam in feature.seams:
            if seam.probe == IMPORT:
                with suppress(Exception):
                    importlib.import_module(seam.name.rpartition(".")[0])
            is_text = seam.probe.startswith((HEADER, SOURCE))
            yield feature, seam, stands_in_text(seam) if is_text else not isinstance(find(seam.name), Missing)
