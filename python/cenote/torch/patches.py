"""The register of everything that cenote replaces in PyTorch, and in what the program uses beside it.

For each attribute there is one wrapper, and behind it the layers of the features that want to be called. A layer is made by `make(inside)`, which
returns what is called in place of `inside`. Whenever a layer comes or goes, all of them are made anew: so `make` keeps no state of its own. The
layers lie in the order of the table of features (seams.def), the innermost first, no matter which feature began first.

    replaced by no feature -> the wrapper stands there, with one layer or more -> the last layer goes: PyTorch's own stands there again

If another library has put a wrapper of its own around ours, that stays, and ours, which can no longer be taken away, leads straight to PyTorch's. A
layer that comes after that gets a wrapper of its own, around the other library's.

What is no function, such as a class, a property or an entry of a dictionary, has no wrapper: what the layers make stands there itself.

An exception that passes a wrapper loses cenote's frames at its outer end. LOCKING: one lock, held while layers change; no code of PyTorch runs then.
"""
import functools
import os
import threading
from typing import Any, Callable, Optional

from cenote.base.tracebacks import hide
from cenote.torch import seams

Make = Callable[[Any], Any]
Undo = Callable[[], None]
NOTHING = object()  # the owner has inherited the attribute

_lock = threading.RLock()


def forked() -> None:
    """In a forked child: the lock may be that of a thread of the parent."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=forked)


def standing(inside: Any) -> tuple[Any, Callable[[Any], None]]:
    """A wrapper, and the function that says where it leads."""
    leads_to = inside

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return leads_to(*args, **kwargs)
        except BaseException as error:
            hide(error)
            raise

    def lead(to: Any) -> None:
        nonlocal leads_to
        leads_to = to
    return functools.wraps(inside)(wrapper), lead


class Layer:
    def __init__(self, feature: str, make: Make) -> None:
        self.feature, self.make = feature, make
        self.order = list(seams.table()).index(feature)


class Place:
    """An attribute, or an entry of a dictionary, that is replaced."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.inside = self.current()
        self.own = owner[name] if isinstance(owner, dict) else vars(owner).get(name, NOTHING)
        self.layers: list[Layer] = []
        is_function = callable(self.inside) and not isinstance(self.inside, type)
        self.ours: Any = NOTHING
        self.lead: Optional[Callable[[Any], None]] = None
        if is_function:
            self.ours, self.lead = standing(self.inside)
        if self.lead is not None:
            self.put(self.ours)

    def current(self) -> Any:
        return self.owner[self.name] if isinstance(self.owner, dict) else getattr(self.owner, self.name)

    def put(self, value: Any) -> None:
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        elif value is NOTHING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)

    def compose(self) -> None:
        value = self.inside
        for layer in self.layers:
            value = layer.make(value)
        is_ours = self.ours is NOTHING or self.current() is self.ours
        if self.lead is not None:
            self.lead(value)
        elif is_ours:
            self.put(value)
            self.ours = value
        if not self.layers:
            _places.remove(self)
            if is_ours:
                self.put(self.own)


_places: list[Place] = []  # that have a layer


def place(owner: Any, name: str) -> Place:
    for known in _places:
        if known.owner is owner and known.name == name and known.current() is known.ours:
            return known
    made = Place(owner, name)
    _places.append(made)
    return made


def replace(feature: str, where: "str | tuple[Any, str]", make: Make) -> Undo:
    """Adds a layer for the feature, and returns the function that takes it away. `where`: a name from `torch` on, or an owner and its attribute or
    key. AttributeError or KeyError, and no change: there is none."""
    owner, name = (seams.get(where.rpartition(".")[0]), where.rpartition(".")[2]) if isinstance(where, str) else where
    with _lock:
        at, layer = place(owner, name), Layer(feature, make)
        at.layers.append(layer)
        at.layers.sort(key=lambda one: one.order)
        try:
            at.compose()
        except BaseException:
            at.layers.remove(layer)
            at.compose()
            raise

    def take_away() -> None:
        with _lock:
            if layer in at.layers:
                at.layers.remove(layer)
                at.compose()
    return take_away


def put_back(feature: Optional[str] = None) -> None:
    """Takes away all layers of the feature, or of all."""
    with _lock:
        for at in list(_places):
            left = [layer for layer in at.layers if feature is not None and layer.feature != feature]
            if len(left) < len(at.layers):
                at.layers[:] = left
                at.compose()


def around(feature: str, where: "str | tuple[Any, str]", before: Callable[..., None], after: Callable[..., None]) -> Undo:
    """Calls `before` and `after` with the arguments of a function."""
    def make(inside: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            before(*args)
            try:
                return inside(*args, **kwargs)
            finally:
                after(*args)
        return call
    return replace(feature, where, make)


def nothing(*args: Any) -> None:
    pass
