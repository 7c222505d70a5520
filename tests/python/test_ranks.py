"""`cenote dry-run --world`: a real rank among phantoms holds what it holds among real ranks, to the byte, and finds the job whole."""
import json
import os
import pathlib
import subprocess
import tempfile
import textwrap
import time

import pytest
from conftest import ROOT, clean_environment, nursery_with
from patience import patience
from spoken import said

from cenote.launch import processes

MIB = 1 << 20
HERE = pathlib.Path(__file__).parent
LLAMA = ROOT / "examples/dry/llama_ranks.py"
PIPELINES = ROOT / "examples/dry/pipeline_schedules.py"
SMALL = "--layers 4 --dim 256 --heads 8 --kv-heads 4 --hidden 512 --vocabulary 1000 --length 128 --steps 3".split()
SECONDS = 300
IMPORTS = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "torch.distributed.pipelining",
           "torch.distributed.algorithms._checkpoint.checkpoint_wrapper", "torch.testing._internal.distributed.fake_pg")

pytestmark = [pytest.mark.torch, pytest.mark.simulation]


@pytest.fixture(scope="module")
def python():
    """A stand-in for Python in which scripts begin with all that they will import."""
    nursery = nursery_with(*IMPORTS)
    yield nursery.python
    nursery.close()


@pytest.fixture
def dry(python, tmp_path):
    """dry(OPTION..., PROGRAM, ARGUMENT...): the finished command, and its JSON. What programs write in tmp_path stays."""
    def call(*arguments, **variables):
        done = subprocess.run([python, "-m", "cenote", "dry-run", "-v", "--gpu", "80GiB", "--json", tmp_path / "out.json", "--writes", tmp_path,
                               *map(str, arguments)],
                              env={**clean_environment(), **variables}, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
        return done, json.loads((tmp_path / "out.json").read_text()) if (tmp_path / "out.json").exists() else {}
    return call


@pytest.fixture
def measure(dry, python, tmp_path):
    """measure(RANKS, SCRIPT, ARGUMENT..., real="0,1"): what each real rank held. Without `real` torchrun starts all ranks, and none is a phantom."""
    def call(ranks, *program, real=None, allocator="cenote"):
        folder = pathlib.Path(tempfile.mkdtemp(dir=tmp_path))
        line = [HERE / "measured.py", folder, *program]
        launch = ["--world", ranks, "--rank", real]
        if real is None:
            launch = ["--devices", ranks, "--", python, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--no-python", python]
        done, _ = call.last = dry("--steps", "0", "--unknown", "zero", "--allocator", allocator, *launch, *line)
        assert done.returncode == 0, done.stdout + done.stderr
        return {int(path.stem): json.loads(path.read_text()) for path in folder.iterdir()}
    return call


DDP = """
    import os, torch, torch.distributed as dist
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local])
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        loss = model(torch.randn(32 << 7 * (dist.get_rank() % 2), 512, device="cuda")).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
    dist.barrier()
    dist.destroy_process_group()
"""


def test_two_ranks_apart_are_what_they_are_together(measure, tmp_path):
    (tmp_path / "ddp.py").write_text(textwrap.dedent(DDP))
    together = measure(2, "ddp.py", real="0,1")
    assert together[0] != together[1]  # they have batches of their own
    done, found = measure.last
    assert {**measure(2, "ddp.py", real="0"), **measure(2, "ddp.py", real="1")} == together
    assert "2 ranks (0, 1) of 2, 2 a node, simulated GPUs of 80GiB, cenote ---" in done.stdout
    assert "  rank 1 has most: peak in step " in done.stdout
    assert "  rank 0, cuda:0: " in done.stdout and "  rank 1, cuda:1: " in done.stdout
    devices = [report["devices"][report["rank"]] for report in found["processes"]]
    assert found["world"] == 2 and all(device["others"] >= 336 * MIB for device in devices)  # also after the group was destroyed


TOLD = """
    import datetime, json, os, torch, torch.distributed as dist
    told = {}
    def tell(call):
        try:
            told[call.__name__] = call()
        except Exception as error:
            told[call.__name__] = f"{type(error).__name__}: {error}"
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    dist.init_process_group(init_method=os.environ.get("METHOD", "env://"))
    size, rank = dist.get_world_size(), dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))

    @tell
    def gathered():
        found = [None] * size
        dist.all_gather_object(found, {"rank": rank})
        return [found[0], found[7], found[-1]]
    @tell
    def broadcast():
        words = [f"I am {rank}"]
        dist.broadcast_object_list(words, 0)
        return words
    @tell
    def scattered():
        words = [None]
        dist.scatter_object_list(words, [f"for {to}" for to in range(size)] if rank == 0 else None, 0)
        return words
    @tell
    def gathered_at_one():
        found = [None] * size if rank == 0 else None
        dist.gather_object(rank, found, 0)
        return found and [found[0], found[8], found[9]]
    @tell
    def sent():
        if rank == 0:
            dist.send_object_list(["a letter"], 9)
            dist.send_object_list(["another"], 10)
        elif rank == 9:
            words = [None]
            return [dist.recv_object_list(words, 0), *words]
    from cenote.phantoms import store as waiting
    waiting.OTHER_SECONDS, seconds = 1, waiting.OTHER_SECONDS       # no real rank ever sets the next two keys
    @tell
    def own_key():
        store.set(f"host/{rank}/name", f"node of {rank}")
        return store.get("host/1000/name").decode()
    @tell
    def key_of_a_phantom():
        return store.get("made by one") if rank == 9 else None
    waiting.OTHER_SECONDS = seconds
    @tell
    def on_the_host():
        group = dist.new_group(backend="gloo")
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        dist.barrier(group)
        dist.monitored_barrier(group)
        return x.tolist()
    @tell
    def of_a_node():
        group, groups = dist.new_subgroups(8)
        x = torch.full((2,), 3).cuda()
        dist.all_reduce(x, group=group)
        return [x.tolist(), dist.get_world_size(group), len(groups)]
    @tell
    def split():
        half = dist.split_group(split_ranks=[list(range(0, size, 2)), list(range(1, size, 2))])
        x = torch.ones(1, dtype=torch.int64).cuda()
        dist.all_reduce(x, group=half)
        return [x.item(), dist.get_rank(half)]
    @tell
    def exchanged():
        counts = [1 + to % 3 for to in range(size)]
        found = torch.zeros(size, dtype=torch.int64).cuda()
        dist.all_to_all_single(found, torch.tensor(counts).cuda())
        return [len(found.tolist()), found[1000].item()]
    @tell
    def a_pair():
        x = torch.tensor([float(rank)]).cuda()
        y = torch.zeros(1).cuda()
        work = [dist.P2POp(dist.isend, x, (rank + 1) % size), dist.P2POp(dist.irecv, y, (rank - 1) % size)]
        for one in dist.batch_isend_irecv(work):
            one.wait()
        dist.send(x, 1000)
        return y.item()
    open(os.path.join(os.environ["TOLD"], f"{rank}.json"), "w").write(json.dumps(told))
    torch.nn.Linear(2, 2).cuda()
    dist.barrier()
    dist.destroy_process_group()
"""


def test_the_job_is_whole(dry, tmp_path):
    """Rank 9 of 1,024; it needs rank 0's objects, so rank 0 comes, too."""
    (tmp_path / "told.py").write_text(textwrap.dedent(TOLD))
    done, found = dry("--world", 1024, "--rank", 9, "--steps", 0, "--unknown", "zero", "told.py", TOLD=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a rank needs what only rank 0 can say; again with rank 0 real, too" in done.stderr
    assert [report["rank"] for report in found["processes"]] == ["0", "9"] and "2 ranks (0, 9) of 1,024, 8 a node" in done.stdout
    first, ninth = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 9))
    assert first["gathered"] == [{"rank": 0}] * 3 and ninth["gathered"] == [{"rank": 0}, {"rank": 9}, {"rank": 9}]
    assert first["broadcast"] == ninth["broadcast"] == ["I am 0"]
    assert first["scattered"] == ["for 0"] and ninth["scattered"] == ["for 9"]
    assert first["gathered_at_one"] == [0, 0, 9] and ninth["gathered_at_one"] is None
    assert ninth["sent"] == [0, "a letter"]
    assert first["own_key"] == "node of 0" and ninth["own_key"] == "node of 9"
    assert ninth["key_of_a_phantom"].startswith("NotKnown: rank 9 gets the key 'default_pg/0//made by one' of the store"), ninth
    assert "name that rank, too (--rank)" in ninth["key_of_a_phantom"]
    assert first["on_the_host"] == ninth["on_the_host"] == [1024.0, 1024.0]
    assert first["of_a_node"] == ninth["of_a_node"] == [[24, 24], 8, 128]
    assert first["split"] == [512, 0] and ninth["split"] == [512, 4]
    assert first["exchanged"] == [1024, 1] and ninth["exchanged"] == [1024, 1]


OBJECTS = """
    import os, torch, torch.distributed as dist
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    letters = [{"from": rank, "text": "x" * (100 << 4 * to)} for to in range(size)]
    calls = {
        "all_gather_object": lambda do: do(found, letters[rank]),
        "gather_object": lambda do: do(letters[rank], found if rank == 1 else None, 1),
        "broadcast_object_list": lambda do: do(found if rank else letters, 0),
        "scatter_object_list": lambda do: do(found, letters if rank == 1 else None, 1),
        "send_object_list": lambda do: rank or do(letters, 1),
        "recv_object_list": lambda do: rank and do(found, 0),
    }
    def held(do, call):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        found[:] = [None] * size
        call(do)
        after = torch.cuda.memory_stats()
        lengths = [one and len(one["text"]) for one in found]
        return [*lengths, *(after[name] - before[name] for name in ("allocation.all.allocated", "requested_bytes.all.peak"))]
    found = [None] * size
    dist.barrier()
    both = [{}, {}]
    for i in (0, 1, 0, 1):                  # the first time communicators begin
        for name, call in calls.items():
            ours = getattr(dist, name)
            both[i][name] = held((ours, ours.__wrapped__)[i], call)
    assert both[0] == both[1], both
    assert rank or both[0]["send_object_list"][-2] > 4, both
    open(f"same-{rank}", "w")
    dist.destroy_process_group()
"""


def test_objects_take_the_memory_that_pytorch_takes(dry, python, tmp_path):
    """All ranks are real, and both ways work: the one with objects in the store, and PyTorch's own."""
    (tmp_path / "objects.py").write_text(textwrap.dedent(OBJECTS))
    torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--no-python", python]
    done, _ = dry("--steps", 0, "--unknown", "zero", "--devices", 2, "--", *torchrun, "objects.py")
    assert done.returncode == 0 and (tmp_path / "same-0").exists() and (tmp_path / "same-1").exists(), done.stdout + done.stderr


def test_a_script_that_starts_its_own_ranks(dry, tmp_path):
    (tmp_path / "spawn.py").write_text("import torch, torch.distributed as dist\n"
                                       "dist.init_process_group('nccl', init_method='tcp://127.0.0.1:29511', rank=1, world_size=2)\n")
    done, _ = dry("--world", 16, "spawn.py")
    assert done.returncode == 3 and "the script starts rank 1 of 2 where the environment says rank 0 of 16" in said(done.stdout)


STORE = """
    import os, time, torch, torch.distributed as dist
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], 29512, size, rank == 0, wait_for_workers=True)
    store.set(f"host of {rank}", f"node {rank // 8}")
    assert store.get(f"host of {rank}") == b"node " + str(rank // 8).encode()
    from cenote.phantoms import store as waiting
    waiting.OTHER_SECONDS, seconds = 1, waiting.OTHER_SECONDS
    assert store.get("host of 5")
    waiting.OTHER_SECONDS = 3600                # for the first phantom alone, or the test ends by its limit
    assert store.get("host of 6") and store.get("host of 12")
    waiting.OTHER_SECONDS = seconds
    if rank == 0:
        store.set("run", "7")
    store.wait(["run"])
    assert store.get("run") == b"7"
    if store.add("counted", 1) == size:         # the last one tells the others, as in torch.distributed.elastic
        store.set("all are there", "1")
    while store.add("counted", 0) < size:       # or each asks
        time.sleep(0.01)
    assert store.get("all are there") == b"1" and int(store.get("counted")) == size
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", store=store, rank=rank, world_size=size)
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    alone = dist.TCPStore("127.0.0.1", 0, 1, True)
    alone.set("a", "b")
    assert alone.get("a") == b"b" and alone.port > 0
    dist.destroy_process_group()
    open(f"opened-{rank}", "w")
"""


def test_a_store_of_the_programs_own(dry, tmp_path):
    """It waited for ranks that never come."""
    (tmp_path / "store.py").write_text(textwrap.dedent(STORE))
    done, found = dry("--world", 16, "--rank", "0,9", "--steps", 0, "--unknown", "zero", "store.py")
    assert done.returncode == 0 and found["verdict"] == "fits", done.stdout + done.stderr
    assert (tmp_path / "opened-0").exists() and (tmp_path / "opened-9").exists()


# --- waits for what no rank will do

AWAITED = """
    import os, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    from cenote.phantoms import store as waiting
    if dist.get_rank() == 0:
        while not os.path.exists("waited"):
            time.sleep(0.05)
    else:
        waiting.REAL_SECONDS, seconds = 1, waiting.REAL_SECONDS
        try:
            dist.recv_object_list([None], 0)
        except RuntimeError as error:
            open("waited.part", "w").write(str(error))
            os.rename("waited.part", "waited")
        waiting.REAL_SECONDS = seconds
        dist.broadcast_object_list([None], 0)
"""


def test_a_wait_for_what_a_real_rank_does_not_do_ends(dry, tmp_path):
    (tmp_path / "awaited.py").write_text(textwrap.dedent(AWAITED))
    done, _ = dry("--world", 4, "--rank", "0,1", "awaited.py")
    assert done.returncode == 3, done.stdout + done.stderr
    assert (tmp_path / "waited").read_text() == (
        "rank 1 has waited 1 s for the objects of recv_object_list of rank 0, which runs, and does something else. With --timeout 60 the dry run "
        "ends after a minute, and says where each rank is")
    assert ("rank 1 waits for the objects of broadcast_object_list of rank 0, and rank 0 has ended. A rank ends after --steps steps of its "
            "optimizer: with --steps 0 every rank runs to its end") in said(done.stdout)


COMPARED = """
    import os, torch, torch.distributed as dist
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    first = torch.tensor([7 if rank == 0 else -1]).cuda()
    dist.broadcast(first, 0)
    open(f"ran-{rank}-of-{os.environ['CENOTE_PHANTOMS']}", "w")
    if first.item() != 7 or rank == WRONG:
        raise RuntimeError(f"rank {rank} differs from rank 0")
    torch.ones(2).cuda()
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("wrong, status", [(-1, 0), (9, 3)])
def test_a_rank_that_fails_begins_again_once_with_what_it_did_not_hear(dry, tmp_path, wrong, status):
    """As DeepSpeed's ZeRO 3, where each rank compares its modules with rank 0's; then one that is wrong for another reason."""
    (tmp_path / "compared.py").write_text(textwrap.dedent(COMPARED).replace("WRONG", str(wrong)))
    done, found = dry("--world", 16, "--rank", 9, "--steps", 0, "--unknown", "zero", "compared.py")
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr.count("a rank failed, and what rank 0 sent it before was not known; again with rank 0 real, too") == 1
    assert {path.name for path in tmp_path.glob("ran-*")} == {"ran-9-of-9", "ran-0-of-0,9", "ran-9-of-0,9"}


def test_scripts_with_pytorch_end_with_a_command_that_is_killed(python, tmp_path):
    """The stand-in for Python, which runs a script in another process, ends that, too."""
    (tmp_path / "long.py").write_text("import os, time; print(os.getpid(), flush=True); time.sleep(100000)")
    with subprocess.Popen([python, "-m", "cenote", "dry-run", "--gpu", "1GiB", "--world", "4", "long.py"], env=clean_environment(), cwd=tmp_path,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        number = int(child.stdout.readline())
        child.kill()
        last = time.monotonic() + patience(20)
        while number in (seen := processes.seen()) and not seen[number].has_ended:
            assert time.monotonic() < last
            time.sleep(0.02)


# --- the proof

CASES = {
    "DDP": (4, [], ["0", "3"]),
    "FSDP2": (2, [LLAMA, *SMALL], ["0", "1"]),
    "FSDP2, recomputation": (4, [LLAMA, *SMALL, "--recompute"], ["0", "3"]),
    "HSDP": (4, [LLAMA, *SMALL, "--replicas", "2"], ["0", "3"]),
    "uneven shards": (3, [LLAMA, *SMALL, "--dim", "264", "--hidden", "501"], ["0", "2"]),
    "TP4, recomputation": (4, [LLAMA, *SMALL, "--tensor", "4", "--recompute"], ["0", "3"]),
    "TP2 x FSDP2": (4, [LLAMA, *SMALL, "--tensor", "2"], ["0", "3"]),
    "PP2 x FSDP2": (4, [LLAMA, *SMALL, "--pipeline", "2"], ["0,2", "1,3"]),
    "PP2 x TP2": (4, [LLAMA, *SMALL, "--pipeline", "2", "--tensor", "2"], ["0,2", "1,3"]),
    "GPipe": (4, [PIPELINES, "GPipe", "2"], ["0,1"]),
    "1F1B": (4, [PIPELINES, "1F1B", "2"], ["2,3"]),
    "Interleaved1F1B": (4, [PIPELINES, "Interleaved1F1B", "2"], ["0,1"]),
    "TP2 x FSDP2 of 8": (8, [LLAMA, *SMALL, "--tensor", "2"], ["0", "7"]),
}


@pytest.mark.deep
@pytest.mark.parametrize("allocator", ["cenote", "native"])
@pytest.mark.parametrize("case", CASES)
def test_phantoms_change_nothing(measure, tmp_path, case, allocator):
    """Beside torchrun with all ranks: peaks, number of allocations and memory outside the allocator."""
    (tmp_path / "ddp.py").write_text(textwrap.dedent(DDP))
    ranks, program, parts = CASES[case]
    together = measure(ranks, *program or ["ddp.py"], allocator=allocator)
    assert sorted(together) == list(range(ranks))
    for real in parts:
        apart = measure(ranks, *program or ["ddp.py"], real=real, allocator=allocator)
        assert sorted(apart) == [int(rank) for rank in real.split(",")]
        assert apart == {rank: together[rank] for rank in apart}


@pytest.mark.deep
def test_a_stage_brings_the_stages_before_it(dry):
    done, found = dry("--world", 64, "--rank", 55, "--quiet", LLAMA, *SMALL, "--pipeline", "4", "--tensor", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [report["rank"] for report in found["processes"]] == ["7", "23", "39", "55"]
