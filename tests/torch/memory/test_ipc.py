"""Tensors and events of one process in another: torch.multiprocessing."""

import os
import resource
import time

import pytest
import torch
import torch.multiprocessing

import simulated
from contents import MIB, block, fill, filled, holds, overlap, release
from elsewhere import elsewhere
from patience import patience

SHAPE = f"{simulated.SHAPE},machine:memory{os.getpid()}"
run = elsewhere(SHAPE)
run_expandable = elsewhere(SHAPE, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")

kept = {}  # what the other process received


# --- what the other process can do


def keep(name, *tensors):
    kept[name] = list(tensors)


def all_hold(name, *values):
    return [holds(tensor, value) for tensor, value in zip(kept[name], values)]


def overwrite(name, value):
    for tensor in kept[name]:
        fill(tensor, value)
    torch.cuda.synchronize()


def let_go(name):
    kept.pop(name, None)
    release()
    torch.cuda.ipc_collect()


def distances(name):
    first = kept[name][0].data_ptr()
    return [tensor.data_ptr() - first for tensor in kept[name]]


def allocated():
    return torch.cuda.memory_allocated()


def left_on_the_device():
    torch.cuda.current_stream().synchronize()
    return torch.cuda.mem_get_info()[0]


def event_is_done(handle):
    event = torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), handle)
    event.synchronize()
    event.wait(torch.cuda.Stream())
    return event.query()


def new_event():
    kept["event"] = torch.cuda.Event(interprocess=True)
    kept["event"].record()
    return kept["event"].ipc_handle()


def apart(one, other):
    return kept[other][0].data_ptr() - kept[one][0].data_ptr()


def refuses(*arguments):
    """Says whether a damaged handle gives an error, and does nothing else."""
    try:
        torch.UntypedStorage._new_shared_cuda(*arguments)
    except RuntimeError:
        return True
    return False


def device_of(name):
    return [tensor.device.index for tensor in kept[name]]


def send_back(name):
    return kept[name]


def make(size, value):
    kept["made"] = [filled(size, value)]
    return kept["made"][0]


def serve(inbox, outbox) -> None:
    while True:
        request = arguments = None
        try:
            if not (request := inbox.get()):
                break
            name, *arguments = request
            outbox.put((True, globals()[name](*arguments)))
        except Exception as error:  # noqa: BLE001
            outbox.put((False, f"{type(error).__name__}: {error}"))
        del arguments, request


class Other:
    """Another process that uses the GPU."""

    def __init__(self) -> None:
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "test_ipc"])
        self._inbox, self._outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=serve, args=(self._inbox, self._outbox), daemon=True)
        self.process.start()

    def __getattr__(self, name):
        def call(*arguments):
            self._inbox.put((name, *arguments))
            deadline = time.monotonic() + patience(60)
            while self._outbox.empty() and self.process.is_alive() and time.monotonic() < deadline:
                time.sleep(0.001)
            fine, answer = self._outbox.get(timeout=patience(5))
            assert fine, answer
            return answer

        return call

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            self._inbox.put(None)
        self.process.join(20)
        assert not self.process.is_alive()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def one_tensor():
    with Other() as other:
        a = filled(3 * MIB, 7)
        other.keep("a", a)
        assert other.all_hold("a", 7) == [True]
        fill(a, 8)
        torch.cuda.synchronize()
        assert other.all_hold("a", 8) == [True]
        other.overwrite("a", 9)
        assert holds(a, 9)
        other.let_go("a")


def views():
    """Parts of one storage stay parts of one storage."""
    with Other() as other:
        whole = filled(30 * MIB, 1)
        parts = [whole[MIB : 2 * MIB], whole[20 * MIB : 30 * MIB], whole]
        for value, part in enumerate(parts[:2], 2):
            fill(part, value)
        torch.cuda.synchronize()
        other.keep("parts", *parts)
        assert other.all_hold("parts", 2, 3) == [True, True]
        assert other.distances("parts") == [0, 19 * MIB, -MIB]
        other.let_go("parts")


def memory_in_use_elsewhere():
    """The sender drops a tensor that the receiver still reads: no other tensor gets the memory."""
    with Other() as other:
        a = filled(12 * MIB, 5)
        other.keep("a", a)
        at = a.data_ptr()
        del a
        others = [filled(12 * MIB, 6) for _ in range(4)]
        assert at not in {b.data_ptr() for b in others}
        assert other.all_hold("a", 5) == [True]
        other.let_go("a")


