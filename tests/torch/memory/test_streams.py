"""Streams: which stream may have which memory while the GPU is behind."""

import random
import threading

import pytest
import torch

from contents import LONG, MIB, block, comes_back, fill, filled, holds, overlap, uncached


def place_of(size: int) -> int:
    """The address that a block of this size would get now."""
    return block(size).data_ptr()


def test_memory_is_used_again_at_once_on_its_own_stream(sim):
    sim.work(torch.cuda.current_stream(), LONG)
    a = block(12 * MIB)
    at = a.data_ptr()
    del a
    assert place_of(12 * MIB) == at


def test_recorded_memory_waits_for_the_stream(sim):
    side = torch.cuda.Stream()
    a = filled(12 * MIB, 1)
    at = a.data_ptr()
    source, target = filled(12 * MIB, 2), block(12 * MIB)
    sim.work(side, LONG)
    with torch.cuda.stream(side):
        target.copy_(a)
    a.record_stream(side)
    del a
    b = block(12 * MIB)
    assert b.data_ptr() != at
    b.copy_(source)
    torch.cuda.synchronize()
    assert holds(target, 1) and holds(b, 2)
    assert comes_back(at, 12 * MIB)


def test_recorded_memory_is_used_again_when_the_stream_has_passed(sim):
    side = torch.cuda.Stream()
    a = block(12 * MIB)
    at = a.data_ptr()
    sim.work(side, 10**9)
    a.record_stream(side)
    del a
    assert place_of(12 * MIB) != at
    side.synchronize()
    assert comes_back(at, 12 * MIB)


def test_without_record_stream_memory_is_handed_on(sim):
    """The hazard against which record_stream protects. It must show here, or the tests above prove nothing."""
    side = torch.cuda.Stream()
    a = filled(12 * MIB, 1)
    target = block(12 * MIB)
    source = filled(12 * MIB, 2)
    torch.cuda.synchronize()
    sim.work(side, 10**9)
    with torch.cuda.stream(side):
        target.copy_(a)
    del a
    block(12 * MIB).copy_(source)
    torch.cuda.synchronize()
    assert holds(target, 2)


def test_a_recorded_view_protects_the_whole_block(sim):
    side = torch.cuda.Stream()
    a = block(12 * MIB)
    at, view = a.data_ptr(), a[7 * MIB : 8 * MIB]
    sim.work(side, LONG)
    view.record_stream(side)
    del a, view
    assert place_of(12 * MIB) != at
    torch.cuda.synchronize()


def test_memory_recorded_on_several_streams_waits_for_the_last(sim):
    streams = [torch.cuda.Stream() for _ in range(3)]
    a = block(12 * MIB)
    at = a.data_ptr()
    for ns, stream in zip((10**9, LONG, 10**10), streams):
        sim.work(stream, ns)
        a.record_stream(stream)
    del a
    streams[0].synchronize()
    assert place_of(12 * MIB) != at
    streams[2].synchronize()
    assert place_of(12 * MIB) != at
    streams[1].synchronize()
    assert comes_back(at, 12 * MIB)


def test_recording_twice_is_recording_once(sim):
    side = torch.cuda.Stream()
    a = block(12 * MIB)
    at = a.data_ptr()
    for _ in range(10):
        a.record_stream(side)
    del a
    torch.cuda.synchronize()
    assert comes_back(at, 12 * MIB)


def test_recording_on_its_own_stream_changes_nothing(sim):
    a = block(12 * MIB)
    at = a.data_ptr()
    sim.work(torch.cuda.current_stream(), LONG)
    a.record_stream(torch.cuda.current_stream())
    del a
    assert place_of(12 * MIB) == at


def test_work_put_on_the_stream_after_the_free_does_not_delay(sim):
    """Only the work that was on the stream when the tensor was freed delays the block."""
    side = torch.cuda.Stream()
    a = block(12 * MIB)
    at = a.data_ptr()
    sim.work(side, 10**6)
    a.record_stream(side)
    del a
    before = torch.cuda.Event()
    before.record(side)
    sim.work(side, LONG)
    before.synchronize()
    assert not side.query()
    assert comes_back(at, 12 * MIB)


def test_recording_an_empty_tensor():
    block(0).record_stream(torch.cuda.Stream())


def test_recording_memory_of_the_processor_is_refused():
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.empty(4).record_stream(torch.cuda.Stream())


def test_memory_of_a_side_stream_is_not_given_to_another(sim):
    """The side stream has not begun its writes yet: until it has finished them, another stream must not get the memory."""
    side = torch.cuda.Stream()
    late, mine = filled(12 * MIB, 3), filled(12 * MIB, 4)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        sim.work(side, LONG)
        a = block(12 * MIB)
        a.copy_(late)
        del a
    b = block(12 * MIB)
    b.copy_(mine)
    torch.cuda.synchronize()
    assert holds(b, 4)


