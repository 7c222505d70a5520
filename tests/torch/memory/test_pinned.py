"""Pinned memory of the host, and copies that do not wait."""

import threading

import pytest
import torch

from contents import LONG, MIB, block, fails_before, filled, holds, pinned


def test_pinned_memory_is_pinned():
    plain = torch.arange(1000)
    host = plain.pin_memory()
    assert host.is_pinned() and not plain.is_pinned()
    assert torch.equal(host, plain)
    assert host.pin_memory() is host or host.pin_memory().data_ptr() == host.data_ptr()
    assert torch.empty(10, pin_memory=True).is_pinned()
    assert host[100:200].is_pinned()


def test_memory_of_the_device_is_not_pinned():
    assert not block(100).is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        block(100).pin_memory()


def test_a_copy_from_pinned_memory_does_not_wait(sim):
    side, host = torch.cuda.Stream(), pinned(MIB, 3)
    sim.work(side, LONG)
    with torch.cuda.stream(side):
        a = host.to("cuda", non_blocking=True)
        assert not side.query()
    side.synchronize()
    assert holds(a, 3)


def test_a_copy_to_pinned_memory_arrives_when_the_stream_is_done(sim):
    a, host = filled(MIB, 4), pinned(MIB, 0)
    sim.work(torch.cuda.current_stream(), LONG)
    host.copy_(a, non_blocking=True)
    assert not torch.cuda.current_stream().query()
    assert bool((host == 0).all())
    torch.cuda.synchronize()
    assert bool((host == 4).all())


def test_a_copy_to_plain_memory_waits(sim):
    a = filled(MIB, 4)
    sim.work(torch.cuda.current_stream(), LONG)
    assert holds(a, 4)
    assert torch.cuda.current_stream().query()


def test_pinned_memory_is_read_when_the_copy_runs(sim):
    """If the program writes to the source too early, the device gets the new content: the hazard of non_blocking."""
    host, a = pinned(MIB, 1), block(MIB)
    sim.work(torch.cuda.current_stream(), LONG)
    a.copy_(host, non_blocking=True)
    host.fill_(2)
    torch.cuda.synchronize()
    assert holds(a, 2)


def test_pinned_memory_is_used_again_only_when_the_copy_is_done(sim):
    side = torch.cuda.Stream()
    host = pinned(4 * MIB, 5)
    at = host.data_ptr()
    sim.work(side, LONG)
    with torch.cuda.stream(side):
        a = host.to("cuda", non_blocking=True)
    del host
    others = [pinned(4 * MIB, 9) for _ in range(4)]
    assert at not in {other.data_ptr() for other in others}
    side.synchronize()
    assert holds(a, 5)


def test_pinned_memory_is_kept_and_used_again():
    host = pinned(4 * MIB)
    at = host.data_ptr()
    del host
    assert pinned(4 * MIB).data_ptr() == at


def test_recorded_pinned_memory_waits_for_the_stream(sim):
    side = torch.cuda.Stream()
    host = pinned(4 * MIB, 5)
    at = host.data_ptr()
    host.to("cuda", non_blocking=True)
    sim.work(side, LONG)
    with torch.cuda.stream(side):
        a = block(4 * MIB).copy_(host[:], non_blocking=True)
    del host
    assert pinned(4 * MIB, 9).data_ptr() != at
    torch.cuda.synchronize()
    assert holds(a, 5)


def test_the_host_cache_is_emptied(sim):
    torch.cuda.synchronize()
    torch._C._host_emptyCache()
    before = sim.books().allocations + sim.registered()
    host = [pinned(8 * MIB) for _ in range(3)]
    assert sim.books().allocations + sim.registered() > before
    del host
    torch._C._host_emptyCache()
    assert sim.books().allocations + sim.registered() == before


@fails_before("2.15", "counts the active bytes of the host in another way")
def test_the_host_statistics():
    before = torch.cuda.host_memory_stats()
    host = torch.empty(5 * MIB, dtype=torch.uint8, pin_memory=True)
    now = torch.cuda.host_memory_stats()
    assert now["active_bytes.current"] - before["active_bytes.current"] >= 5 * MIB
    assert now["active_requests.current"] - before["active_requests.current"] == 1
    assert now["num_host_alloc"] >= before["num_host_alloc"]
    del host
    torch.cuda.synchronize()
    pinned(100)
    assert torch.cuda.host_memory_stats()["active_bytes.current"] <= before["active_bytes.current"] + 4096


def test_the_host_statistics_are_reset():
    host = pinned(MIB)
    torch.cuda.memory.reset_peak_host_memory_stats()
    torch.cuda.memory.reset_accumulated_host_memory_stats()
    stats = torch.cuda.host_memory_stats()
    assert stats["allocated_bytes.peak"] == stats["allocated_bytes.current"]
    assert stats["allocated_bytes.allocated"] == stats["allocated_bytes.freed"] == 0
    del host


def test_pinned_memory_takes_none_of_the_device():
    before, left = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    host = pinned(64 * MIB)
    assert torch.cuda.memory_reserved() == before and torch.cuda.mem_get_info()[0] == left
    del host


def test_more_pinned_memory_than_the_device_has():
    """The capacity of the device does not limit memory of the host."""
    host = [torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True) for _ in range(5)]
    assert all(h.is_pinned() for h in host)
    del host
    torch.cuda.synchronize()
    torch._C._host_emptyCache()


def test_a_round_trip_of_every_size():
    for size in (1, 7, 512, 4095, 4097, 100_003):
        host = (torch.arange(size) % 251).to(torch.uint8).pin_memory()
        back = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        back.copy_(host.to("cuda", non_blocking=True), non_blocking=True)
        torch.cuda.synchronize()
        assert torch.equal(host, back)


def test_pinned_memory_from_threads():
    wrong = []

    def work(value):
        for size in range(1, 40):
            host = torch.full((size * 5000,), value, dtype=torch.uint8).pin_memory()
            if not holds(host.to("cuda", non_blocking=True), value):
                wrong.append((value, size))

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_memory_registered_by_hand():
    """cudart.cudaHostRegister: a program's own memory becomes pinned."""
    plain = torch.full((MIB,), 6, dtype=torch.uint8)
    runtime = torch.cuda.cudart()
    assert int(runtime.cudaHostRegister(plain.data_ptr(), MIB, 0)) == 0
    try:
        assert plain.is_pinned()
        assert holds(plain.to("cuda", non_blocking=True), 6)
        torch.cuda.synchronize()
    finally:
        assert int(runtime.cudaHostUnregister(plain.data_ptr())) == 0
    assert not plain.is_pinned()
