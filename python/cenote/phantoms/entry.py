"""Makes this process one of a few real ranks of a large job: hook.py calls `begin` when torch is imported and CENOTE_PHANTOMS names the real ranks.
In a dry run of which another program starts the ranks, all are real, and `begin_whole` only lets them exchange objects.

The program does what it would do on a cluster: it reads RANK and WORLD_SIZE, calls init_process_group, makes groups and meshes. The store, the groups
and the object collectives that it gets are those of this package.
"""
import atexit
import functools
import os
import sys
import urllib.parse
from types import ModuleType
from typing import Any, Iterator

from cenote.base import outputs
from cenote.launch import environment
from cenote.phantoms import world as worlds
from cenote.phantoms.world import Members, World
from cenote.torch import features, patches, seams

LEAST = "2.15"  # the PyTorch whose parts are wrapped


def check_url(url: str, world: World) -> None:
    """A program that numbers its ranks itself starts them itself: then these are ranks of another job than the one that was asked for."""
    query = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(url).query))
    rank, size = int(query.get("rank", world.rank)), int(query.get("world_size", world.size))
    if (rank, size) != (world.rank, world.size):
        raise worlds.NotKnown(f"the script starts rank {rank} of {size} where the environment says rank {world.rank} of {world.size}: with --world "
                              "the dry run starts the ranks, so a script that starts its own has to be run without it")


def wrap(world: World, members: Members) -> None:
    from cenote.phantoms import groups, objects, store
    handlers = seams.get("torch.distributed.rendezvous._rendezvous_handlers")
    library = groups.Library(world)
    shared = store.PhantomStore(world, members, os.environ.get(environment.PHANTOMS_STORE, ""), library.tell_members)

    def handler(url: str, *arguments: Any, **named: Any) -> Iterator[tuple[Any, int, int]]:
        check_url(url, world)
        yield shared, world.rank, world.size
    for scheme in ("env", "tcp", "file"):
        patches.replace("phantoms", (handlers, scheme), functools.partial(in_place_of, handler))
    groups.wrap(members, library)
    atexit.register(suggest, world, library)
    replace("phantoms", {**objects.Objects(world, shared).functions, "monitored_barrier": nothing, "_store_based_barrier": shared.barrier,
             "TCPStore": store.opening(world, shared)})


def suggest(world: World, library: Any) -> None:
    """At the end. An error after a phantom has sent what is not known may come from that: ranks that compare what they have with rank 0's."""
    error = getattr(sys, "last_value", None)
    if error is None or not world.folder or isinstance(error, sys.modules["torch"].OutOfMemoryError):
        return
    for rank in library.unheard():
        outputs.write(os.path.join(world.folder, f"{rank}{environment.UNHEARD}"), b"")


def nothing(*arguments: Any, **named: Any) -> None:
    """In place of a barrier that asks each rank for a sign of life."""


def in_place_of(function: Any, inside: Any) -> Any:
    return function


def replace(feature: str, functions: dict[str, Any]) -> None:
    """Also in modules of PyTorch that have taken them over by name."""
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith("torch.distributed"):
            continue
        for name, function in functions.items():
            if callable(vars(module).get(name)):
                patches.replace(feature, (module, name), functools.partial(in_place_of, function))


def begin(torch: ModuleType) -> None:
    if not torch.version.cuda or not torch.distributed.is_available():
        return
    try:
        missing = features.why_not("phantoms")
        if missing:
            raise AttributeError(missing)
        world = worlds.read()
        wrap(world, Members(world))
    except (AttributeError, KeyError, ImportError, OSError) as why:
        raise RuntimeError(f"phantom ranks need PyTorch {LEAST} or newer on the simulated GPU, and this is {torch.__version__}: {why!r}") from why


def begin_whole(torch: ModuleType) -> None:
    """A PyTorch that has not what is replaced here is left as it is."""
    if not torch.version.cuda or not torch.distributed.is_available():
        return

    def start() -> None:
        from cenote.phantoms import objects, store
        ours = objects.Objects(worlds.Whole(), store.OwnStore()).functions
        replace("whole-job", {name: objects.on_gpu_only(function) for name, function in ours.items()})
    features.begin("whole-job", start)
