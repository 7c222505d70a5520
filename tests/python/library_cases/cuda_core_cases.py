"""cenote.cuda_core under the real cuda.core. See run.py."""
import card
from card import MIB
from cuda.core import Device
from cuda.core._utils.cuda_utils import CUDAError

import cenote.cuda_core

SIZE = 8 * MIB
device = Device(0)
device.set_current()
resource = device.memory_resource = cenote.cuda_core.MemoryResource(device)
here, there = device.create_stream(), device.create_stream()


def at(buffer):
    return int(buffer.handle)


def fill(buffer, value, stream):
    card.fill(at(buffer), value, buffer.size, int(stream.handle))


def fill_late(buffer, value, stream):
    card.fill_late(at(buffer), value, buffer.size, int(stream.handle))


def live():
    return resource.stats()["allocated"].current


def case_what_the_device_allocates_is_ours():
    before = live()
    buffer = device.allocate(SIZE, stream=here)
    assert buffer.memory_resource is resource and buffer.device_id == 0 and buffer.is_device_accessible and not buffer.is_host_accessible
    assert live() - before == SIZE
    buffer.close()
    assert live() == before


def case_a_freed_buffer_serves_its_own_stream_at_once():
    card.wait()
    first = device.allocate(SIZE, stream=here)
    fill_late(first, 1, here)
    was = at(first)
    first.close()
    second = device.allocate(SIZE, stream=here)
    assert at(second) == was and not card.is_done(int(here.handle))
    fill(second, 2, here)
    assert card.content(was, SIZE) == {2}


def case_another_stream_gets_other_memory_while_the_device_is_behind():
    first = device.allocate(SIZE, stream=here)
    fill_late(first, 1, here)
    first.close()
    second = device.allocate(SIZE, stream=there)
    fill(second, 2, there)
    assert card.content(at(second), SIZE) == {2}


def case_a_buffer_waits_for_the_stream_that_closes_it():
    """The work of `there` is not done when the buffer comes back to `here`."""
    for close in (lambda buffer: buffer.close(there), lambda buffer: buffer.set_deallocation_stream(there)):
        first = device.allocate(SIZE, stream=here)
        there.wait(here)
        fill_late(first, 1, there)
        close(first)
        first.close()
        second = device.allocate(SIZE, stream=here)
        fill(second, 2, here)
        assert not card.is_done(int(there.handle))
        assert card.content(at(second), SIZE) == {2}


def case_a_buffer_waits_for_the_default_stream_of_the_device_that_is_current_at_its_end():
    cenote.cuda_core.MemoryResource(1).stats()  # a pool lets the devices of others in
    stream = device.default_stream
    first = device.allocate(SIZE, stream=stream)
    with card.other_device():
        fill_late(first, 1, stream)
        first.close(stream)
    second = device.allocate(SIZE, stream=stream)
    fill(second, 2, stream)
    with card.other_device():
        assert not card.is_done(int(stream.handle))
        card.wait()
    assert card.content(at(second), SIZE) == {2}
    second.close()


def case_a_shortage_ends_no_capture_of_the_stream():
    with card.captured(int(here.handle)):
        card.raised(CUDAError, lambda: device.allocate(1 << 40, stream=here))


def case_default_streams_are_streams():
    first = device.allocate(SIZE, stream=device.default_stream)
    fill(first, 3, device.default_stream)
    assert card.content(at(first), SIZE) == {3}


def case_no_memory_left_is_the_library_s_error_with_our_message():
    error = card.raised(CUDAError, lambda: device.allocate(1 << 40, stream=here))
    assert "CUDA_ERROR_OUT_OF_MEMORY" in str(error) and "Tried to allocate 1024.00 GiB" in str(error) and "Advice:" in str(error)
    card.raised(Exception, lambda: resource.allocate(-1, stream=here))


def case_a_buffer_of_no_bytes():
    device.allocate(0, stream=here).close()


def case_a_stream_that_was_closed_leaves_its_memory():
    card.wait()
    before, brief = resource.stats()["reserved"].current, device.create_stream()
    buffer = device.allocate(64 * MIB, stream=brief)
    fill_late(buffer, 1, brief)
    buffer.close()
    brief.close()
    card.wait()
    resource.trim()
    assert resource.stats()["reserved"].current <= before


def case_memory_that_a_closed_stream_left_is_found_when_memory_is_short():
    for _ in range(4):
        brief = device.create_stream()
        buffer = device.allocate(400 * MIB, stream=brief)
        fill_late(buffer, 1, brief)
        buffer.close()
        brief.close()


def case_building_a_graph_survives_allocations_beside_it():
    builder = here.create_graph_builder().begin_building()
    assert "GraphMemoryResource" in str(card.raised(CUDAError, lambda: device.allocate(MIB, stream=builder)))
    buffers = [device.allocate(16 * MIB, stream=there) for _ in range(8)]
    for buffer in buffers:
        buffer.close(here)
    builder.end_building().complete()


def case_copies_between_devices():
    other = Device(1)
    other.set_current()
    away = cenote.cuda_core.MemoryResource(1).allocate(MIB, stream=other.default_stream)
    fill(away, 5, other.default_stream)
    device.set_current()
    near = device.allocate(MIB, stream=here)
    other.set_current()
    card.wait()
    device.set_current()
    near.copy_from(away, stream=here)
    assert card.content(at(near), MIB) == {5} and away.device_id == 1
