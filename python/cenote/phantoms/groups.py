"""Process groups of which most ranks are phantoms: what PyTorch calls to make one, wrapped.

NCCL's are made as ever; the simulated NCCL is told before which ranks are in a communicator, because ranks that do not run cannot say so. Gloo would
connect to every rank by TCP; in its place stands PyTorch's own group without communication, whose ranks all say what this one says.
"""
import ctypes
from contextlib import suppress
from typing import Any, Callable, Sequence

from cenote.phantoms.world import Members, World
from cenote.torch import patches, seams

UNHEARD_MAX = 8  # of them, as in seats.c
NCCL = ("nccl", "nccl2", "nccl-lazy", "nccl-legacy")  # names of PyTorch 2.15; those that are not there are left out


class Library:
    """The calls of the simulated NCCL that the real one does not have; see sim/libraries/nccl/seats.c."""

    def __init__(self, world: World) -> None:
        self.nccl = ctypes.CDLL("libnccl.so.2")
        self.must(self.nccl.ncclPhantomsWorld(world.node, len(world.real), self.numbers(world.real)))

    @staticmethod
    def numbers(ranks: Sequence[int]) -> Any:
        return (ctypes.c_int * len(ranks))(*ranks)

    @staticmethod
    def must(result: int) -> None:
        if result:
            raise RuntimeError(f"the simulated NCCL refuses what it is told of phantoms: {result}")

    def tell_members(self, identity: bytes, ranks: Sequence[int]) -> None:
        self.must(self.nccl.ncclPhantomsMembers(ctypes.c_char_p(identity), len(ranks), self.numbers(ranks)))

    def unheard(self) -> list[int]:
        """Ranks of the world that sent something small which is not known: the memory stayed as it was."""
        found = (ctypes.c_int * UNHEARD_MAX)()
        return list(found[:self.nccl.ncclPhantomsUnheard(UNHEARD_MAX, found)])

    def tell_split(self, parents: Sequence[int]) -> None:
        self.must(self.nccl.ncclPhantomsNextSplit(len(parents), self.numbers(parents)))


def on_gpu(members: Members, library: Library, create: Callable[..., Any]) -> Callable[..., Any]:
    def create_group(options: Any, backend_options: Any) -> Any:
        members.add(options.group_id, options.global_ranks_in_group)
        if options.split_from:  # of the default group, in which each rank has its number in the world
            library.tell_split(members.by_name[options.group_id])
        return create(options, backend_options)
    return create_group


def on_cpu(members: Members) -> Callable[..., Any]:
    def create_group(options: Any, backend_options: Any) -> Any:
        group_type = seams.get("torch._C._distributed_c10d.FakeProcessGroup")
        members.add(options.group_id, options.global_ranks_in_group)
        wish = group_type.Options()
        wish.simulate_uniform_ranks = True
        return group_type._create_internal(options.group_rank, options.group_size, wish)
    return create_group


def wrap(members: Members, library: Library) -> None:
    """AttributeError or KeyError: this PyTorch is older."""
    register, plugins = seams.get("torch.distributed.Backend._ensure_backend_registered"), seams.get("torch.distributed.Backend._plugins")
    for name in (*NCCL, "gloo"):
        with suppress(ValueError):
            register(name)
    for name in NCCL:
        if name.upper() in plugins:
            patches.replace("phantoms", (plugins, name.upper()),
                            lambda plugin: plugin._replace(creator_fn=on_gpu(members, library, plugin.creator_fn)))
    patches.replace("phantoms", (plugins, "GLOO"), lambda plugin: plugin._replace(creator_fn=on_cpu(members), extended_api=True))

    def splitting(split: Any) -> Any:
        def split_group(self: Any, new_ranks: Sequence[int], *arguments: Any, **named: Any) -> Any:
            parents, whole = sorted(new_ranks), members.by_name.get(self.group_name)
            if whole is not None and self.rank() in parents:
                if named.get("group_name"):
                    members.add(named["group_name"], [whole[rank] for rank in parents])
                library.tell_split(parents)
            return split(self, list(new_ranks), *arguments, **named)
        return split_group
    patches.replace("phantoms", "torch.distributed.ProcessGroup.split_group", splitting)
