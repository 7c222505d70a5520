"""What test_distributed.py runs: `ranks.py RESULTS COUNT` launches that many ranks as torchrun does, but by fork, so that PyTorch is imported
once. Every rank runs all checks in order, and writes their results. After that two more ranks run, one of which dies.

A check is a function, and fails in a rank if it raises there. The rank then ends; the other ranks notice that, and fail, too.
"""

import datetime
import gc
import json
import os
import pathlib
import sys
import time
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MIB = 1 << 20
LARGE = 1 * MIB  # elements: more than NCCL exchanges in one piece
WIDTH = 512
LEFT_OVER = 512 * 1024  # bytes of tensors and workspaces that may be left between checks
RING = 336 * MIB  # what a communicator takes of the device for collectives
PEER = 448 * MIB  # and for sends to and receives from one peer

rank, ranks = 0, 1
CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def on_gpu(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device="cuda")


def used() -> int:
    left, total = torch.cuda.mem_get_info()
    return total - left


def same(tensor, *values) -> None:
    assert tensor.tolist() == list(values), (tensor.tolist(), values)


@check
def buffers():
    """The first collective takes the communicator's buffers; the next one takes nothing."""
    torch.cuda.synchronize()
    x = on_gpu(rank)
    before = used()
    dist.all_reduce(x)
    same(x, 6)
    assert used() - before == RING, used() - before
    dist.all_reduce(x)
    same(x, 24)
    assert used() - before == RING


@check
def values():
    for op, answer in ((dist.ReduceOp.SUM, 10), (dist.ReduceOp.MAX, 4), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.PRODUCT, 24)):
        x = on_gpu(rank + 1)
        dist.all_reduce(x, op)
        same(x, answer)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.uint8):
        x = on_gpu(rank + 1, 2, dtype=dtype)
        dist.all_reduce(x)
        same(x, 10, 8)
    x = on_gpu(rank + 1.0, dtype=torch.float32)
    dist.all_reduce(x, dist.ReduceOp.AVG)
    same(x, 2.5)
    x = on_gpu(rank)
    dist.broadcast(x, 2)
    same(x, 2)
    x = on_gpu(*[0] * ranks)
    dist.all_gather_into_tensor(x, on_gpu(10 + rank))
    same(x, 10, 11, 12, 13)
    parts = [on_gpu(0) for _ in range(ranks)]
    dist.all_gather(parts, on_gpu(20 + rank))
    torch.cuda.synchronize()
    x = on_gpu(0)
    dist.reduce_scatter_tensor(x, on_gpu(*range(ranks)))
    same(x, ranks * rank)
    x = on_gpu(rank)
    dist.reduce(x, 1)
    if rank == 1:
        same(x, 6)
    dist.barrier()


@check
def exchanges():
    before = used()
    x = on_gpu(*[0] * ranks)
    dist.all_to_all_single(x, on_gpu(*[10 * rank + to for to in range(ranks)]))
    same(x, *[10 * source + rank for source in range(ranks)])
    assert used() - before == (ranks - 1) * PEER
    x = on_gpu(0)
    work = [
        dist.P2POp(dist.isend, on_gpu(rank), (rank + 1) % ranks),
        dist.P2POp(dist.irecv, x, (rank - 1) % ranks),
    ]
    for request in dist.batch_isend_irecv(work):
        request.wait()
    same(x, (rank - 1) % ranks)
    if rank == 0:
        dist.send(on_gpu(77), 3)
    elif rank == 3:
        dist.recv(x, 0)
        same(x, 77)
    gathered = [on_gpu(0) for _ in range(ranks)] if rank == 0 else None
    dist.gather(on_gpu(rank), gathered, 0)
    if rank == 0:
        same(torch.stack([part.cpu() for part in gathered]).flatten(), 0, 1, 2, 3)
    dist.scatter(x, [on_gpu(5 + to) for to in range(ranks)] if rank == 0 else None, 0)
    same(x, 5 + rank)


@check
def works():
    """Asynchronous work is done when the stream is; a tensor may be used after wait."""
    x = on_gpu(rank)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    torch.cuda.synchronize()
    assert work.is_completed()
    same(x, 6)
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as coalesced:
        a, b = on_gpu(rank), on_gpu(2 * rank)
        dist.all_reduce(a)
        dist.all_reduce(b)
    coalesced.wait()
    same(a, 6)
    same(b, 12)