def test_memory_goes_back_to_the_stream_that_allocated_it():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        a = block(12 * MIB)
        at = a.data_ptr()
    del a
    with torch.cuda.stream(side):
        assert place_of(12 * MIB) == at


def test_a_producer_and_a_consumer_with_events(sim):
    sim.set_lag(50_000_000)
    produce, consume = torch.cuda.Stream(), torch.cuda.Stream()
    results = []
    for value in range(1, 9):
        sim.work(produce, 20_000_000)
        with torch.cuda.stream(produce):
            a = torch.full((4 * MIB,), value, dtype=torch.uint8).pin_memory().to("cuda", non_blocking=True)
        consume.wait_stream(produce)
        with torch.cuda.stream(consume):
            results.append(block(4 * MIB).copy_(a))
        a.record_stream(consume)
        del a
    torch.cuda.synchronize()
    assert all(holds(a, value) for value, a in enumerate(results, 1))


@pytest.mark.parametrize("seed", range(3))
def test_random_work_on_several_streams(sim, seed):
    """Each tensor keeps its value, whatever is allocated, recorded and freed around it while the GPU is behind."""
    generator = random.Random(seed)
    sim.set_lag(200_000)
    streams = [torch.cuda.Stream() for _ in range(4)]
    sources = [filled(4 * MIB, value) for value in range(8)]
    torch.cuda.synchronize()
    live, copies = [], []
    for _ in range(300):
        stream = generator.choice(streams)
        kind = generator.random()
        if kind < 0.42 or not live:
            value, size = generator.randrange(8), generator.choice((600, 70_000, MIB, 3 * MIB))
            with torch.cuda.stream(stream):
                a = block(size).copy_(sources[value][:size])
            live.append((a, value, stream))
        elif kind < 0.72:
            a, value, owner = generator.choice(live)
            stream.wait_stream(owner)
            with torch.cuda.stream(stream):
                copies.append((block(a.numel()).copy_(a), value))
            a.record_stream(stream)
        elif kind < 0.92:
            live.pop(generator.randrange(len(live)))
        else:
            sim.work(stream, 3_000_000)
        if len(copies) > 60:
            torch.cuda.synchronize()
            assert all(holds(a, value) for a, value in copies)
            copies.clear()
    torch.cuda.synchronize()
    assert all(holds(a, value) for a, value in copies)
    assert all(holds(a, value) for a, value, _ in live)


# --- events


def test_events_measure_the_work_between_them(sim):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    sim.work(torch.cuda.current_stream(), 250_000_000)
    end.record()
    end.synchronize()
    assert 250 <= start.elapsed_time(end) < 400


def test_an_event_is_done_when_its_stream_has_passed(sim):
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    assert event.query()
    sim.work(side, LONG)
    event.record(side)
    assert not event.query() and not side.query()
    event.synchronize()
    assert event.query() and side.query()


def test_waiting_for_an_event_orders_streams(sim):
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    a, b, source = filled(4 * MIB, 0), block(4 * MIB), filled(4 * MIB, 5)
    torch.cuda.synchronize()
    event = torch.cuda.Event()
    sim.work(first, LONG)
    with torch.cuda.stream(first):
        a.copy_(source)
        event.record()
    with torch.cuda.stream(second):
        event.wait()
        b.copy_(a)
    second.synchronize()
    assert first.query() and holds(b, 5)


def test_events_without_timing_measure_nothing():
    start, end = torch.cuda.Event(), torch.cuda.Event()
    start.record()
    end.record()
    with pytest.raises((RuntimeError, ValueError)):
        start.elapsed_time(end)


def test_events_never_recorded_measure_nothing():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises((RuntimeError, ValueError)):
        start.elapsed_time(end)


def test_time_to_an_event_that_is_not_done(sim):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    sim.work(torch.cuda.current_stream(), LONG)
    end.record()
    with pytest.raises(RuntimeError, match="(?i)not.*ready|completed"):
        start.elapsed_time(end)
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0


def test_an_event_recorded_again_counts_from_the_last(sim):
    event, side = torch.cuda.Event(), torch.cuda.Stream()
    event.record(side)
    event.synchronize()
    sim.work(side, LONG)
    event.record(side)
    assert not event.query()
    side.synchronize()
    assert event.query()


def test_many_events_leave_nothing_behind(sim):
    torch.cuda.synchronize()
    before = sim.books().events
    for _ in range(500):
        torch.cuda.Event(enable_timing=True).record()
    assert sim.books().events == before


# --- streams themselves


