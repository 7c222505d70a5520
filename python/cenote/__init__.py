"""cenote: device memory for CUDA programs, and a simulated GPU to run them on. `cenote run --help` is the place to start.

This package has the launcher, makes cenote PyTorch's allocator, finds the C library, its headers and the simulated GPU, and reports what a
program's memory is used for (docs/python.md). `import cenote` imports nothing but places.py; a function imports what it needs when it is called.

No module of this folder may have the name of a function here: importing the module would replace the function.
"""
from cenote.places import NotBuilt, include_folder, library, simulation_folder, version

TYPE_CHECKING = False  # as typing has it, without importing that: see cenote/hook.py
if TYPE_CHECKING:
    from typing import Any, Callable, Sequence

    from cenote.holders.growth import Growth
    from cenote.inside.plugin import Status
    from cenote.inside.reports import Mark, Path, Row
    from cenote.inside.sleep import Loan, Slept
    from cenote.labels.step_counter import Step
    from cenote.labels.tags import Tag
    from cenote.native.bindings import Device, Error, Level

__all__ = ["Error", "NotBuilt", "__version__", "dry_run", "explain", "growth", "include_folder", "install", "label", "lend", "library", "mark",
           "pause", "record", "resume", "retire", "rows", "save_trace", "simulation_folder", "snapshot", "stats", "status", "step", "steps", "tag",
           "trim"]
__version__: str = version()


def __getattr__(name: str) -> object:
    if name == "Error":
        from cenote.native.bindings import Error
        return Error
    raise AttributeError(f"module 'cenote' has no attribute {name!r}")


def load_ipython_extension(shell: "Any") -> None:
    """`%load_ext cenote` in Jupyter: see cenote/integrations/notebook.py."""
    from cenote.integrations import notebook
    notebook.load(shell)


def install() -> None:
    """Makes cenote the allocator of PyTorch, in this process and in those that it starts. RuntimeError if PyTorch has used a GPU already."""
    from cenote.inside import plugin
    plugin.install()


def status() -> "Status":
    """Which allocator PyTorch uses in this process: a named tuple of allocator, adapter, torch and note. Does not import torch."""
    from cenote.inside import plugin
    return plugin.status()


def dry_run(program: "Path | Sequence[Path]", gpu: "str | Sequence[str] | None" = None, *options: str) -> "dict[str, Any]":
    """Will it fit? What `cenote dry-run --json` writes (docs/dry-run.schema.json), as a dictionary. `program`: a script, or a list of it and its
    arguments, as on the command line; `gpu`: a card or size, several, or None for the smallest card; `options`: of the command. RuntimeError, with
    the sentence of the command, if it has no answer. A script that fails by itself is an answer: the verdict "unknown", and `why_unknown`.

        cenote.dry_run(["train.py", "--batch-size", "64"], "rtx4090", "--allocator", "native")["verdict"]
    """
    from cenote.fit import call
    return call.dry_run(program, gpu, options)


# --- what the program tells cenote

def step() -> None:
    """Ends one step of the program, on all devices. Without such calls each `optimizer.step()` ends one; the first call switches that off.

        for batch in batches:
            train(batch)
            cenote.step()
    """
    from cenote.labels import step_counter
    step_counter.step()


def retire(stream: "Any") -> None:
    """The program is about to end a stream that it made (a torch.cuda.ExternalStream, or a handle) and gives it no more work. With announced:0 memory
    that was used on the stream comes back once its work is done; without this call, not before torch.cuda.synchronize().

        cenote.retire(stream)
        driver.cuStreamDestroy(stream.cuda_stream)
    """
    from cenote.inside import plugin
    plugin.retire(stream)


def tag(name: str) -> "Tag":
    """Reports list what the thread allocates in this context under `name`. A context manager and a decorator, also of generators and coroutines.
    Tags nest.

        with cenote.tag("encoder"):
            x = encoder(x)

        @cenote.tag("validation")
        def validate(model): ...
    """
    from cenote.labels.tags import Tag
    return Tag(name)


def label(on: bool = True) -> None:
    """From now on reports divide memory by phase and kind: parameters, gradients, activations, ... Off by default: it takes time at each step.

        cenote.label()
        train(model)
        print(cenote.rows("kind"))
    """
    import torch
    from cenote.labels import hooks
    hooks.label(torch, on)


# --- what cenote tells the program. `device`: None for the current one, 1, "cuda:1", torch.device("cuda", 1)

def mark(name: str, device: "Device" = None) -> "Mark":
    """Prints one line: the live bytes of a device, their change since the last mark, and both by kind. Returns the figures.

        h = body(x); cenote.mark("body")
        y = output_layer(h); cenote.mark("output_layer")
    """
    from cenote.inside import reports
    return reports.mark(name, device)


