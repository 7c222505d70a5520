"""Runs in a program that `cenote run` started: when Python ends, prints a line of memory figures, and writes them (--json) and a page (--report).

hook.py calls `begin` when torch is imported and CENOTE_SUMMARY is "on" or "quiet". Before the end, only two things are read: peaks before the
program resets them and, for --json, figures at each step of an optimizer. If a process ends by a signal or os._exit, it prints nothing. If the
program used no GPU, only the process that `cenote run` became says so, and only if PyTorch sees no GPU or a file was asked for: workers and the
parents of ranks use none either. An error in this module is printed in one line; the exit status stays the program's.
"""
import atexit
import ctypes
import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

from cenote.base import outputs
from cenote.labels import step_counter
from cenote.launch import environment
from cenote.native import bindings
from cenote.torch import features, patches

if TYPE_CHECKING:
    from cenote.labels.names import Names
    from cenote.view.history import History

LINE, FIGURES, REPORT = environment.SUMMARY, environment.FIGURES, environment.REPORT
STEPS_MAX = 4096  # steps that are kept; when there are more, every second one goes
GIB, MIB = 1 << 30, 1 << 20
BOOKS = 32  # 64-bit words reserved for struct sim_books, which has fewer
COST_NS = 13  # the index of cost_ns in it


def say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write("cenote: " + " ".join(text.removeprefix("cenote: ").split()) + "\n")  # one write: lines of several ranks stay whole
        sys.stderr.flush()


def of_rank(path: str) -> str:
    """The path for this rank: the first rank uses the path as it was given, others add their number. %p becomes the process id."""
    rank = os.environ.get("RANK", "0")
    path = path.replace("%p", str(os.getpid()))
    stem, ending = os.path.splitext(path)
    return path if rank in ("", "0") else f"{stem}.rank{rank}{ending}"


def modelled_ns() -> Optional[int]:
    """The modelled time of all calls of the simulated driver; None on a real one."""
    books = (ctypes.c_uint64 * BOOKS)()
    for name in ("libcuda.so.1", None):  # by that name it may be another one; the simulated one is preloaded then
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD if name else ctypes.DEFAULT_MODE).sim_books(books)
        except (OSError, AttributeError):
            continue
        return books[COST_NS]
    return None


