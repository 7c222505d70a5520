"""Which ranks the job has, and which of them are real: what launch/ranks.py has told this process in its environment.

A real rank has a process; a phantom has none. Phantoms are never waited for. What they would say is made up where a program of equal ranks shows it;
where it does not, `Needed` names the rank that has to be real, and `NotKnown` says what cannot be made up.
"""
import os
from typing import NamedTuple, NoReturn, Sequence

from cenote.base import outputs
from cenote.launch import environment


class Needed(BaseException):
    """A real rank needs what only one other rank can say, and that one is a phantom. No program is to catch it as one of its own errors."""


class NotKnown(RuntimeError):
    """A phantom would have said it, and it cannot be made up."""


class NeverCame(RuntimeError):
    """Another real rank would have to do it, and does not."""


class World(NamedTuple):
    rank: int
    size: int
    node: int  # ranks of a node
    real: tuple[int, ...]  # rising
    folder: str  # of the dry run; "" if there is none

    def is_real(self, rank: int) -> bool:
        return rank in self.real

    def has_ended(self, rank: int) -> bool:
        """Whether it is known that this real rank has no process any more: launch/ranks.py says so."""
        return bool(self.folder) and os.path.exists(os.path.join(self.folder, f"{rank}{environment.ENDED}"))

    def need(self, rank: int, what: str) -> NoReturn:
        """Ends what this rank does with an error; launch/ranks.py finds the file, and runs the job again with that rank."""
        if self.folder:
            outputs.write(os.path.join(self.folder, f"{rank}{environment.NEEDED}"), b"")
        named = ",".join(map(str, sorted({*self.real, rank})))
        raise Needed(f"rank {self.rank} needs {what} of rank {rank}, which has no process in this dry run; name it, too: --rank {named}")


class Whole:
    """A job of which all ranks are real and were started by another program, torchrun for example."""

    @property
    def rank(self) -> int:
        import torch.distributed
        return torch.distributed.get_rank()

    def is_real(self, rank: int) -> bool:
        return True

    def need(self, rank: int, what: str) -> NoReturn:
        raise AssertionError(f"rank {rank} is real")


def read() -> World:
    """The world of this process. KeyError or ValueError if it was not told, or not by launch/ranks.py."""
    real = tuple(sorted(int(rank) for rank in os.environ[environment.PHANTOMS].split(",")))
    return World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"]), real,
                 os.environ.get(environment.DRY_RUN, ""))


class Members:
    """The ranks of the world in each group of this process, by the group's name. A group's name is a part of its keys in the store."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.by_name: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, ranks: Sequence[int]) -> None:
        self.by_name[name] = tuple(ranks) or tuple(range(self.world.size))

    def of_key(self, key: str) -> tuple[int, ...]:
        """The members of the innermost group in the key's path; the whole world if none is there."""
        for part in reversed(key.split("/")):
            if part in self.by_name:
                return self.by_name[part]
        return tuple(range(self.world.size))
