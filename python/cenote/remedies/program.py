"""The remedies in a program's process: calls their events, switches on those that this run tries, and reports what they saw.

inside/fit_report.py makes one object if CENOTE_DRY_REMEDIES is set: "look", or a list of remedies, some with a setting: checkpointing,batch=8. A run
that begins at a copy (inside/waiting.py) is told its remedies later than one from the start; both come before the program's first model.
"""
import weakref
from types import ModuleType
from typing import Any, Callable

from cenote.labels import calls
from cenote.remedies import table, trainers
from cenote.remedies.remedy import Remedy
from cenote.torch import patches, seams

LOOK = "look"


class Remedies:
    """One for a process."""

    def __init__(self, torch: ModuleType) -> None:
        self.torch: Any = torch
        self.graph_task = seams.find("torch._C._current_graph_task_id")
        self.all = [kind(torch) for kind in table.ALL]
        self.on: list[Remedy] = []
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()  # models that were called, and their parts
        self.roots: weakref.WeakSet[Any] = weakref.WeakSet()  # the models themselves

    def start(self, wanted: str) -> None:
        for remedy in self.all:
            remedy.starts()
        calls.watch("remedies", self.torch, self.is_called, around=self.around)
        self.wrap_optimizers()
        self.switch_on(wanted)

    def switch_on(self, wanted: str) -> None:
        settings = {name: setting for name, _, setting in (item.partition("=") for item in wanted.split(","))}
        for remedy in self.all:
            setting = settings.get(remedy.name)
            if setting in remedy.options:
                trainers.set_options(setting, remedy.options[setting])
            elif setting is not None and not remedy.is_on:
                remedy.is_on, remedy.setting = True, setting
                self.on.append(remedy)
                remedy.begins()

    def wrap_optimizers(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        is_compiling = self.torch.compiler.is_compiling

        def building(inside: Any) -> Any:
            def build(optimizer: Any, params: Any, *args: Any, **kwargs: Any) -> None:
                self.tell("builds", optimizer)
                for remedy in self.on:
                    params = remedy.given(params)
                inside(optimizer, params, *args, **kwargs)
                self.tell("is_built", optimizer)
            return build
        patches.replace("remedies", "torch.optim.Optimizer.__init__", building)
        register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: None if is_compiling() else self.tell("steps", optimizer))
        register_optimizer_step_post_hook(lambda optimizer, args, kwargs: None if is_compiling() else self.tell("has_stepped", optimizer))

    def around(self, call: Callable[..., Any], module: Any, is_outermost: bool) -> Callable[..., Any]:
        is_model = is_outermost and self.is_model(module)
        for remedy in self.on:
            call = remedy.around(call, module, is_model)
        return call

    def is_model(self, module: Any) -> bool:
        """Of an outermost module: backward calls blocks, to compute them again, and a loss has no parameters."""
        return bool(self.on) and self.graph_task() < 0 and any(True for _ in module.parameters())

    def is_called(self, module: Any) -> None:
        """By the program itself. A part of a model that was called is no model: backward calls blocks, to compute them again."""
        if module not in self.known:
            self.known.update(module.modules())
            self.roots.add(module)
            self.tell("is_called", module, self.trains(module))
        if module in self.roots:
            self.tell("calls", module, self.trains(module))

    def trains(self, module: Any) -> bool:
        return bool(module.training and self.torch.is_grad_enabled())

    def tell(self, event: str, *what: Any) -> None:
        for remedy in self.all:
            try:
                getattr(remedy, event)(*what)
            except Exception as error:
                if remedy.is_on:
                    raise
                remedy.why_not = f"it could not look: {type(error).__name__}: {error}"

    def report(self) -> dict[str, dict[str, Any]]:
        return {remedy.name: remedy.report() for remedy in self.all}
