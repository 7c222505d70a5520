"""The store in which the ranks of a job find each other, where most of them are phantoms.

Real ranks share a file (a single one has a table of its own); what they set, they find. Of what a phantom would have set, two things can be made up:
the id of a communicator, which any 128 bytes are, and a value of which this rank has set its own under the same key with its own number. The store
sees the ids of communicators go by, and tells the simulated NCCL which ranks are in them.
"""
import datetime
import os
import re
import time
from typing import Any, Callable, Optional, Sequence

import torch.distributed.distributed_c10d as c10d
from torch.distributed import FileStore, HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from cenote.phantoms.world import Members, NeverCame, NotKnown, World
from cenote.torch import seams

ID_BYTES = 128  # of ncclUniqueId
ID_KEY = re.compile(r"nccl_storekey_\d+(?:_(\d+))?|(?:.*:)?(\d+):(\d+)|\d+|UniqueNCCLID:\d+")  # the last part of the key of an id
NUMBER = re.compile(r"\d+")
COUNT = re.compile(rb"-?\d+")
REAL_SECONDS = 600  # that a real rank may take to set what only it can set
OTHER_SECONDS = 30  # that real ranks have to set a key that may also be a phantom's
LOOK = 0.2  # s between two looks whether a rank that is awaited has ended


class OwnStore:
    """The store that PyTorch has, of a job whose ranks are all real, with the methods of PhantomStore that objects.py uses."""

    @property
    def inner(self) -> Any:
        return seams.get("torch.distributed.distributed_c10d._get_default_store")()

    def wait_for(self, rank: int, key: str, what: str) -> None:
        try:
            self.inner.wait([key], datetime.timedelta(seconds=REAL_SECONDS))
        except RuntimeError as why:
            raise NeverCame(f"rank {c10d.get_rank()} has waited for {what} of rank {rank}, which has not given it: {why}") from why