def memory_comes_back():
    release()
    torch.cuda.ipc_collect()
    before = torch.cuda.memory_allocated()
    with Other() as other:
        for value in range(1, 6):
            a = filled(12 * MIB, value)
            other.keep("a", a)
            del a
            assert other.all_hold("a", value) == [True]
            other.let_go("a")
            torch.cuda.ipc_collect()
        torch.cuda.ipc_collect()
        assert torch.cuda.memory_allocated() == before


@run
def test_a_tensor_in_two_processes():
    one_tensor()


@run
def test_views_in_two_processes():
    views()


@run
def test_memory_that_another_process_reads_is_not_used_again():
    memory_in_use_elsewhere()


@run
def test_memory_comes_back_when_the_receiver_lets_go():
    memory_comes_back()


@run_expandable
def test_a_tensor_of_expandable_memory_in_two_processes():
    one_tensor()


@run_expandable
def test_views_of_expandable_memory_in_two_processes():
    views()


@run_expandable
def test_expandable_memory_that_another_process_reads_is_not_used_again():
    memory_in_use_elsewhere()


@run_expandable
def test_expandable_memory_comes_back_when_the_receiver_lets_go():
    memory_comes_back()


@run_expandable
def test_expandable_segments_that_grew_after_they_were_shared():
    """The receiver maps the new part when it receives a tensor in it."""
    with Other() as other:
        live = []
        for value in range(1, 8):
            live.append(filled(30 * MIB, value))
            other.keep(f"part{value}", live[-1])
        for value in range(1, 8):
            assert other.all_hold(f"part{value}", value) == [True]
            other.let_go(f"part{value}")


@run
def test_small_tensors_share_their_segment():
    with Other() as other:
        live = [filled(1000 + value, value) for value in range(100)]
        other.keep("small", *live)
        assert all(other.all_hold("small", *range(100)))
        other.let_go("small")


@run
def test_many_tensors_one_after_another():
    with Other() as other:
        for value in range(200):
            a = filled(5000, value % 256)
            other.keep("a", a)
        assert other.all_hold("a", 199) == [True]
        other.let_go("a")


def limit_files(most):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@run
def test_thousands_of_tensors_with_few_file_descriptors():
    """No process keeps a descriptor for each tensor: 1,024 would not suffice."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with Other() as other:
        other.limit_files(1024)
        limit_files(1024)
        live = [filled(3000 + value, value % 256) for value in range(2500)]
        other.keep("thousands", *live)
        assert all(other.all_hold("thousands", *(value % 256 for value in range(2500))))
        del live
        other.let_go("thousands")
        torch.cuda.ipc_collect()
    limit_files(before)


@run
def test_a_tensor_that_is_sent_twice_arrives_once():
    """Two ways to one storage stay one storage, and the second arrival opens nothing."""
    with Other() as other:
        a = filled(3 * MIB, 7)
        other.keep("first", a)
        other.keep("second", a[MIB:])
        assert other.apart("first", "second") == MIB
        other.let_go("first")
        assert other.all_hold("second", 7) == [True]
        other.let_go("second")


@run
def test_new_memory_at_an_old_address():
    """The receiver forgets the memory that lay there before."""
    with Other() as other:
        for value in range(1, 8):
            a = filled(3 * MIB, value)
            other.keep("a", a)
            assert other.all_hold("a", value) == [True]
            other.let_go("a")
            torch.cuda.ipc_collect()
            del a


@run
def test_damaged_handles():
    """cenote reports that a handle is damaged. PyTorch's own allocator may end the process."""
    with Other() as other:
        a = filled(MIB, 3)
        device, handle, size, offset, counter, place, *event = a.untyped_storage()._share_cuda_()
        if torch.cuda.get_allocator_backend() == "cenote":
            for damaged in (handle[:-1], handle + b"x", bytes(len(handle)), bytes([handle[0] ^ 1]) + handle[1:]):
                assert other.refuses(device, damaged, size, offset, counter, place, *event)
        torch.UntypedStorage._release_ipc_counter(counter, place, device=device)
        other.keep("a", a)
        assert other.all_hold("a", 3) == [True]
        other.let_go("a")


@run
def test_a_received_tensor_counts_for_its_sender():
    with Other() as other:
        before = other.allocated()
        a = filled(12 * MIB, 5)
        other.keep("a", a)
        assert other.allocated() == before
        other.let_go("a")


