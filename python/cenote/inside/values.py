"""What a program on the simulated GPU reads back from it, under `cenote dry-run`.

The library plugins/values sees every operator of PyTorch and computes, on the CPU, what the program reads back. Here it is compiled and loaded,
switched on in each thread of Python, and told what goes on past PyTorch's operators: graphs that are captured, storages that get other memory,
kernels that a compiler has written. It tells us of each value that the program read and that cannot be known; we look up where that was.

Rule V1 (plugins/values/tape.cpp): a value is known only if everything that could have written it was seen. So what is told here can only make
less known.
"""
import _thread
import atexit
import ctypes
import os
import sys
import threading
from types import FrameType, ModuleType
from typing import Any, Callable, NamedTuple, Optional

from cenote.base import source
from cenote.base.tracebacks import hide
from cenote.launch import environment
from cenote.native import adapter
from cenote.native.adapter import NotMade
from cenote.torch import features, patches, seams

POLICIES = {"zero": 0, "typical": 1, "largest": 2}  # enum Policy
KINDS = ("number", "flag", "copy", "count", "loss")  # enum Kind
SCALER = "scaler"  # a kind that only Python tells apart
KEYS = "torch._C._dispatch_tls_local_include_set"
SCALERS = os.path.join("torch", "amp", "grad_scaler.py")
PLACES_MAX = 200  # that are told apart; what is read at others is counted as one


class Place(NamedTuple):
    file: str  # of the innermost line in the program's own code, or else of the innermost line
    line: int
    kind: str  # of KINDS, or SCALER


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("recorded", "computed", "known_reads", "storages")]


class Values:
    """The library, and what it has told."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.reads: dict[Place, int] = {}
        self.places: dict[tuple[Any, int], tuple[str, int]] = {}  # of a frame's code and instruction: looked up once
        self.teller = self.told  # as long as the library may call it
        self.place_in_backward: Callable[[], tuple[str, int]] = lambda: ("", 0)

    def told(self, kind: int) -> None:
        """The program has read an unknown value, in this thread. If a handler of a signal runs here and raises, the library passes that on to the
        program (rule V8)."""
        try:
            caller: Optional[FrameType] = sys._getframe(1)
        except ValueError:  # a thread of autograd without a frame of Python's
            caller = None
        file, line = self.place_of(caller)
        name = SCALER if is_in_a_step_of_a_scaler(caller) else KINDS[kind]
        place = Place(file, line, name)
        if place not in self.reads and len(self.reads) >= PLACES_MAX:
            place = Place("", 0, name)
        self.reads[place] = self.reads.get(place, 0) + 1

    def place_of(self, innermost: Optional[FrameType]) -> tuple[str, int]:
        frame = innermost
        while frame is not None and source.is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            return frame.f_code.co_filename, frame.f_lineno or 0
        place = self.place_in_backward()  # a thread of autograd has frames of a library's hooks at most
        return place if place[0] or innermost is None else (innermost.f_code.co_filename, innermost.f_lineno or 0)

    def report(self) -> dict[str, Any]:
        counts = Counts()
        self.library.cenote_values_count(ctypes.byref(counts))
        rows = [{"file": place.file, "line": place.line, "kind": place.kind, "times": times}
                for place, times in sorted(self.reads.items(), key=lambda row: -row[1])]
        return {"unknown": rows, "known_reads": counts.known_reads, "computed": counts.computed, "policy": os.environ.get(environment.DRY_UNKNOWN)}

    def stepped(self) -> None:
        self.library.cenote_values_stepped()

    def forget_reads(self) -> None:
        """In a forked child."""
        self.reads = {}


def is_in_a_step_of_a_scaler(innermost: Optional[FrameType]) -> bool:
    """Where torch.amp.GradScaler reads whether a gradient is infinite. That is a sum, as many losses are."""
    frame = innermost
    while frame is not None and source.is_library(frame.f_code.co_filename):
        if frame.f_code.co_filename.endswith(SCALERS):
            return True
        frame = frame.f_back
    return False


def see_threads(library: ctypes.CDLL) -> None:
    """In this thread, and in all that Python starts. Autograd's inherit it."""
    library.cenote_values_see_thread(1)
    # Not its `run`: a class may have one of its own.
    patches.around("values", (threading.Thread, "_bootstrap_inner"), lambda *args: library.cenote_values_see_thread(1), patches.nothing)

    def starting(start: Any) -> Any:
        def start_seen(function: Callable[..., Any], *rest: Any) -> int:
            def run(*args: Any, **kwargs: Any) -> None:
                library.cenote_values_see_thread(1)
                try:
                    function(*args, **kwargs)
                except BaseException as error:
                    hide(error)
                    raise
            return start(run if callable(function) else function, *rest)  # type: ignore[no-any-return]
        return start_seen
    patches.replace("values", (_thread, "start_new_thread"), starting)


