"""Which phases of a program a dry run has seen: evaluation, saving, the end of an epoch; and the peak of each. For fit_report.py.

Only what was observed counts:

    evaluation   the program called a model that trains, or a part of it, in eval mode
    no gradients it called such a model in training mode under torch.no_grad
    saving       torch.save, safetensors or torch.distributed.checkpoint wrote something after the first step
    epoch        a DataLoader of PyTorch that gave batches to steps was read to its end. Lightning, which knows the length, asks for no batch beyond
                 the last one: there the epoch is over when something is read from its beginning, or the program ends

A model trains if it was called in training mode with gradients, or if an optimizer has one of its parameters. So a teacher, or the encoder of images
in a diffusion model, which runs in eval mode in each step, is no evaluation. A copy of a model that trains (parameters of the same shapes, as the
averages of an EMA are) counts as that model, unless the program calls it in one step after the other, as it does a teacher or a reference.

Peaks: evaluation lasts from its first call to the next call for training, or to its last call before a save; saving from there, or from the end of
the step, to the end of the save, because gathering the parameters comes first. Each interval begins with PyTorch's peaks set back. The program does
not notice: PyTorch's statistics give it the higher one of both peaks, until the program sets them back itself.

All of it runs in the program's threads; an error is dropped.
"""
import functools
import sys
import threading
import weakref
from types import ModuleType
from typing import Any, Callable, Iterator, Optional

from cenote.base import source
from cenote.labels import calls
from cenote.torch import patches

PLACES_MAX = 20
CALLS_MAX = 1000  # calls in evaluation at whose end an interval begins; after so many, a save's interval begins with the save
DCP = "torch.distributed.checkpoint"
SAVERS = (("torch", "save", "torch.save"), ("torch.serialization", "save", "torch.save"), ("safetensors.torch", "serialize_file", "safetensors"),
          ("safetensors.torch", "serialize", "safetensors"), (f"{DCP}.state_dict_saver", "save", DCP), (DCP, "save", DCP))  # module, function, name


class Thread(threading.local):
    is_saving = False


