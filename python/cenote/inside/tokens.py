"""`generate()` of Transformers in a dry run: once its tokens repeat, the rest of them is computed, and the run ends. For fit_report.py.

A token is over where Transformers asks its stopping criteria. The recording (inside/recording.py) gets a mark there, and plugins/names compares what
lies between the last marks: each token has to allocate and free in the same order as the one before, the same blocks, each larger by a constant
number of bytes (or as the token 2, 4, 8 or 16 before). Then the program's own allocator gets the calls that the rest of the tokens would make.

It is not done, and all tokens run, where something else than the length decides how long that goes on as it does:

    criteria    other than the length and the token that ends a sentence: time, words, functions of the program's own
    windows     a cache that holds the last tokens alone and gets full later; positions that are computed otherwise for long texts
    models      of no class of Transformers, which may have such a window of their own; compiled ones
    training    an optimizer was built: its steps count
    ranks       some would end before others

A sentence may end before its length, by its content, which is not known. So this is the most that it takes, as it is if all tokens run.
"""
import os
import weakref
from types import ModuleType
from typing import Any, Callable, Optional

from cenote.base import awaited
from cenote.labels.names import Names
from cenote.torch import patches

RUN_LEAST = 56  # tokens that run: the first are not like the others, and 48 are compared
EVERY = 8  # tokens between two looks
LEFT_LEAST = 64  # fewer are run
CRITERIA = ("MaxLengthCriteria", "EosTokenCriteria")
MARGIN = 2  # tokens around the end of a window
LONG_TEXTS = ("dynamic", "longrope")


class Tokens:
    """Of one call of generate, the last that has begun."""

    def __init__(self, names: Optional[Names], may: Callable[[], bool], play: Callable[[int], None]) -> None:
        """`may`: whether the run may end before the program does. `play(tokens)` computes the rest and ends it."""
        self.names, self.may, self.play = names, may, play
        self.caches: weakref.WeakSet[Any] = weakref.WeakSet()
        self.forget()

    def forget(self) -> None:
        self.criteria: Optional[weakref.ref[Any]] = None
        self.model: Optional[Any] = None  # the last module that the program called
        self.length = self.run = 0
        self.found: Optional[dict[str, Any]] = None

    def start(self) -> None:
        if self.names is None or os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
            return
        awaited.when_imported("transformers.generation.stopping_criteria", self.watch)
        awaited.when_imported("transformers.cache_utils", self.watch_caches)

    def watch(self, module: ModuleType) -> None:
        patches.around("dry-run", (module.StoppingCriteriaList, "__call__"), self.asked, patches.nothing)

    def watch_caches(self, module: ModuleType) -> None:
        patches.around("dry-run", (module.Cache, "__init__"), lambda cache, *args, **kwargs: self.caches.add(cache), patches.nothing)

    def called(self, module: Any) -> None:
        self.model = weakref.ref(module)

    def asked(self, criteria: Any, ids: Any, *args: Any, **kwargs: Any) -> None:
        """A token is over."""
        length = int(ids.shape[-1])
        is_first = self.criteria is None or self.criteria() is not criteria or length != self.length + 1
        if is_first:
            self.criteria, self.run = weakref.ref(criteria), 0
        self.length, self.run = length, self.run + 1
        assert self.names is not None
        self.names.mark(is_first)
        if self.run < RUN_LEAST or self.run % EVERY or not criteria.max_length:
            return
        left = criteria.max_length - length
        if left >= LEFT_LEAST and self.may() and all(self.is_of_transformers(one, CRITERIA) for one in criteria) and self.goes_on(left) and (
                self.names.period()):
            self.play(left)

    @staticmethod
    def is_of_transformers(one: Any, names: tuple[str, ...] = ()) -> bool:
        return type(one).__module__.startswith("transformers.") and (not names or type(one).__name__ in names)

    def goes_on(self, left: int) -> bool:
        model = self.model() if self.model is not None else None
        if model is None or not self.is_of_transformers(model):
            return False
        settings = {**getattr(model, "config", None).__dict__} if getattr(model, "config", None) is not None else {}
        if any(repr(kind) in repr(settings) for kind in LONG_TEXTS):
            return False
        layers = [layer for cache in self.caches for layer in getattr(cache, "layers", [])]
        return not any(self.gets_full(layer, left) for layer in layers if getattr(layer, "is_sliding", False))

    @staticmethod
    def gets_full(layer: Any, left: int) -> bool:
        """Whether it is a window that gets full within so many tokens."""
        window, held = int(layer.get_max_length()), int(layer.get_seq_length())
        return held <= window + MARGIN and held + left >= window - MARGIN