class Summary:
    def __init__(self, torch: ModuleType) -> None:
        self.torch, self.since, self.began = torch, time.perf_counter(), time.time()
        self.figures_path, self.report_path = (os.environ.get(name, "") for name in (FIGURES, REPORT))
        self.names: Optional[Names] = None
        self.forget()

    def name_blocks(self) -> None:
        """A report has names. Without the library that gives them it has none, and says so."""
        from cenote.inside import report_page
        from cenote.labels import hooks
        self.names = hooks.label_names(self.torch, say)
        if self.names is not None:
            self.names.log(report_page.LOG_MAX)

    def forget(self) -> None:
        """For a new process, and for a forked child, which inherits its parent's figures."""
        self.peaks: dict[int, list[int]] = {}  # by device: requested, reserved
        self.steps: list[dict[str, Any]] = []
        self.steps_seen, self.every = 0, 1

    def start(self) -> None:
        features.begin("summary", lambda: patches.around("summary", "torch._C._cuda_resetPeakMemoryStats", self.peaks_end, patches.nothing))
        if self.figures_path:
            step_counter.watch(self.torch)
            step_counter.on_step(self.stepped)
        os.register_at_fork(after_in_child=self.forget)
        atexit.register(self.ended)

    # --- figures

    def peaks_end(self, device: int) -> None:
        with suppress(Exception):  # an error here must not become one of the program
            self.note()

    def is_ours(self) -> bool:
        return bindings.is_torchs(self.torch)

    def counters(self, device: int) -> dict[str, int]:
        """Peaks of requested and reserved bytes, reserved bytes now, and the allocator's counts of its calls."""
        if self.is_ours():  # not by torch.cuda.memory_stats, which makes cenote do its deferred trims
            from cenote.inside import reports
            ours: Any = reports.stats(device)
            return {"requested_peak": ours["requested"].peak, "reserved_peak": ours["reserved"].peak, "reserved": ours["reserved"].current,
                    "retries": ours["retries"], "driver_calls": ours["driver_calls"], "trims": ours["trims"]}
        stats = self.torch.cuda.memory_stats(device)
        return {"requested_peak": stats.get("requested_bytes.all.peak", 0), "reserved_peak": stats.get("reserved_bytes.all.peak", 0),
                "reserved": stats.get("reserved_bytes.all.current", 0), "retries": stats.get("num_alloc_retries", 0),
                "driver_calls": stats.get("num_device_alloc", 0) + stats.get("num_device_free", 0)}

    def note(self) -> dict[int, dict[str, int]]:
        """Updates the peaks of each device. They stay even if the program resets PyTorch's peaks."""
        found: dict[int, dict[str, int]] = {}
        if not self.torch.cuda.is_initialized():
            return found
        for device in range(self.torch.cuda.device_count()):
            now = self.counters(device)
            if not now["reserved_peak"] and device not in self.peaks:
                continue
            known = self.peaks.setdefault(device, [0, 0])
            known[:] = max(known[0], now["requested_peak"]), max(known[1], now["reserved_peak"])
            found[device] = {**now, "requested_peak": known[0], "reserved_peak": known[1]}
        return found

    def stepped(self) -> None:
        """Runs inside optimizer.step()."""
        try:
            self.steps_seen += 1
            if self.steps_seen % self.every:
                return
            devices = self.note()
            requested = sum(device["requested_peak"] for device in devices.values())
            if self.is_ours():  # cenote has the peak of each step
                requested = sum(step_counter.steps(device)[-1].peak for device in devices)
            self.steps.append({"step": self.steps_seen, "seconds": round(time.perf_counter() - self.since, 4), "requested": requested,
                               "reserved": sum(device["reserved"] for device in devices.values())})
            if len(self.steps) >= STEPS_MAX:
                del self.steps[::2]
                self.every *= 2
        except Exception:
            return

    def figures(self) -> dict[str, Any]:
        devices = self.note()
        backend = self.torch.cuda.get_allocator_backend()
        is_expandable = backend == "native" and any(("expandable_segments", "True") in environment.split_settings(os.environ.get(name, ""))
                                                    for name in environment.ALLOCATOR_VARIABLES)
        found: dict[str, Any] = {
            "program": os.path.basename(sys.argv[0]), "rank": os.environ.get("RANK"), "torch": self.torch.__version__,
            "allocator": "cenote" if self.is_ours() else "expandable" if is_expandable else backend,
            "is_simulated": modelled_ns() is not None, "device": self.torch.cuda.get_device_name() if devices else None, "devices": len(devices),
        }
        for name in ("requested_peak", "reserved_peak", "driver_calls", "retries", "trims"):
            values = [device[name] for device in devices.values() if name in device]
            found[name] = None if not values else max(values) if name == "driver_calls" and self.is_ours() else sum(values)
        found["modelled_driver_ns"] = modelled_ns()
        return {**found, "seconds": round(time.perf_counter() - self.since, 3), "steps_seen": self.steps_seen, "steps": self.steps}

    # --- the end

    def ended(self) -> None:
        try:
            if not self.torch.cuda.is_initialized():  # also a forked child that must not use it
                return self.used_no_gpu()
            found = self.figures()
        except Exception:  # a context that is lost
            return
        if not found["reserved_peak"]:
            return
        if os.environ.get(LINE) == "on":
            say(line(found))
        for work, path in ((self.write_figures, self.figures_path), (self.write_report, self.report_path)):
            try:
                if path:
                    work(of_rank(path), found)
            except OSError as problem:
                say(f"{path}: {problem.strerror or problem}")
            except MemoryError:
                say(f"{path}: there is not enough host memory to write it")
            except Exception as problem:
                say(f"{path}: {problem}")

    def used_no_gpu(self) -> None:
        """Says why there are no figures. A rank that this program started may have written the files."""
        if os.environ.get(environment.PROGRAM) != str(os.getpid()):
            return
        missing = [path for path in (self.figures_path, self.report_path) if path and "%p" not in path and not is_newer(path, self.began)]
        has_none = not self.torch.version.cuda or not self.torch.cuda.device_count()
        if not missing and not (has_none and os.environ.get(LINE) == "on"):
            return
        text = "the program used no GPU"
        if not self.torch.version.cuda:
            text += f": torch {self.torch.__version__} is built without CUDA"
        elif has_none:
            text += ", and PyTorch sees none here: `cenote run --sim 80GiB` gives it a simulated one"
        say(text + "".join(f"; {path} is not written" for path in missing))

    def write_figures(self, path: str, found: dict[str, Any]) -> None:
        outputs.write(path, (json.dumps(found, indent=1) + "\n").encode())

    def write_report(self, path: str, found: dict[str, Any]) -> None:
        """The page of `cenote view` for all devices."""
        from cenote.inside import report_page
        from cenote.view import viewer
        histories = [history for device in sorted(self.peaks) for history in self.histories(device, found["program"])]
        for history in histories:
            history.title = found["program"]
            self.add_card(history)
            report_page.add_end(history, getattr(sys, "last_value", None))
        data = viewer.draw(histories, path)
        outputs.write(path, data)
        say(f"{path}: {len(data) / 1e6:.1f} MB; open it in a browser")

    def add_card(self, history: "History") -> None:
        """What the card has, and what it leaves after the context and others."""
        free, total = self.torch.cuda.mem_get_info(history.device)
        reserved = self.counters(history.device)["reserved"]
        history.limits = {"card": total, "left by the context and others": min(total, free + reserved)}
        fraction = self.torch.cuda.get_per_process_memory_fraction(history.device)
        if fraction < 1:
            history.limits["limit"] = int(total * fraction)

    def histories(self, device: int, program: str) -> "list[History]":
        """From cenote's trace, with names if blocks have them; under PyTorch's own allocator from the ledger of names."""
        from cenote.inside import report_page, reports
        from cenote.view import viewer
        if not self.is_ours():
            if self.names is None:
                raise ValueError("blocks have no names here, and PyTorch's own allocator records nothing else")
            return [report_page.from_ledger(program, device, self.names, report_page.logged(self.names, device))]
        with tempfile.TemporaryDirectory(prefix="cenote-") as folder:
            trace = os.path.join(folder, f"{program}.csv")
            reports.save_trace(trace, device)
            histories = viewer.read(trace)
        if self.names is not None:
            for history in histories:
                report_page.divide(history, self.names, report_page.logged(self.names, device))
        return histories