class PhantomStore(Store):
    """PyTorch calls these methods from C++, by their names."""

    def __init__(self, world: World, members: Members, path: str, tell_members: Callable[[bytes, Sequence[int]], None]) -> None:
        super().__init__()
        self.world, self.members, self.tell_members = world, members, tell_members
        self.inner: Any = FileStore(path) if len(world.real) > 1 else HashStore()
        self.own: set[str] = set()  # keys that this rank has set
        self.stood_in: set[str] = set()  # those of them whose value was taken for a phantom's
        self.counted: dict[str, int] = {}  # what this rank has added, by the key of a count

    # --- ids

    def is_id_key(self, key: str) -> bool:
        return ID_KEY.fullmatch(key.rpartition("/")[2]) is not None

    def ranks_of_id(self, key: str) -> tuple[int, ...]:
        """The ranks of the world in the communicator whose id has this key: a group, or two ranks of it."""
        ranks = self.members.of_key(key)
        match = ID_KEY.fullmatch(key.rpartition("/")[2])
        return (ranks[int(match[2])], ranks[int(match[3])]) if match and match[2] else ranks

    def maker_of_id(self, key: str) -> Optional[int]:
        """The rank that has to set the id; None: any may, because it is one of several ids, and the first one counts."""
        match = ID_KEY.fullmatch(key.rpartition("/")[2])
        return None if match and match[1] and match[1] != "0" else self.ranks_of_id(key)[0]

    def saw(self, key: str, value: bytes) -> bytes:
        if len(value) == ID_BYTES and self.is_id_key(key):
            self.tell_members(value, self.ranks_of_id(key))
        return value

    # --- what is there, and what is made up

    def comes(self, key: str) -> bool:
        """Whether the key is set, or a real rank sets it before the next look."""
        try:
            self.inner.wait([key], datetime.timedelta(seconds=LOOK))
        except RuntimeError:  # it was not set in time
            return False
        return True

    def found(self, key: str, ranks: Sequence[int], seconds: float) -> bool:
        """Whether the key is set, or one of these real ranks sets it in that time."""
        others, last = {*ranks} - {self.world.rank}, time.monotonic() + seconds
        while not self.inner.check([key]):
            others = {rank for rank in others if not self.world.has_ended(rank)}
            if not others or time.monotonic() > last:
                return bool(self.inner.check([key]))
            self.comes(key)
        return True

    def wait_for(self, rank: int, key: str, what: str, timeout: Optional[datetime.timedelta] = None) -> None:
        """Until that real rank has set the key. `what` is all that the user learns of it."""
        seconds = timeout.total_seconds() if timeout is not None else REAL_SECONDS
        last = time.monotonic() + seconds
        while not self.comes(key):
            has_ended = self.world.has_ended(rank)
            if has_ended and not self.inner.check([key]):
                raise NeverCame(f"rank {self.world.rank} waits for {what} of rank {rank}, and rank {rank} has ended. A rank ends after --steps steps "
                                "of its optimizer: with --steps 0 every rank runs to its end")
            if not has_ended and time.monotonic() > last:
                raise NeverCame(f"rank {self.world.rank} has waited {seconds:.0f} s for {what} of rank {rank}, which runs, and does something else. "
                                "With --timeout 60 the dry run ends after a minute, and says where each rank is")

    def swapped(self, key: str) -> Optional[str]:
        """The same key with this rank's number in place of a phantom's, if this rank has set that."""
        for match in NUMBER.finditer(key):
            if int(match[0]) < self.world.size and not self.world.is_real(int(match[0])):
                own = f"{key[:match.start()]}{self.world.rank}{key[match.end():]}"
                if own in self.own:
                    return own
        return None

    def patience(self, key: str) -> float:
        """How long real ranks have to set the key. None did for the first phantom whose key differs from this only in its number: none will now."""
        return 0 if self.swapped(key) in self.stood_in else OTHER_SECONDS

    def get(self, key: str) -> bytes:
        maker = self.maker_of_id(key) if self.is_id_key(key) else None
        if self.is_id_key(key) and (maker is None or not self.world.is_real(maker)):
            if not self.inner.check([key]):
                self.inner.compare_set(key, "", os.urandom(ID_BYTES // 2).hex())  # real ranks that get it at one time get the same
        elif not (self.found(key, self.world.real, self.patience(key)) if maker is None else self.found(key, [maker], REAL_SECONDS)):
            own = self.swapped(key)
            if own is None:
                raise NotKnown(f"rank {self.world.rank} gets the key {key!r} of the store, which no real rank has set: a phantom's value cannot be "
                               "made up. If one rank sets it, name that rank, too (--rank)")
            self.stood_in.add(own)
            key = own
        value = bytes(self.inner.get(key))
        is_count = key in self.counted and COUNT.fullmatch(value)
        return self.saw(key, b"%d" % (int(value) + self.of_phantoms(key)) if is_count else value)

    def wait(self, keys: list[str], timeout: Optional[datetime.timedelta] = None) -> None:
        """Phantoms have set their keys long ago; `get` waits for those of real ranks."""

    def barrier(self, rank: int, store: Any, group_name: str, rendezvous_count: int, timeout: datetime.timedelta, *more: Any) -> None:
        """In place of PyTorch's _store_based_barrier, for TORCH_DIST_INIT_BARRIER=1: the real ranks of the group wait for each other, or all real
        ranks, if ranks outside the group take part."""
        ranks = range(self.world.size) if rendezvous_count == self.world.size else self.members.by_name.get(group_name, ())
        key = f"cenote-barrier/{group_name}"
        self.inner.set(f"{key}/{self.world.rank}", "1")
        for other in filter(self.world.is_real, ranks):
            self.wait_for(other, f"{key}/{other}", f"the barrier at the start of group {group_name!r}", timeout)

    def of_phantoms(self, key: str) -> int:
        """Each has added what this rank has: a rank that counts those that have come counts all, once the real ones are there."""
        return self.counted[key] * (self.world.size - len(self.world.real))

    def add(self, key: str, value: int) -> int:
        self.counted[key] = self.counted.get(key, 0) + value
        return int(self.inner.add(key, value)) + self.of_phantoms(key)

    def set(self, key: str, value: Any) -> None:
        text = value.encode() if isinstance(value, str) else bytes(value)
        self.own.add(key)
        self.counted.pop(key, None)
        self.inner.set(key, text)
        self.saw(key, text)

    # --- the rest of the interface

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self.own.add(key)
        self.counted.pop(key, None)
        return bytes(self.inner.compare_set(key, expected, desired))

    def check(self, keys: list[str]) -> bool:
        return bool(self.inner.check(keys))

    def delete_key(self, key: str) -> bool:
        self.own.discard(key)
        self.counted.pop(key, None)
        return bool(self.inner.delete_key(key))

    def num_keys(self) -> int:
        return int(self.inner.num_keys())

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Not needed: each wait has its own."""

    def has_extended_api(self) -> bool:
        return True

    def append(self, key: str, value: bytes) -> None:
        self.set(key, (bytes(self.inner.get(key)) if self.inner.check([key]) else b"") + bytes(value))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        for key, value in zip(keys, values):
            self.set(key, value)

    def clone(self) -> "PhantomStore":
        return self


class ProgramsStore(PrefixStore):
    """What a program gets that opens a TCPStore for the ranks of its job: a part of their one store."""

    def __init__(self, host: str, port: int, shared: PhantomStore) -> None:
        super().__init__(f"cenote-{host}:{port}", shared)
        self.host, self.port = host, port


def opening(world: World, shared: PhantomStore) -> type:
    class Opened(TCPStore):
        """In place of TCPStore. One for a single rank, as a program has for itself, is PyTorch's."""

        def __new__(cls, host_name: str, port: int, world_size: Optional[int] = None, *arguments: Any, **named: Any) -> Any:
            if world_size == 1:
                return TCPStore(host_name, port, world_size, *arguments, **named)
            if world_size not in (None, -1, world.size):
                raise NotKnown(f"the script opens a TCPStore for {world_size} ranks, and the job has {world.size}: no phantom comes to it")
            return ProgramsStore(host_name, port, shared)
    Opened.__name__ = Opened.__qualname__ = TCPStore.__name__
    return Opened