class Peaks:
    """PyTorch's peaks, which can be set back without the program's notice."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch: Any = torch
        self.kept: dict[int, dict[tuple[str, str], int]] = {}  # the program's, by device, statistic and pool
        self.stats: Callable[[int], Any]  # PyTorch's own
        self.reset: Callable[[int], Any]
        patches.replace("seen", "torch._C._cuda_memoryStats", self.giving_stats)
        patches.replace("seen", "torch._C._cuda_resetPeakMemoryStats", self.resetting)

    def giving_stats(self, inside: Any) -> Any:
        self.stats = inside
        return self.programs_stats

    def resetting(self, inside: Any) -> Any:
        self.reset = inside
        return self.programs_reset

    def programs_stats(self, device: int) -> Any:
        found = self.stats(device)
        kept = self.kept.get(device, {})
        for key, figures in self.levels(found):
            figures["peak"] = max(figures["peak"], kept.get(key, 0))
        return found

    @staticmethod
    def levels(stats: Any) -> Iterator[tuple[tuple[str, str], dict[str, int]]]:
        """The statistics that have a peak; some are divided by pool."""
        for name, found in stats.items():
            if isinstance(found, dict):
                for pool, figures in [("", found)] if "peak" in found else found.items():
                    if isinstance(figures, dict) and "peak" in figures:
                        yield (name, pool), figures

    def programs_reset(self, device: int) -> Any:
        self.kept.pop(device, None)
        return self.reset(device)

    def devices(self) -> range:
        return range(self.torch.cuda.device_count() if self.torch.cuda.is_initialized() else 0)

    def begin(self) -> None:
        """The next interval begins."""
        for device in self.devices():
            kept = self.kept.setdefault(device, {})
            for key, figures in self.levels(self.stats(device)):
                kept[key] = max(kept.get(key, 0), figures["peak"])
            self.reset(device)

    def live(self) -> dict[int, int]:
        """Most live bytes on each device since the interval began."""
        found = {device: self.stats(device)["allocated_bytes"]["all"]["peak"] for device in self.devices()}
        return {device: bytes for device, bytes in found.items() if bytes}


class Part:
    """A phase other than steps."""

    def __init__(self) -> None:
        self.times = 0
        self.peaks: dict[int, int] = {}

    def add(self, peaks: dict[int, int]) -> None:
        for device, bytes in peaks.items():
            self.peaks[device] = max(self.peaks.get(device, 0), bytes)

    def content(self) -> dict[str, Any]:
        return {"times": self.times, "peaks": self.peaks}


class Feed:
    """A DataLoader. The program may drop that as soon as it has an iterator: `for batch in DataLoader(...)`."""

    def __init__(self, loader: Any) -> None:
        try:
            self.length: Optional[int] = len(loader)
        except TypeError:  # its data has none
            self.length = None
        self.feeds = False  # it has given batches to steps


def dropping_errors(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def call(self: "Seen", *args: Any) -> None:
        try:
            method(self, *args)
        except Exception:
            return
    return call


class Seen:
    """One for a process."""

    def __init__(self, torch: ModuleType, note: Callable[[], None], called: Callable[[Any], object]) -> None:
        """`note` is called before peaks are set back, `called` with each module that the program itself calls."""
        self.torch: Any = torch
        self.note, self.called = note, called
        self.thread = Thread()
        self.peaks: Optional[Peaks] = None
        self.wrapped: set[tuple[str, str]] = set()
        self.forget()

    def forget(self) -> None:
        self.steps = 0
        self.step_peaks: dict[int, int] = {}  # most live bytes in the last step, by device
        self.evaluation, self.saving, self.is_evaluating = Part(), Part(), False
        self.without_gradients = 0
        self.places: dict[tuple[str, str, int], int] = {}  # of saves: by what, file, line
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.trained: weakref.WeakSet[Any] = weakref.WeakSet()  # modules
        self.shapes: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()  # of parameters
        self.copies: weakref.WeakKeyDictionary[Any, tuple[int, bool]] = weakref.WeakKeyDictionary()  # steps before the last call; it evaluates
        self.feed: Optional[Feed] = None  # that gave the last batch
        self.feeds: weakref.WeakKeyDictionary[Any, Feed] = weakref.WeakKeyDictionary()  # by loader
        self.given: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # batches, by the iterator
        self.at_end: set[Feed] = set()  # those that gave their last batch
        self.has_loader = False
        self.epochs = 0  # how often one that feeds steps was read to its end

    def start(self) -> None:
        self.peaks = Peaks(self.torch)
        calls.watch("seen", self.torch, self.module_is_called, self.module_has_returned)
        self.wrap_loaders()
        self.wrap_savers()

    # --- models

    def module_has_returned(self) -> None:
        if self.is_evaluating:
            self.evaluation_has_returned()

    @dropping_errors
    def module_is_called(self, module: Any) -> None:
        self.wrap_savers()
        self.called(module)
        if module.training and self.torch.is_grad_enabled():
            self.trained.add(module)
            if self.is_evaluating:
                self.end_evaluation()
        elif self.trains(module) or self.stands_for_one(module):
            if module.training:
                self.without_gradients += 1
                return
            self.evaluation.times += 1
            if self.is_evaluating and self.peaks is not None:
                self.evaluation.add(self.peaks.live())
            elif not self.is_evaluating:
                self.begin()
                self.is_evaluating = True

    def trains(self, module: Any) -> bool:
        if module in self.trained:
            return True
        known = {id(parameter) for optimizer in self.optimizers for group in optimizer.param_groups for parameter in group["params"]}
        if any(id(parameter) in known for parameter in module.parameters()):
            self.trained.add(module)
            return True
        return False

    def shapes_of(self, module: Any) -> tuple[Any, ...]:
        if module not in self.shapes:
            self.shapes[module] = tuple(parameter.shape for parameter in module.parameters())
        return self.shapes[module]

    def stands_for_one(self, module: Any) -> bool:
        """Whether it is a copy of a model that trains, called after a step and not in each one."""
        last, evaluates = self.copies.get(module, (None, False))
        if last != self.steps:
            shapes = self.shapes_of(module)
            is_copy = not module.training and bool(shapes) and any(self.shapes_of(one) == shapes for one in self.trained)
            evaluates = is_copy and self.steps > 0 and last != self.steps - 1
            self.copies[module] = self.steps, evaluates
        return evaluates

    def begin(self) -> None:
        self.note()
        if self.peaks is not None:
            self.peaks.begin()

    @dropping_errors
    def evaluation_has_returned(self) -> None:
        if self.peaks is not None and self.evaluation.times <= CALLS_MAX:
            self.evaluation.add(self.peaks.live())
            self.begin()

    def end_evaluation(self) -> None:
        self.is_evaluating = False
        if self.peaks is not None:
            self.evaluation.add(self.peaks.live())
        self.begin()

    # --- steps and data

    @dropping_errors
    def built(self, optimizer: Any) -> None:
        self.optimizers.add(optimizer)

    @dropping_errors
    def stepped(self) -> None:
        self.steps += 1
        if self.feed is not None:
            self.feed.feeds = self.has_loader = True
        if self.peaks is not None:
            self.step_peaks = self.peaks.live()
        if self.is_evaluating:
            self.end_evaluation()
        else:
            self.begin()

    def wrap_loaders(self) -> None:
        owners: weakref.WeakKeyDictionary[Any, Feed] = weakref.WeakKeyDictionary()

        def beginning(inside: Any) -> Any:
            def begin(loader: Any) -> Any:
                self.something_begins()
                batches = inside(loader)
                try:
                    if loader not in self.feeds:
                        self.feeds[loader] = Feed(loader)
                    owners[batches] = self.feeds[loader]
                    self.given[batches] = 0  # workers that stay have one iterator for all epochs
                except TypeError:
                    pass
                return batches
            return begin

        def giving(inside: Any) -> Any:
            def batch(batches: Any) -> Any:
                feed = owners.get(batches)
                try:
                    found = inside(batches)
                except StopIteration:
                    self.feed_ended(feed)
                    raise
                if feed is not None:
                    self.batch_given(feed, batches)
                return found
            return batch
        patches.replace("seen", "torch.utils.data.DataLoader.__iter__", beginning)
        patches.replace("seen", "torch.utils.data.dataloader._BaseDataLoaderIter.__next__", giving)

    @dropping_errors
    def batch_given(self, feed: Feed, batches: Any) -> None:
        self.feed = feed
        given = self.given[batches] = self.given.get(batches, 0) + 1
        if given == feed.length:
            self.at_end.add(feed)

    @dropping_errors
    def feed_ended(self, feed: Optional[Feed]) -> None:
        if feed is not None:
            self.at_end.discard(feed)
            self.epochs += feed.feeds

    @dropping_errors
    def something_begins(self) -> None:
        for feed in list(self.at_end):
            self.feed_ended(feed)

    # --- saving

    def wrap_savers(self) -> None:
        for module_name, name, what in SAVERS:
            module = sys.modules.get(module_name)
            if module is not None and (module_name, name) not in self.wrapped and hasattr(module, name):
                self.wrapped.add((module_name, name))
                patches.replace("seen", (module, name), functools.partial(self.saver, what))

    def saver(self, what: str, inside: Callable[..., Any]) -> Callable[..., Any]:
        def save(*args: Any, **kwargs: Any) -> Any:
            is_outer = not self.thread.is_saving and self.steps
            if is_outer:
                self.save_begins(what)
                self.thread.is_saving = True
            try:
                return inside(*args, **kwargs)
            finally:
                if is_outer:
                    self.thread.is_saving = False
                    self.save_ends()
        return save

    @dropping_errors
    def save_begins(self, what: str) -> None:
        if self.is_evaluating and self.evaluation.times > CALLS_MAX:
            self.end_evaluation()
        self.is_evaluating = False
        frame: Any = sys._getframe(1)
        while frame is not None and source.is_library(frame.f_code.co_filename):
            frame = frame.f_back
        place = (what, frame.f_code.co_filename, frame.f_lineno or 0) if frame is not None else (what, "", 0)
        if place in self.places or len(self.places) < PLACES_MAX:
            self.places[place] = self.places.get(place, 0) + 1

    @dropping_errors
    def save_ends(self) -> None:
        self.saving.times += 1
        if self.peaks is not None:
            self.saving.add(self.peaks.live())
        self.begin()

    # --- the report

    def report(self) -> dict[str, Any]:
        if self.is_evaluating and self.peaks is not None:
            try:
                self.evaluation.add(self.peaks.live())
            except Exception:  # a context that is lost
                pass
        places = [{"by": by, "file": file, "line": line, "times": times} for (by, file, line), times in self.places.items()]
        return {"evaluation": self.evaluation.content(), "without_gradients": self.without_gradients,
                "saving": {**self.saving.content(), "places": places}, "epochs": self.epochs, "has_loader": self.has_loader}
