"""What a remedy is: one change that a user could make to a program, and that cenote makes from outside, inside the program's process.

    looks (in each run of --advise) ---- switched on (in the runs that try it) ---> acts

A remedy that looks changes nothing: it learns from the events below whether the program has what it would change, and `why_not` says so. program.py
calls the events, in the program's threads. An error in a remedy that looks is dropped. An error in one that acts ends the program, as the change
itself would, and its row says so.
"""
from types import ModuleType
from typing import Any, Callable

from cenote.remedies import trainers

SAME, ROUNDED, CHANGED = "same", "rounded", "changed"  # what a remedy does to the numbers that the program computes


class Remedy:
    """The base class: a remedy that sees nothing and does nothing. The class says what the table needs to know, an object belongs to one process."""

    name = ""  # in CENOTE_DRY_REMEDIES and in --json
    title = ""  # of its row
    numerics = SAME
    not_with: tuple[str, ...] = ()  # remedies that make no sense beside it
    worlds: tuple[int, ...] = ()  # if it divides the program among GPUs: among how many
    unless = ""  # a remedy that takes its place, if that one has something to change
    lines: dict[str, str] = {}  # what to write in the program, by the library whose Trainer calls the model; "": a loop of the program's own
    options: dict[str, dict[str, Any]] = {}  # of the Trainers of these libraries: there the remedy is these options, and does nothing itself
    nothing_seen = "no model was called"

    def __init__(self, torch: ModuleType) -> None:
        self.torch: Any = torch
        self.is_on = False
        self.setting = ""  # what stands behind its name
        self.why_not = self.nothing_seen  # empty: the program has what it would change
        self.is_refused = False  # `why_not` stays, whatever is found later
        self.what = ""  # that it changes, for its row
        self.value, self.most = 0, 0  # of a remedy that makes a number smaller: what it is, and the largest that makes sense, 0: not known
        self.argument = ""  # if the number is an argument of the program: its name
        self.library = ""  # if an option of its Trainer is the remedy
        self.line = self.lines.get("", "")

    # --- events

    def starts(self) -> None:
        """Once, when torch has been imported."""

    def begins(self) -> None:
        """The remedy was switched on."""

    def is_called(self, model: Any, is_training: bool) -> None:
        """The program calls this model for the first time; nothing of the call was done yet."""

    def calls(self, model: Any, is_training: bool) -> None:
        """The program calls a model."""

    def builds(self, optimizer: Any) -> None:
        """The program builds an optimizer: it has its class, and no parameters yet."""

    def given(self, parameters: Any) -> Any:
        """If it is on: what the optimizer gets as its parameters in place of these."""
        return parameters

    def is_built(self, optimizer: Any) -> None:
        """It has its parameters."""

    def steps(self, optimizer: Any) -> None:
        """Before a step."""

    def has_stepped(self, optimizer: Any) -> None:
        """After a step."""

    def around(self, call: Callable[..., Any], module: Any, is_model: bool) -> Callable[..., Any]:
        """If it is on: what is called in place of `call(module, ...)`, the call of any module. `is_model`: by the program itself, and not of a
        module without parameters, such as a loss."""
        return call

    # --- for all of them

    def found(self, what: str = "", line: str = "", has_option: bool = True) -> None:
        """The program has what this remedy would change. `line`: in place of that for a loop of the program's own. `has_option`: the Trainer's
        option is such a change."""
        if self.is_refused:
            return
        library = trainers.calling()
        self.why_not, self.what = "", self.what or what
        self.library = library if library in self.options and has_option else ""
        own = trainers.line(library, self.options[library]) if self.library else self.lines.get(library or "-")
        self.line = own or line or self.lines.get("", "")

    def refuse(self, why: str) -> None:
        """The program has something that does not go together with this remedy."""
        if not self.is_on:
            self.why_not, self.is_refused = why, True

    def report(self) -> dict[str, Any]:
        return {"why_not": self.why_not, "what": self.what, "line": self.line, "value": self.value, "most": self.most, "argument": self.argument,
                "library": self.library}