def test_default_streams_and_side_streams():
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.cuda.default_stream().cuda_stream == 0
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert torch.cuda.current_stream() == side
        with torch.cuda.stream(torch.cuda.default_stream()):
            assert torch.cuda.current_stream() == torch.cuda.default_stream()
        assert torch.cuda.current_stream() == side
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_side_streams_come_round():
    assert len({torch.cuda.Stream().cuda_stream for _ in range(200)}) <= 64


def test_priorities():
    least, greatest = torch.cuda.Stream.priority_range()
    assert greatest < 0 <= least
    assert torch.cuda.Stream(priority=greatest).priority == greatest
    assert torch.cuda.Stream(priority=0).priority == 0
    assert torch.cuda.Stream(priority=-1).cuda_stream != torch.cuda.Stream(priority=0).cuda_stream


def test_a_foreign_stream_is_a_stream(sim):
    own = torch.cuda.Stream()
    foreign = torch.cuda.ExternalStream(own.cuda_stream)
    sim.work(own, LONG)
    assert not foreign.query()
    with torch.cuda.stream(foreign):
        a = block(12 * MIB)
    a.record_stream(foreign)
    del a
    foreign.synchronize()
    assert own.query()


def test_the_current_stream_is_of_the_thread():
    side, seen = torch.cuda.Stream(), []
    with torch.cuda.stream(side):
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
    assert seen == [torch.cuda.default_stream()]


def test_the_null_stream_does_not_wait_for_side_streams(sim):
    """PyTorch's side streams are non-blocking: the default stream goes on."""
    side = torch.cuda.Stream()
    sim.work(side, LONG)
    a = filled(MIB, 3)
    assert holds(a, 3)
    assert not side.query()
    torch.cuda.synchronize()


def test_memory_freed_on_another_thread():
    live = [filled(5 * MIB, 8)]
    before = torch.cuda.memory_allocated()
    thread = threading.Thread(target=live.clear)
    thread.start()
    thread.join()
    assert before - torch.cuda.memory_allocated() == 5 * MIB


def test_streams_of_many_threads_keep_their_contents(sim):
    sim.set_lag(100_000)
    wrong = []

    def work(value):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for size in range(1, 60):
                a = fill(block(size * 20_011), value)
                b = block(size * 20_011).copy_(a)
                del a
                if not holds(b, value):
                    wrong.append((value, size))

    threads = [threading.Thread(target=work, args=(value,)) for value in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_live_blocks_never_overlap():
    generator = random.Random(1)
    live = []
    for _ in range(400):
        live.append(block(generator.choice((100, 9_000, 600_000, 2 * MIB, 13 * MIB))))
        if len(live) > 40:
            live.pop(generator.randrange(len(live)))
    assert not any(overlap(a, b) for i, a in enumerate(live) for b in live[:i])


# --- memory without tensors


def test_raw_memory_is_allocated_and_deleted():
    before = torch.cuda.memory_allocated()
    at = torch.cuda.caching_allocator_alloc(6 * MIB)
    assert at and torch.cuda.memory_allocated() - before == 6 * MIB
    torch.cuda.caching_allocator_delete(at)
    assert torch.cuda.memory_allocated() == before


def test_raw_memory_of_a_stream_and_a_device(sim):
    side = torch.cuda.Stream(device=1)
    before = torch.cuda.memory_allocated(1)
    for stream in (side, side.cuda_stream):
        at = torch.cuda.caching_allocator_alloc(3 * MIB, device=1, stream=stream)
        assert torch.cuda.memory_allocated(1) - before == 3 * MIB
        torch.cuda.caching_allocator_delete(at)
    assert torch.cuda.current_device() == 0


def test_raw_memory_of_no_size():
    at = torch.cuda.caching_allocator_alloc(0)
    assert at == 0
    torch.cuda.caching_allocator_delete(at)


def test_raw_memory_of_a_thing_that_is_no_stream():
    with pytest.raises(TypeError, match="Invalid type for stream"):
        torch.cuda.caching_allocator_alloc(100, stream="side")


@pytest.mark.adapter("the cache cannot be switched off")
def test_without_the_cache_memory_goes_straight_to_the_device():
    torch.cuda.empty_cache()
    left = torch.cuda.mem_get_info()[0]
    with uncached():
        a = block(40 * MIB)
        assert left - torch.cuda.mem_get_info()[0] >= 40 * MIB
        del a
        assert torch.cuda.mem_get_info()[0] == left
    assert holds(filled(MIB, 1), 1)


def test_reading_makes_the_processor_wait(sim):
    torch.cuda.set_sync_debug_mode("error")
    try:
        a = block(16)
        with pytest.raises(RuntimeError, match="synchronizing"):
            a.cpu()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    sim.work(torch.cuda.current_stream(), LONG)
    assert not torch.cuda.current_stream().query()
    a.cpu()
    assert torch.cuda.current_stream().query()