def explain(device: "Device" = None, bytes: int = 0) -> str:
    """What a device's memory is used for, and advice. With `bytes`: also why an allocation of this size would fail.

        print(cenote.explain())
    """
    from cenote.inside import reports
    return reports.explain(device, bytes)


def stats(device: "Device" = None) -> "dict[str, int | Level]":
    """Every counter of a device. Levels are named tuples of current, peak, total_in and total_out.

        print(cenote.stats()["reserved"].peak, cenote.stats()["waits"])
    """
    from cenote.inside import reports
    return reports.stats(device)


def rows(by: str = "tag", device: "Device" = None) -> "list[Row]":
    """The allocated bytes of a device, divided by "tag", "phase", "kind", "class" (of size), "arena" (stream) or "group" (pool), the largest first.

        for row in cenote.rows("kind"):
            print(row.name, row.live, row.at_peak)
    """
    from cenote.inside import reports
    return reports.rows(by, device)


def steps(device: "Device" = None) -> "list[Step]":
    """The last steps of a device, up to 256 of them, the oldest first: named tuples of number, seconds, live, reserved, peak.

        print(max(step.peak for step in cenote.steps()))
    """
    from cenote.labels import step_counter
    return step_counter.steps(device)


# --- files

def snapshot(path: "Path", device: "Device" = None) -> None:
    """Writes the state of blocks, pages and addresses at one moment: of one device as .json, of all devices as .pickle for PyTorch's memory_viz.

        cenote.snapshot("memory.json")
    """
    from cenote.inside import reports
    reports.snapshot(path, device)


def record(records: int, device: "Device" = None) -> None:
    """From now on cenote keeps the last `records` allocations and frees, of one device or of all; 0 stops and discards them.

        cenote.record(1_000_000)
    """
    from cenote.inside import reports
    reports.record(records, device)


def save_trace(path: "Path", device: "Device" = None) -> None:
    """Writes the records of a device as a trace for `cenote view` and `cenote replay`; gzip if the name ends in .gz.

        cenote.save_trace("training.csv.gz")
    """
    from cenote.inside import reports
    reports.save_trace(path, device)


# --- growth

def growth(alarm: "Callable[[Any], object] | None" = print, least: "int | str" = "64KiB") -> "Growth":
    """Watches for memory that grows from step to step, until `close()` or the end of a `with`. Calls `alarm` once for each cause, with the bytes per
    step, the variable that holds the memory, and the lines that stored and allocated it. A cause below `least` bytes per step gets an alarm only
    if its tensors have an autograd history; `report()` has all causes.

        watch = cenote.growth()
        train()
        print(watch.report())
    """
    from cenote.holders import growth
    return growth.Growth(alarm, least)


# --- sleep

def pause(what: "Any" = None, keep: "bool | str" = True) -> "Slept":
    """Memory goes to sleep: its pages go to the driver, and its contents to the host or, without `keep`, nowhere. Addresses stay. No kernel may touch
    it until `resume`. With keep="constant" the copy stays, and serves each time: the program writes no more there. `what`: a
    torch.cuda.MemPool, a CUDA graph, a tag, a module, an optimizer, a tensor, or a list of these; None for all memory.

        cenote.pause(optimizer)
        generate()
        cenote.resume(optimizer)
    """
    from cenote.inside import sleep
    return sleep.pause(what, keep)


def resume(what: "Any" = None) -> "Slept":
    """What sleeps of `what` wakes, with its contents. torch.cuda.OutOfMemoryError if the device has no room: then it sleeps on."""
    from cenote.inside import sleep
    return sleep.resume(what)


def lend(what: "Any" = None, keep: "bool | str" = True) -> "Loan":
    """Within this context the program does not use `what` (as for `pause`), and other processes of the user on the same card may have its memory: if
    one of them is short, it goes to sleep, and at the end of the context it wakes. If nobody asks, nothing happens. At the end
    torch.cuda.OutOfMemoryError if the card has no room: then it is lent on, and `end()` of the loan tries again.

        with cenote.lend(optimizer):
            wait_for_the_engine()
    """
    from cenote.inside import sleep
    return sleep.Loan(what, keep)


# --- trimming

def trim(keep: int = 0, wait: bool = True, device: "Device" = None) -> None:
    """Gives free memory back to the driver until the device holds `keep` bytes; by default on every device. With `wait` it first waits for all
    work of the device, so that all unused memory can go.

        cenote.trim(keep=8 << 30, wait=False)
    """
    from cenote.inside import reports
    reports.trim(keep, wait, device)