def is_newer(path: str, than: float) -> bool:
    try:
        return os.stat(path).st_mtime >= than
    except OSError:
        return False


def size(bytes: int) -> str:
    return f"{bytes / GIB:.2f} GiB" if bytes >= GIB else f"{bytes / MIB:.2f} MiB"


def waste(requested: int, reserved: int) -> str:
    """In per cent; in bytes if the program requests so little that one page is many times as much. What sleeps is requested and not reserved."""
    if reserved < requested:
        return "a part asleep"
    share = 100 * (reserved / requested - 1)
    return f"waste {share:.1f} %" if share < 1000 else f"waste {size(reserved - requested)}"


def line(found: dict[str, Any]) -> str:
    where = f"{found['allocator']}{' on a simulated GPU' if found['is_simulated'] else ''}"
    where += f", {found['devices']} GPUs together" if found["devices"] > 1 else ""
    where += f", rank {found['rank']}" if found["rank"] else ""
    requested, reserved = found["requested_peak"], found["reserved_peak"]
    parts = [f"peak requested {size(requested)}" if requested else "requests are not counted", f"peak reserved {size(reserved)}"]
    parts += [waste(requested, reserved)] if requested else []
    calls, trims = found["driver_calls"], found["trims"]
    parts += [f"{calls:,} driver call{'s' * (calls != 1)}"] if calls else []  # cudaMallocAsync counts none
    parts += [f"{trims:,} trim{'s' * (trims != 1)}"] if trims is not None else []
    return f"{', '.join(parts)} ({where})"


def begin(torch: ModuleType) -> None:
    if os.environ.get(LINE) not in ("on", "quiet"):
        return
    if torch.version.cuda:
        summary = Summary(torch)
        summary.start()
        if summary.report_path:
            summary.name_blocks()
    else:
        atexit.register(Summary(torch).used_no_gpu)
