"""How much time do steps, tags and labels cost a PyTorch program?

    python bench/torch/labels.py [--json] [--rounds N]

Measures each case without and with the feature, on a simulated GPU, in one process, in rounds that alternate; medians of the CPU time of all threads.
The simulated kernels take no time: the difference is the whole cost of a feature, while a real step takes far longer than the one here. For
comparison the table also has what empty hooks of PyTorch on all modules would cost.
"""
import argparse
import contextlib
import datetime
import json
import pathlib
import statistics
import sys
import time
from typing import Any, Callable, Iterator, NamedTuple, Optional

import speed

ROUNDS = 31
LAYERS = 64  # of the model, with four parameters each
DEEP = 100  # modules inside each other


class Case(NamedTuple):
    name: str
    turns: int  # turns in a round
    per: int  # operations in a turn
    play: Callable[[], Any]
    state: Optional[Callable[[], Any]]  # a context in which the feature is on; None: the case switches it on itself


@contextlib.contextmanager
def labels() -> Iterator[None]:
    import cenote
    cenote.label()
    yield
    cenote.label(False)


@contextlib.contextmanager
def empty_hooks() -> Iterator[None]:
    from torch.nn.modules import module
    handles = [module.register_module_forward_pre_hook(lambda *_: None), module.register_module_forward_hook(lambda *_: None)]
    yield
    for handle in handles:
        handle.remove()


@contextlib.contextmanager
def counted_steps() -> Iterator[None]:
    import torch
    from cenote.labels import step_counter
    step_counter.watch(torch)
    yield
    step_counter.stop_watching()


def cases() -> list[Case]:
    import cenote
    import torch
    from cenote.native import bindings

    class Same(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    small = torch.empty(4, 64, device="cuda")
    deep = torch.nn.Sequential(*(Same() for _ in range(DEEP)))
    layers = (torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU()) for _ in range(LAYERS))
    model = torch.nn.Sequential(*layers).cuda()
    parameters = sum(1 for _ in model.parameters())
    adam = torch.optim.AdamW(model.parameters())
    one = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])

    def train() -> None:
        model(small).sum().backward()
        adam.step()
        adam.zero_grad()

    def tagged() -> None:
        with cenote.tag("bench"):
            pass

    train()
    pool, step = bindings.pool(), bindings.function("cenote_pool_step")
    return [
        Case("optimizer.step() counted, SGD of one", 200, 1, one.step, counted_steps),
        Case("cenote_pool_step from Python", 2000, 1, lambda: step(pool), None),
        Case("with cenote.tag(...)", 500, 1, tagged, None),
        Case("labels: call of an inner module", 10, DEEP, lambda: deep(small), labels),
        Case("PyTorch's hooks, empty: the same", 10, DEEP, lambda: deep(small), empty_hooks),
        Case("labels: a step, for each parameter", 2, parameters, train, labels),
    ]


def measure(case: Case, rounds: int) -> tuple[float, float]:
    """Median time of a turn in ns, without and with the feature."""
    found: tuple[list[float], list[float]] = ([0.0], [])
    for number in range(2 * rounds + 2):
        if case.state is None and number % 2 == 0:
            continue
        context: Any = case.state() if case.state is not None and number % 2 else contextlib.nullcontext()
        with context:
            case.play()
            begin = time.process_time_ns()
            for _ in range(case.turns):
                case.play()
            ns = (time.process_time_ns() - begin) / case.turns / case.per
        if number >= 2:
            found[number % 2].append(ns)
    return statistics.median(found[0][1:] or [0.0]), statistics.median(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description="what steps, tags and labels cost a PyTorch program")
    parser.add_argument("--json", action="store_true", help="lines of JSON instead of a table")
    parser.add_argument("--rounds", metavar="N", type=int, default=ROUNDS)
    options = parser.parse_args()
    if "libcenote_sim.so" not in pathlib.Path("/proc/self/maps").read_text(encoding="utf-8"):
        speed.begin_again_on_the_simulated_gpu()
    import cenote
    cenote.install()
    import torch
    torch.set_num_threads(1)
    from cenote.labels import step_counter
    step_counter.stop_watching()
    torch.empty(1, device="cuda")
    if options.json:
        print(json.dumps({"bench": "torch/labels", "date": str(datetime.date.today()), "machine": speed.machine(), "gpu": f"simulated, {speed.SIM}",
                          "torch": torch.__version__, "rounds": options.rounds}))
    else:
        print(f"torch {torch.__version__}, simulated GPU; ns of CPU time, median of {options.rounds} rounds.\n"
              f"{'case':<38} {'without':>9} {'with':>9} {'more':>9}")
    for case in cases():
        without, having = measure(case, options.rounds)
        if options.json:
            print(json.dumps({"case": case.name, "without_ns": round(without, 1), "with_ns": round(having, 1)}))
        else:
            print(f"{case.name:<38} {without:9.1f} {having:9.1f} {having - without:9.1f}")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