@check
def large():
    """Exchanges more than one piece: no rank waits, and the buffers for received data keep their content."""
    x = torch.full((LARGE,), rank, dtype=torch.int64).cuda()
    dist.all_reduce(x)
    same(x[:2].cpu(), rank, rank)
    everything = torch.empty(LARGE * ranks, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(everything, x)
    same(everything.cpu()[rank * LARGE : rank * LARGE + 2], rank, rank)


@check
def objects():
    """Exchanges Python objects. If a group had only the GPU, kernels would exchange the sizes; this group has the CPU, too."""
    everybody = [None] * ranks
    dist.all_gather_object(everybody, {"rank": rank})
    assert everybody == [{"rank": other} for other in range(ranks)]
    word = ["from 0" if rank == 0 else None]
    dist.broadcast_object_list(word, 0)
    assert word == ["from 0"]


@check
def groups():
    before = used()
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = on_gpu(rank)
    dist.all_reduce(x, group=halves[rank // 2])
    same(x, 1 if rank < 2 else 5)
    assert used() - before == RING
    dist.destroy_process_group(halves[rank // 2])
    assert used() == before


@check
def splits():
    default = dist.group.WORLD._get_backend(torch.device("cuda"))
    default.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
    odd = dist.split_group(split_ranks=[[0, 2], [1, 3]])
    x = on_gpu(rank)
    dist.all_reduce(x, group=odd)
    same(x, 2 if rank % 2 == 0 else 4)
    dist.destroy_process_group(odd)


def net() -> nn.Module:
    torch.manual_seed(rank)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def size_of(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())


def train(module: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW(module.parameters())
    for _ in range(steps):
        module(torch.empty(8, WIDTH, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    module.optimizer = optimizer


def live() -> int:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated() if has_figures() else 0


def has_figures() -> bool:
    """Without an adapter of cenote's, PyTorch has no statistics: what is exchanged is checked all the same."""
    return torch.cuda.get_allocator_backend() != "pluggable"


def becomes(least: int, most: int) -> None:
    """Waits until that much is live: a thread of PyTorch holds the tensors of collectives until it has seen that they are complete."""
    if not has_figures():
        return
    last = time.monotonic() + 20 * int(os.environ["CENOTE_TEST_PATIENCE"])
    while not least <= live() <= most and time.monotonic() < last:
        time.sleep(0.1)
    assert least <= live() <= most, (live(), least, most)


def start() -> int:
    becomes(0, LEFT_OVER)
    return live()


def about(before: int, expected: int) -> None:
    """Allows for blocks that are rounded up to 512 bytes, and for the step counters of an optimizer."""
    becomes(before + expected, before + expected + 64 * 1024)


@check
def ddp():
    """A rank has all parameters and gradient buckets, and after a step all of the two states."""
    before = start()
    module = net().cuda()
    size = size_of(module)
    module = DistributedDataParallel(module)
    about(before, 2 * size)
    train(module)
    about(before, 4 * size)


@check
def fsdp2():
    """A rank has its share of the parameters and of the two states, and all of one layer at a time."""
    from torch.distributed.fsdp import fully_shard

    before = start()
    module = net().cuda()
    size = size_of(module)
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(module)
    about(before, size // ranks)
    train(module)
    about(before, 3 * size // ranks)
    if not has_figures():
        return
    torch.cuda.reset_peak_memory_stats()
    between = live()
    train(module)
    more = torch.cuda.max_memory_allocated() - between
    assert size // 3 < more < 3 * size + MIB, (more, size)


@check
def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel

    before = start()
    module = net()
    size = size_of(module)
    module = FullyShardedDataParallel(module, device_id=torch.cuda.current_device(), use_orig_params=True)
    about(before, size // ranks)
    train(module)
    becomes(before + 3 * size // ranks, before + 4 * size // ranks + 64 * 1024)


@check
def graphs():
    x = torch.zeros(LARGE, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dist.all_reduce(x)
    graph.replay()
    torch.cuda.synchronize()


@check
def pools():
    """Tensors in memory of ncclMemAlloc, registered with the communicator."""
    if not has_figures():
        raise RuntimeError("a MemPool with an allocator needs the adapter")
    backend = dist.group.WORLD._get_backend(torch.device("cuda"))
    start()
    before = used()
    pool = torch.cuda.MemPool(backend.mem_allocator)
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(LARGE, device="cuda")
    assert used() - before >= x.numel() * 4
    backend.register_mem_pool(pool)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    backend.deregister_mem_pool(pool)
    del x, pool
    assert used() == before


@check
def ends():
    """All communicators give back what they took."""
    torch.cuda.empty_cache()
    before = used()
    dist.destroy_process_group()
    assert before - used() >= RING + (ranks - 1) * PEER


def become() -> None:
    """Runs as the rank that the environment names."""
    global rank, ranks
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def run_all(results: pathlib.Path) -> None:
    become()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=datetime.timedelta(seconds=60))
    done = {}
    try:
        for one in CHECKS:
            done[one.__name__] = "it did not end"
            try:
                one()
                done[one.__name__] = ""
            except RuntimeError as error:
                if "needs the adapter" not in str(error):
                    raise
                done[one.__name__] = str(error)
    except Exception:
        done[one.__name__] = traceback.format_exc()
    (results / f"{rank}.json").write_text(json.dumps(done))


def launch(results: pathlib.Path, count: int) -> None:
    """Starts torchrun's launcher, with a function instead of a program."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id="ranks",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    elastic_launch(config, run_all)(results)


def lose_one(store: str) -> None:
    """Rank 1 dies after a first collective; rank 0 writes the error that it gets."""
    become()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    x = on_gpu(rank)
    dist.all_reduce(x)
    same(x, 1)
    if rank == 1:
        os._exit(7)
    try:
        dist.all_reduce(x)
    except RuntimeError as error:  # DistBackendError of older versions is one
        print(error, flush=True)
        os._exit(9)
    os._exit(1)


def launch_two(results: pathlib.Path) -> None:
    """Starts two ranks, which write to lost-RANK.txt; their exit statuses go to lost.json."""
    children = []
    for number in range(2):
        child = os.fork()
        if not child:
            words = os.open(results / f"lost-{number}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(words, 1)
            os.dup2(words, 2)
            os.environ.update(RANK=str(number), WORLD_SIZE="2")
            try:
                lose_one(str(results / "store"))
            finally:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    (results / "lost.json").write_text(json.dumps(statuses))


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401  (what ranks would import, each for itself)
    import torch.distributed.fsdp  # noqa: F401

    gc.freeze()  # checks collect often
    launch(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
    launch_two(pathlib.Path(sys.argv[1]))
