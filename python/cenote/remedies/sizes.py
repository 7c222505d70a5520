"""Smaller steps: fewer samples in a batch, or shorter sequences. By the program's own argument, if it has one; else the batches of its DataLoader."""
import re
import weakref
from contextlib import suppress
from typing import Any

from cenote.remedies.remedy import CHANGED, Remedy
from cenote.torch import patches

OTHER = re.compile(r"eval|valid|test|pred|infer|num_|_num|n_batch|max_batches")  # in the names of arguments that are no sizes of a step


class Argument(Remedy):
    """The base class of those that find an argument in argparse. The command line is changed, and nothing in the program."""

    numerics = CHANGED
    nothing_seen = "argparse read no such argument"
    names = re.compile("")
    least = 2

    def starts(self) -> None:
        import argparse

        def noticing(inside: Any) -> Any:
            def parse_known_args(parser: Any, *args: Any, **kwargs: Any) -> Any:
                found = inside(parser, *args, **kwargs)
                with suppress(Exception):  # an object of the program's in place of a namespace
                    self.look(parser, found[0])
                return found
            return parse_known_args
        patches.replace("remedies", (argparse.ArgumentParser, "parse_known_args"), noticing)

    def look(self, parser: Any, namespace: Any) -> None:
        for action in parser._actions:
            value = getattr(namespace, action.dest, None)
            option = next((option for option in action.option_strings if option.startswith("--")), "")
            name = option[2:].lower().replace("-", "_")
            if type(value) is int and value >= self.least and self.names.search(name) and not OTHER.search(name) and not self.argument:
                self.argument, self.value = option[2:], value
                self.found(f"{option} {value // 2} instead of {value}", f"{option} {value // 2}")


class BatchArgument(Argument):
    name = "batch-argument"
    title = "half the batch"
    names = re.compile(r"batch|(^|_)bs$")


class Sequence(Argument):
    name = "sequence"
    title = "half the sequence"
    names = re.compile(r"seq|context|ctx|block_size|max_len")
    least = 16


class Batch(Remedy):
    """The batches of a DataLoader of PyTorch. Its settings are OLD:NEW: each loader of that size gets the other one."""

    name = "batch"
    title = "half the batch"
    numerics = CHANGED
    nothing_seen = "no DataLoader of PyTorch gave a batch before a model was called in training"
    unless = "batch-argument"
    lines = {"": "DataLoader(..., batch_size={})", "transformers": "TrainingArguments(per_device_train_batch_size={})"}

    def starts(self) -> None:
        self.last: tuple[Any, int] = 0, 0  # of the loader that gave the last batch: the size of its batches, and how much data it has
        sizes: weakref.WeakKeyDictionary[Any, tuple[Any, int]] = weakref.WeakKeyDictionary()

        def begin(batches: Any, loader: Any, *args: Any) -> None:
            most = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0
            sizes[batches] = getattr(loader.batch_sampler, "batch_size", None), most

        def giving(inside: Any) -> Any:
            def batch(batches: Any) -> Any:
                found = inside(batches)
                self.last = sizes.get(batches, (0, 0))
                return found
            return batch
        patches.around("remedies", "torch.utils.data.dataloader._BaseDataLoaderIter.__init__", begin, patches.nothing)
        patches.replace("remedies", "torch.utils.data.dataloader._BaseDataLoaderIter.__next__", giving)

    def calls(self, model: Any, is_training: bool) -> None:
        size, most = self.last
        if not is_training or self.value or size == 0:
            return
        if not isinstance(size, int) or size < 2:
            self.why_not = "the DataLoader has batches of one, or a sampler of its own"
            return
        self.value, self.most = size, most
        self.found(f"{size // 2} instead of {size}")
        self.line = self.line.format(size // 2)

    def begins(self) -> None:
        old, new = map(int, self.setting.split(":"))
        for kind in (self.torch.utils.data.DataLoader, self.torch.utils.data.BatchSampler):
            self.wrap(kind, old, new)

    def wrap(self, kind: Any, old: int, new: int) -> None:
        def sizing(inside: Any) -> Any:
            def init(made: Any, *args: Any, **kwargs: Any) -> None:
                if len(args) > 1 and type(args[1]) is int and args[1] == old:
                    args = (args[0], new, *args[2:])
                elif type(kwargs.get("batch_size")) is int and kwargs["batch_size"] == old:
                    kwargs["batch_size"] = new
                inside(made, *args, **kwargs)
            return init
        patches.replace("remedies", (kind, "__init__"), sizing)