@run
def test_a_tensor_that_comes_back():
    """The other process allocates; this one receives the tensor and sends it back."""
    with Other() as other:
        a = other.make(3 * MIB, 4)
        assert holds(a, 4)
        fill(a, 6)
        torch.cuda.synchronize()
        assert other.all_hold("made", 6) == [True]
        del a
        torch.cuda.ipc_collect()


@run
def test_a_tensor_that_was_received_is_not_sent_on():
    with Other() as other:
        a = filled(3 * MIB, 4)
        other.keep("a", a)
        with Other() as third:
            b = other.make(MIB, 5)
            with pytest.raises(RuntimeError, match="received from another process"):
                torch.multiprocessing.reductions.reduce_tensor(b)
            third.keep("clone", b.clone())
            assert third.all_hold("clone", 5) == [True]
            third.let_go("clone")
            del b
        other.let_go("a")


@run
def test_tensors_of_another_device():
    with Other() as other:
        a = filled(3 * MIB, 4, "cuda:2")
        other.keep("a", a)
        assert other.all_hold("a", 4) == [True] and other.device_of("a") == [2]
        other.let_go("a")


@run
def test_empty_tensors():
    with Other() as other:
        other.keep("a", block(0), torch.empty(3, 0, device="cuda"))
        assert other.device_of("a") == [0, 0]
        other.let_go("a")


@run
def test_a_receiver_that_is_killed():
    release()
    torch.cuda.ipc_collect()
    before = torch.cuda.memory_allocated()
    with Other() as other:
        a = filled(12 * MIB, 5)
        other.keep("a", a)
        other.kill()
    assert holds(a, 5)
    del a
    torch.cuda.ipc_collect()
    assert torch.cuda.memory_allocated() - before <= 12 * MIB
    assert holds(filled(12 * MIB, 6), 6)


@run
def test_a_sender_that_is_killed():
    """Only the tensors that the sender made become invalid; the receiver goes on."""
    with Other() as other:
        a = other.make(3 * MIB, 4)
        assert holds(a, 4)
        other.kill()
    live = [filled(3 * MIB, value) for value in range(4)]
    assert not any(overlap(a, b) for b in live)
    del a
    torch.cuda.ipc_collect()
    assert all(holds(b, value) for value, b in enumerate(live))


@run
def test_events_of_another_process():
    with Other() as other:
        event = torch.cuda.Event(interprocess=True)
        event.record()
        assert other.event_is_done(event.ipc_handle())
        theirs = torch.cuda.Event.from_ipc_handle(torch.device("cuda:0"), other.new_event())
        torch.cuda.current_stream().wait_event(theirs)
        theirs.synchronize()
        assert theirs.query()


@pytest.mark.violates
@run
def test_events_that_are_not_for_other_processes(sim):
    sim.set_quiet(True)
    event = torch.cuda.Event()
    event.record()
    with pytest.raises(RuntimeError):
        event.ipc_handle()
    with pytest.raises((RuntimeError, ValueError)):
        torch.cuda.Event(interprocess=True, enable_timing=True).record()
    sim.set_quiet(False)


@run
def test_processes_share_the_device():
    """Memory that one process takes is not free for the others."""
    release()
    left = torch.cuda.mem_get_info()[0]
    with Other() as other:
        a = other.make(1 << 20, 1)
        before = torch.cuda.mem_get_info()[0]
        assert left - before >= 300 * MIB  # its context
        live = block(512 * MIB)
        assert before - other.left_on_the_device() == 512 * MIB
        del a, live
    release()
    assert torch.cuda.mem_get_info()[0] == left


@run
def test_sharing_by_hand_changes_nothing():
    a = filled(MIB, 3)
    assert a.share_memory_() is a and a.is_shared() and holds(a, 3)


def rank_main(rank, results):
    a = torch.full((1000,), rank + 1, dtype=torch.uint8).to(f"cuda:{rank}")
    results[rank].copy_(a)
    torch.cuda.synchronize(rank)


@run
def test_ranks_that_are_spawned():
    """Each rank writes into memory that the parent made for it."""
    results = [filled(1000, 0, f"cuda:{rank}") for rank in range(2)]
    torch.multiprocessing.spawn(rank_main, (results,), nprocs=2)
    assert [holds(a, rank + 1) for rank, a in enumerate(results)] == [True, True]