def watch_captures(library: ctypes.CDLL) -> None:
    """What is captured is not done. The replay is counted by the simulated GPU. A capture that is refused does not begin."""
    def beginning(inside: Any) -> Any:
        def capture_begin(*args: Any, **kwargs: Any) -> Any:
            library.cenote_values_capture(1)
            try:
                return inside(*args, **kwargs)
            except BaseException:
                library.cenote_values_capture(0)
                raise
        return capture_begin
    patches.replace("values", "torch.cuda.CUDAGraph.capture_begin", beginning)
    patches.around("values", "torch.cuda.CUDAGraph.capture_end", patches.nothing, lambda *args: library.cenote_values_capture(0))


def watch_storages(library: ctypes.CDLL) -> None:
    """A storage gets other memory."""
    def forget(storage: Any, *args: Any) -> None:
        if storage.device.type == "cuda":
            library.cenote_values_forget(storage.data_ptr(), storage.data_ptr() + storage.nbytes())
    patches.around("values", "torch.UntypedStorage.resize_", forget, patches.nothing)


def watch_handing_on(torch: ModuleType) -> None:
    """Code outside of PyTorch gets the memory of a tensor: what is known or made up of it has to be there."""
    def hand_on(tensor: Any, *args: Any) -> None:
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            with torch.no_grad():
                torch.ops.cenote_values.hand_on(tensor)

    def handing(inside: Any) -> Any:
        def interface(tensor: Any) -> Any:
            hand_on(tensor)
            return inside.__get__(tensor)
        return property(interface)
    for name in ("torch.Tensor.__dlpack__", "torch._C._to_dlpack", "torch.utils.dlpack.to_dlpack", "torch.to_dlpack"):
        patches.around("values", name, hand_on, patches.nothing)
    patches.replace("values", "torch.Tensor.__cuda_array_interface__", handing)


def let_operators_of_python_pass(before: Any) -> None:
    """Higher-order operators (flex attention, random numbers in a DTensor) choose among the dispatch keys that have a name in Python. The key by
    which the library sees operators has none, so they have to look past it. `before`: the keys of this thread without it."""
    key = (seams.get(KEYS)() - before).highestPriorityTypeId()
    for operator in seams.get("torch._ops._higher_order_ops").values():
        operator.fallthrough(key)
    patches.around("values", "torch._ops.HigherOrderOperator.__init__", patches.nothing, lambda operator, *args: operator.fallthrough(key))


def begin(torch: ModuleType, say: Callable[[str], None]) -> Optional[Values]:
    """None: values are not kept, and why was said."""
    policy = os.environ.get(environment.DRY_UNKNOWN, "")
    if policy not in POLICIES or not features.is_whole("values"):
        return None
    try:
        _, library = adapter.loaded(adapter.describe(torch), say, adapter.VALUES)
    except (NotMade, OSError) as why:
        say(f"cenote dry-run: kernels compute nothing, and the program reads back what is in memory: {why}")
        return None
    values = Values(library)
    library.cenote_values_forget.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    library.cenote_values_begin.argtypes = [ctypes.c_int, ctypes.py_object]
    refused = library.cenote_values_begin(POLICIES[policy], values.teller)
    if refused:
        reason = ("", "the simulated GPU is of another version", "another library sees the operators of this PyTorch")[refused]
        say(f"cenote dry-run: kernels compute nothing, and the program reads back what is in memory: {reason}")
        return None
    atexit.register(library.cenote_values_python_ends)
    os.register_at_fork(after_in_child=values.forget_reads)
    if not features.begin("values", lambda: see(torch, library)):
        library.cenote_values_see_thread(0)
        return None
    return values


def see(torch: ModuleType, library: ctypes.CDLL) -> None:
    before = seams.get(KEYS)()
    see_threads(library)
    let_operators_of_python_pass(before)
    watch_captures(library)
    watch_storages(library)
    watch_handing_on(torch)
