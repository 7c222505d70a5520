/*
 * repeating.cpp: whether the program does the same again and again, and what its allocator holds if it goes on.
 *
 * The parts of a recording that lie between marks are the tokens that a model generates. They repeat if, over all of the last PARTS, each part
 * allocates and frees in the same order as the one a period before: the same blocks of it, on the same queues, each larger by a constant number of
 * bytes. A period is longer than one part if sizes are rounded to more than a token's.
 *
 * Then later parts are played: the real allocator gets the calls that they would make, and so answers for itself. That is the end of the program:
 * blocks that its tensors hold are freed under them.
 *
 * LOCKING: none is held while the allocator is called.
 */
#include "repeating.h"

#include "recording.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>

namespace cenote_names {

constexpr size_t PARTS = 48; /* three of the longest period */
constexpr size_t PERIODS[] = {1, 2, 4, 8, 16};

static thread_local bool is_playing;
static thread_local uint32_t place_playing;

/* The place of the block that this thread allocates for the program, while it plays. */
bool repeating_place(uint32_t *place)
{
    *place = place_playing;
    return is_playing;
}

/* How many blocks are allocated from one part on until another. */
static uint32_t blocks_between(const Stretch &s, size_t from, size_t to)
{
    auto is_taken = [](const Event &event) { return event.bytes != 0; };
    return static_cast<uint32_t>(std::count_if(s.events.begin() + static_cast<ptrdiff_t>(s.starts[from]),
                                               s.events.begin() + static_cast<ptrdiff_t>(s.starts[to]), is_taken));
}

static bool is_even(const Event &a, const Event &b, const Event &c, uint32_t blocks)
{
    return a.device == b.device && b.device == c.device && a.queue == b.queue && b.queue == c.queue && !a.bytes == !b.bytes && !b.bytes == !c.bytes &&
        b.block - a.block == blocks && c.block - b.block == blocks && b.bytes - a.bytes == c.bytes - b.bytes;
}

/* Whether the part is like those one and two periods later. */
static bool goes_on(const Stretch &s, size_t part, size_t period, uint32_t blocks)
{
    size_t at = s.starts[part], length = s.starts[part + 1] - at;
    for (size_t later = 1; later < 3; later++)
        if (s.starts[part + later * period + 1] - s.starts[part + later * period] != length)
            return false;
    const Event *a = &s.events[at], *b = &s.events[s.starts[part + period]], *c = &s.events[s.starts[part + 2 * period]];
    for (size_t i = 0; i < length; i++)
        if (!is_even(a[i], b[i], c[i], blocks))
            return false;
    return true;
}

static bool has_period(const Stretch &s, size_t period)
{
    uint32_t blocks = blocks_between(s, 0, period);
    for (size_t part = 0; part + 2 * period < PARTS; part++)
        if (!goes_on(s, part, period, blocks))
            return false;
    return true;
}

static bool is_plain(const Stretch &s)
{
    return std::all_of(s.events.begin(), s.events.end(), [&](const Event &event) {
        return !event.bytes || (!s.queues[event.queue - 1].pool[0] && !s.queues[event.queue - 1].pool[1]);
    });
}

static size_t period_of(const Stretch &s)
{
    if (s.starts.size() != PARTS + 1 || s.events.empty() || !is_plain(s))
        return 0;
    for (size_t period : PERIODS)
        if (has_period(s, period))
            return period;
    return 0;
}

/* In parts; 0: the last ones do not repeat. */
size_t repeating_period()
{
    return period_of(recording_stretch(PARTS));
}

/* One event, `periods` later. False: memory ran out. */
static bool play_event(Stretch &s, const Event &event, uint64_t growth, uint32_t blocks, uint64_t periods)
{
    auto block = static_cast<uint32_t>(event.block + blocks * periods);
    if (!event.bytes) {
        auto found = s.live.find(block);
        if (found != s.live.end()) {
            c10::cuda::CUDACachingAllocator::raw_delete(reinterpret_cast<void *>(found->second));
            s.live.erase(found);
        }
        return true;
    }
    C10_CUDA_CHECK(c10::cuda::SetDevice(static_cast<c10::DeviceIndex>(event.device)));
    place_playing = event.place;
    auto stream = reinterpret_cast<cudaStream_t>(s.queues[event.queue - 1].stream);
    try {
        void *at = c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(event.bytes + growth * periods, stream);
        s.live[block] = reinterpret_cast<uint64_t>(at);
        return true;
    } catch (const c10::OutOfMemoryError &) {
        return false;
    }
}

/* Plays so many more parts. The result is how many of them were whole: fewer if memory ran out. */
int64_t repeating_play(int64_t parts)
{
    Stretch s = recording_stretch(PARTS);
    size_t period = period_of(s);
    if (!period)
        return 0;
    size_t first = PARTS - period;
    uint32_t blocks = blocks_between(s, first, PARTS);
    struct Playing {
        Playing() { is_playing = true; }
        ~Playing() { is_playing = false; }
    } playing;
    for (int64_t part = 0; part < parts; part++) {
        size_t like = first + static_cast<size_t>(part) % period;
        auto periods = static_cast<uint64_t>(part) / period + 1;
        for (size_t i = 0; i < s.starts[like + 1] - s.starts[like]; i++) {
            const Event &event = s.events[s.starts[like] + i], &before = s.events[s.starts[like - period] + i];
            if (!play_event(s, event, event.bytes - before.bytes, blocks, periods))
                return part;
        }
    }
    return parts;
}

} // namespace cenote_names
