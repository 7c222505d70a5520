/*
 * recording.cpp: what PyTorch allocated and freed, in order, as a trace that cenote-replay plays.
 *
 * `cenote dry-run` lets one run answer for other allocators, too: it plays the recording through a model of each. After EVENTS_MAX events
 * the recording is given up, as is that of a forked child, whose blocks are its parent's.
 *
 * A step of the trace is torch.cuda.empty_cache(): cenote's adapter tells of it. PyTorch's own allocator does not, but what it gives back outside
 * of an allocation is the same. A stream and a private pool are one queue of the trace; a use on another stream is not in it.
 *
 * LOCKING: one lock, under which only `is_scratch` is called.
 */
#include "recording.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <mutex>

namespace cenote_names {

constexpr size_t EVENTS_MAX = 20000000; /* as many as a trace may have: docs/traces.md */
constexpr size_t QUEUES_MAX = 65535;
constexpr uint32_t EMPTIED = UINT32_MAX; /* in place of a block */

struct Recorded {
    uint32_t block;
    uint8_t device;
};

static std::mutex recording_lock;
static bool is_recording;
static bool (*is_scratch_size)(uint64_t);
static std::vector<Event> events;
static std::vector<Queue> queues;
static ska::flat_hash_map<uint64_t, Recorded> blocks; /* live ones, by address */
static uint32_t blocks_ever;
static std::vector<size_t> marks; /* events before each */

/* LOCKING: `recording_lock`. */
static void forget()
{
    is_recording = false;
    std::vector<Event>().swap(events);
    blocks.clear();
    queues.clear();
    marks.clear();
    blocks_ever = 0;
}

/* The number of the queue, from 1: a few hundred at most in a program. LOCKING: `recording_lock`. */
static size_t number_of(const Queue &queue)
{
    for (size_t i = queues.size(); i; i--) {
        const Queue &known = queues[i - 1];
        if (known.stream == queue.stream && known.pool[0] == queue.pool[0] && known.pool[1] == queue.pool[1])
            return i;
    }
    queues.push_back(queue);
    return queues.size();
}

/* LOCKING: `recording_lock`. */
static void note(const Event &event)
{
    if (events.size() < EVENTS_MAX)
        events.push_back(event);
    else
        forget();
}

/* LOCKING: `recording_lock`. */
static void note_free(ska::flat_hash_map<uint64_t, Recorded>::iterator found)
{
    Recorded known = found->second;
    blocks.erase(found);
    note({0, known.block, 0, 0, known.device, false});
}

void recording_begin(bool (*is_scratch)(uint64_t))
{
    std::lock_guard<std::mutex> hold(recording_lock);
    forget();
    is_scratch_size = is_scratch;
    is_recording = true;
}

void recording_take(int device, uint64_t at, size_t bytes, const Queue &queue, uint32_t place)
{
    std::lock_guard<std::mutex> hold(recording_lock);
    if (!is_recording || device < 0 || device > UINT8_MAX || !bytes)
        return;
    auto known = blocks.find(at);
    if (known != blocks.end()) /* its free was not seen */
        note_free(known);
    size_t number = number_of(queue);
    if (number > QUEUES_MAX || blocks_ever == EMPTIED - 1) {
        forget();
        return;
    }
    blocks[at] = {++blocks_ever, static_cast<uint8_t>(device)};
    note({bytes, blocks_ever, place, static_cast<uint16_t>(number), static_cast<uint8_t>(device), is_scratch_size && is_scratch_size(bytes)});
}

void recording_give(uint64_t at)
{
    std::lock_guard<std::mutex> hold(recording_lock);
    auto found = is_recording ? blocks.find(at) : blocks.end();
    if (found != blocks.end())
        note_free(found);
}

/* Of all devices. Once is enough until something else happens. */
void recording_emptied()
{
    std::lock_guard<std::mutex> hold(recording_lock);
    if (is_recording && !events.empty() && events.back().block != EMPTIED)
        note({0, EMPTIED, 0, 0, 0, false});
}

/* A part of what the program does is over, and is like the one before unless it `is_first`. */
void recording_mark(bool is_first)
{
    std::lock_guard<std::mutex> hold(recording_lock);
    if (is_first)
        marks.clear();
    if (is_recording)
        marks.push_back(events.size());
}

/* No parts: there are not so many, or the cache was emptied meanwhile. */
Stretch recording_stretch(size_t parts)
{
    std::lock_guard<std::mutex> hold(recording_lock);
    Stretch found;
    if (!is_recording || marks.size() <= parts)
        return found;
    size_t first = marks[marks.size() - 1 - parts];
    found.events.assign(events.begin() + static_cast<ptrdiff_t>(first), events.begin() + static_cast<ptrdiff_t>(marks.back()));
    if (std::any_of(found.events.begin(), found.events.end(), [](const Event &event) { return event.block == EMPTIED; }))
        return found;
    for (size_t i = marks.size() - 1 - parts; i < marks.size(); i++)
        found.starts.push_back(marks[i] - first);
    found.queues = queues;
    for (const auto &[address, known] : blocks)
        found.live[known.block] = address;
    return found;
}

static void write_event(FILE *file, const Event &event, int device)
{
    if (event.block == EMPTIED)
        fputs("0,s,,,,\n", file);
    else if (event.device == device && event.bytes)
        fprintf(file, "0,a,%" PRIu32 ",%" PRIu64 ",%u,%d\n", event.block, event.bytes, event.queue, event.is_scratch);
    else if (event.device == device)
        fprintf(file, "0,f,%" PRIu32 ",,,\n", event.block);
}

/* 0: the trace of a device is written. 1: there is none. 2: it could not be written. */
int recording_save(int device, const char *path)
{
    std::lock_guard<std::mutex> hold(recording_lock);
    if (!is_recording)
        return 1;
    FILE *file = fopen(path, "we");
    if (!file)
        return 2;
    fputs("t_us,op,id,bytes,stream,tag\n", file);
    for (const Event &event : events)
        write_event(file, event, device);
    bool is_whole = !ferror(file);
    return !fclose(file) && is_whole ? 0 : 2;
}

void recording_before_fork()
{
    recording_lock.lock();
}

void recording_after_fork(bool is_child)
{
    if (is_child && !events.empty())
        forget();
    recording_lock.unlock();
}

} // namespace cenote_names
