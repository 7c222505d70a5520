"""The Trainers of Transformers and Lightning. Where an option of theirs is the remedy, a run that tries it sets the option, as the user would: they
do more with an option than could be copied from outside.

The option is set as the program makes the object that has it. The program may import the library later: an entry in sys.meta_path waits for that.
"""
import sys
from types import ModuleType
from typing import Any, Callable, NamedTuple

from cenote.base import awaited
from cenote.torch import patches


class Maker(NamedTuple):
    """What takes the options of a Trainer."""

    modules: tuple[str, ...]
    name: str  # of the class in them
    method: str
    sets: Callable[[dict[str, Any], Any, dict[str, Any]], None]  # options, the object, keyword arguments of the method


def as_attributes(options: dict[str, Any], made: Any, kwargs: dict[str, Any]) -> None:
    vars(made).update(options)


def as_arguments(options: dict[str, Any], made: Any, kwargs: dict[str, Any]) -> None:
    kwargs.update(options)


MAKERS = {
    "transformers": Maker(("transformers.training_args",), "TrainingArguments", "__post_init__", as_attributes),  # subclasses call it, too
    "lightning": Maker(("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"), "Trainer", "__init__", as_arguments),
    "accelerate": Maker(("accelerate.accelerator",), "Accelerator", "prepare_model", as_arguments),  # no Trainer: see sharding.py
}


def calling() -> str:
    """The library, a key of MAKERS, whose Trainer called what runs now; "": none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        package, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
        library = package.removeprefix("pytorch_")
        if library in MAKERS and "trainer" in rest:
            return library
        frame = frame.f_back
    return ""


def line(library: str, options: dict[str, Any]) -> str:
    """What to write in the program."""
    return f"{MAKERS[library].name}({', '.join(f'{name}={quoted(value)}' for name, value in options.items())})"


def quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def set_options(library: str, options: dict[str, Any]) -> None:
    """From now on each object of the library's gets these options in place of the program's."""
    maker = MAKERS[library]

    def wrap(module: ModuleType) -> None:
        owner = getattr(module, maker.name)

        def setting(inside: Any) -> Any:
            def call(made: Any, *args: Any, **kwargs: Any) -> Any:
                maker.sets(options, made, kwargs)
                return inside(made, *args, **kwargs)
            return call
        patches.replace("remedies", (owner, maker.method), setting)
    for name in maker.modules:
        awaited.when_imported(name, wrap)
