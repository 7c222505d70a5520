"""cenote.pause and cenote.resume: finds the memory that the program names. libcenote puts it to sleep and wakes it (docs/sleep.md).

A pool of PyTorch's is a group of libcenote's on each device that uses it; the group lives while the caller keeps the pool. All else is a list of
blocks. What sleeps is known to libcenote alone. Of a module or an optimizer that sleeps this keeps a hook, so that a call of it is an error before a
kernel is launched: until the end of the first `resume` after which it is awake.
"""
import ctypes
import sys
import weakref
from typing import Any, Iterator, NamedTuple, NoReturn, Optional, Union

from cenote.native import adapter, bindings
from cenote.native.bindings import CONSTANT, DISCARD, KEEP, LIVE, Error, SleepStruct


class Slept(NamedTuple):
    """What one call did, on all devices."""

    memory: int  # bytes of pages that went to the driver, or came back from it
    kept: int  # bytes of contents that were copied
    discarded: int  # bytes of blocks whose contents were not; of pause alone
    awake: int  # bytes of pages that stay although a block of what was named lies there; of pause alone
    seconds: float


CONTENTS: dict[Union[bool, str], int] = {True: KEEP, False: DISCARD, "constant": CONSTANT}
OUTSIDE = object()  # in place of what a program names: the live blocks of no pool
PoolId = tuple[int, int]  # of PyTorch's pools
Block = tuple[int, int]  # a device and the start of a block


class Named:
    """What a call names."""

    def __init__(self, what: Any) -> None:
        self.torch = sys.modules.get("torch")
        self.pools = bindings.pools() or {0: bindings.pool()}
        self.is_all = what is None
        self.ids: dict[PoolId, None] = {}
        self.blocks: dict[Block, int] = {}  # with the bytes that are looked at, from the start on
        self.owners: list[Any] = []  # modules and optimizers
        if not self.is_all:
            self.add(what)

    def add(self, what: Any) -> None:
        torch = self.torch
        if isinstance(what, str):
            self.blocks.update(dict.fromkeys(of_tag(what, self.pools), 0))
        elif what is OUTSIDE:
            for device, pool in self.pools.items():
                self.blocks.update(((device, piece.address), 0) for piece in live_pieces(pool) if not piece.group)
        elif torch is not None and isinstance(what, torch.Tensor):
            self.add_tensor(what)
        elif torch is not None and isinstance(what, torch.nn.Module):
            self.owners.append(what)
            self.add([[parameter, parameter.grad] for parameter in what.parameters()])
            self.add(list(what.buffers()))
        elif torch is not None and isinstance(what, torch.optim.Optimizer):
            self.owners.append(what)
            self.add(what.state)
        elif torch is not None and isinstance(what, (torch.cuda.MemPool, torch.cuda.CUDAGraph)):
            self.add(what.id if isinstance(what, torch.cuda.MemPool) else what.pool())
        elif isinstance(what, tuple) and len(what) == 2 and all(type(part) is int for part in what):
            self.ids[what] = None
        elif isinstance(what, dict):
            self.add(list(what.values()))
        elif isinstance(what, (list, tuple, set, frozenset)):
            for each in what:
                if each is not None and not isinstance(each, (bool, int, float)):  # the state of an optimizer has numbers, too
                    self.add(each)
        else:
            raise TypeError("a MemPool, a CUDA graph, the id of a pool, a tag, a tensor, a module, an optimizer, or a list of these sleeps or wakes, "
                            f"not {what!r:.60}")

    def add_tensor(self, tensor: Any) -> None:
        """One that is made of others, as a DTensor, has no memory of its own."""
        if hasattr(tensor, "__tensor_flatten__"):
            self.add([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])
        elif tensor.is_cuda and tensor.untyped_storage().data_ptr():
            self.blocks[tensor.device.index, tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()

    def requests(self) -> Iterator[tuple[int, SleepStruct, Any]]:
        """For each call of libcenote a pool, what is named there, and what must live until the call has returned."""
        if self.is_all:
            yield from ((pool, SleepStruct(), None) for pool in self.pools.values())
        for number in self.ids:
            groups = [(pool, group_of(device, number)) for device, pool in self.pools.items()]
            if not any(group for _, group in groups):
                raise Error(f"PyTorch has no pool {number[0]},{number[1]} in use: name a torch.cuda.MemPool, or a CUDA graph that was captured")
            yield from ((pool, SleepStruct(group=group), None) for pool, group in groups if group)
        for device, pool in self.pools.items():
            starts = [start for on, start in self.blocks if on == device]
            if starts:
                array = (ctypes.c_void_p * len(starts))(*starts)
                yield pool, SleepStruct(blocks=ctypes.addressof(array), count=len(starts)), array


def pause(what: Any = None, keep: Union[bool, str] = True) -> Slept:
    contents = contents_of(keep)
    named = Named(what)
    for owner in named.owners:
        guard(owner)
    return of_all("cenote_pool_pause", named, contents)


def resume(what: Any = None) -> Slept:
    try:
        return of_all("cenote_pool_resume", Named(what), KEEP)
    finally:
        let_pass()


class Loan:
    """Memory that other processes may have, until `end`: as a context manager, to the end of its block."""

    def __init__(self, what: Any, keep: Union[bool, str]) -> None:
        self.contents = contents_of(keep)
        self.named = Named(what)
        self.loans: list[ctypes.c_void_p] = []

    def __enter__(self) -> "Loan":
        for owner in self.named.owners:
            guard(owner)
        try:
            for pool, request, _ in list(self.named.requests()):
                request.contents = self.contents
                loan = ctypes.c_void_p()
                bindings.call("cenote_pool_lend", pool, ctypes.byref(request), ctypes.byref(loan), ctypes.sizeof(request))
                self.loans.append(loan)
        except BaseException:
            self.end()
            raise
        return self

    def end(self) -> Slept:
        """The program has all of it back. After an error what has not come back is lent on; another call tries again."""
        sums = Slept(0, 0, 0, 0, 0.0)
        try:
            while self.loans:
                result = SleepStruct()
                code = bindings.function("cenote_loan_end")(self.loans[-1], ctypes.byref(result), ctypes.sizeof(result))
                if code:
                    fail(bindings.error(code), "the end of a loan")
                self.loans.pop()
                sums = Slept(sums.memory + result.pages, sums.kept + result.kept, 0, 0, sums.seconds + result.ns / 1e9)
        finally:
            let_pass()
        return sums

    def __exit__(self, *_: object) -> None:
        self.end()


def let_pass() -> None:
    """Modules and optimizers that are awake may be called again."""
    for owner, hook in list(_guards.items()):
        if not is_asleep(owner):
            hook.remove()
            del _guards[owner]


def contents_of(keep: Union[bool, str]) -> int:
    if keep not in CONTENTS:
        raise Error(f'keep is True, False or "constant", not {keep!r:.60}')
    return CONTENTS[keep]


def of_all(name: str, named: Named, contents: int) -> Slept:
    """One call after the other. The first that fails is the last."""
    sums = Slept(0, 0, 0, 0, 0.0)
    for pool, request, _ in list(named.requests()):
        request.contents = contents
        code = bindings.function(name)(pool, ctypes.byref(request), ctypes.sizeof(request))
        if code:
            fail(bindings.error(code))
        sums = Slept(sums.memory + request.pages, sums.kept + request.kept, sums.discarded + request.discarded, sums.awake + request.awake,
                     sums.seconds + request.ns / 1e9)
    return sums


def fail(error: Error, where: str = "cenote.resume") -> NoReturn:
    """If the device has no room, the error is PyTorch's, which programs catch."""
    torch = bindings.torch_with_gpu()
    if error.name == "OUT_OF_MEMORY" and torch is not None:
        raise torch.OutOfMemoryError(f"{where}: the device has no room for what sleeps, and it sleeps on. {error}") from error
    raise error


def read_asleep(tensor: Any, copy: Any) -> bool:
    """Copies to `copy`, a tensor on the host, what was kept of a contiguous tensor. False: it is awake, or its contents were discarded."""
    code = bindings.function("cenote_block_read_asleep")(tensor.data_ptr(), copy.data_ptr(), tensor.nbytes)
    error = bindings.error(code) if code else None
    if error is not None and error.name != "INVALID":
        raise error
    return error is None


# --- what is called in its sleep

_guards: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()  # modules and optimizers that were named in a pause, with their hooks


def guard(owner: Any) -> None:
    if owner not in _guards:
        register = getattr(owner, "register_step_pre_hook", None) or owner.register_forward_pre_hook
        _guards[owner] = register(refuse)


def refuse(owner: Any, *_: Any) -> None:
    if is_asleep(owner):
        raise Error(f"this {type(owner).__name__} sleeps: call cenote.resume with it, or end its loan, first")


def is_asleep(owner: Any) -> bool:
    """Whether contents of it are kept on the host. What was discarded cannot be told from what is awake. Looks at the middle of each block, because
    the first and the last page may be others', too."""
    byte, read = ctypes.create_string_buffer(1), bindings.function("cenote_block_read_asleep")
    return any(size and not read(start + size // 2, byte, 1) for (_, start), size in Named(owner).blocks.items())


# --- pools and tags

def is_in_use(pool: PoolId) -> bool:
    return any(group_of(device, pool) for device in bindings.pools())


def group_of(device: int, pool: PoolId) -> Optional[int]:
    library = adapter.active
    if library is None:
        raise Error("pools of PyTorch sleep with the adapter alone, and this process has none (cenote.status)", 8, "NOT_SUPPORTED")
    library.cenote_torch_group.restype = ctypes.c_void_p
    found: Optional[int] = library.cenote_torch_group(ctypes.c_int(device), *map(ctypes.c_ulonglong, pool))
    return found


def of_tag(name: str, pools: dict[int, int]) -> Iterator[Block]:
    """The blocks that were allocated within the tag, also within tags inside it. "a/b": within b inside a."""
    known = False
    for device, pool in pools.items():
        rows = bindings.all_of("cenote_pool_rows", bindings.RowStruct, pool, bindings.DIVISIONS.index("tag"))
        keys = {row.key for row in rows if f"/{name}/" in f"/{row.name.decode(errors='replace')}/"}
        known = known or bool(keys)
        if keys:
            yield from ((device, piece.address) for piece in live_pieces(pool) if piece.tag in keys)
    if not known:
        raise Error(f"no memory was allocated with the tag {name!r:.60}: cenote.rows() lists the tags")


def live_pieces(pool: int) -> Iterator[bindings.PieceStruct]:
    return (piece for piece in bindings.all_of("cenote_pool_pieces", bindings.PieceStruct, pool, None) if piece.state == LIVE)
