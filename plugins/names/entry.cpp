/*
 * entry.cpp: what labels/names.py calls, by ctypes with Python's lock held; and the way of the allocators to the ledger.
 *
 * cenote's adapter calls the functions of `cenote_names_watchers`. PyTorch's own allocator has no such call: a trace tracker hears of each block,
 * under the allocator's lock, and a function that would gather a stack for its history runs before that lock is taken. That function finds the place,
 * and returns no stack.
 */
#include "ledger.h"
#include "marking.h"
#include "modules.h"
#include "places.h"
#include "recording.h"
#include "repeating.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <pthread.h>
#include <string>
#include <vector>

#define ENTRY extern "C" __attribute__((visibility("default")))

namespace cenote_names {

static std::atomic<bool> is_on{false};

/* What Python calls lets no exception through: for lack of host memory, or if PyTorch refuses, the result is `otherwise`. */
template <class Function, class Result> static Result answered(Result otherwise, Function call)
{
    try {
        return call();
    } catch (const std::exception &) { /* the end of a thread is another exception, and goes on */
        return otherwise;
    }
}

/* --- from cenote's adapter */

/* Calls it while names are kept. For lack of host memory a block goes without a name. */
template <class Function> static void while_on(Function call)
{
    if (!is_on.load(std::memory_order_relaxed))
        return;
    answered(0, [&] { return call(), 0; });
}

static void take(int device, uint64_t at, uint64_t size, size_t bytes, const Queue &queue)
{
    bool adds_up = false;
    uint32_t place;
    if (!repeating_place(&place))
        place = places_taken(bytes, &adds_up);
    ledger_take(device, at, size, place);
    if (adds_up)
        marking_added_up(at);
    recording_take(device, at, bytes, queue, place);
}

/* The place of the next block of this thread. */
static void look(size_t bytes)
{
    uint32_t place;
    if (!repeating_place(&place))
        places_look(bytes, true);
}

static void taken(int device, const void *block, size_t size, size_t bytes, const void *stream, const void *group)
{
    while_on([&] {
        look(bytes);
        take(device, reinterpret_cast<uint64_t>(block), size, bytes, {reinterpret_cast<uint64_t>(stream), {reinterpret_cast<uint64_t>(group), 0}});
    });
}

static void freeing(const void *block)
{
    while_on([&] {
        ledger_give(reinterpret_cast<uint64_t>(block));
        recording_give(reinterpret_cast<uint64_t>(block));
    });
}

static void emptied()
{
    while_on([] { recording_emptied(); });
}

ENTRY void cenote_names_watchers(void **functions)
{
    functions[0] = reinterpret_cast<void *>(&taken);
    functions[1] = reinterpret_cast<void *>(&freeing);
    functions[2] = reinterpret_cast<void *>(&emptied);
}

/* --- from PyTorch's own allocator */

using c10::CachingDeviceAllocator::TraceEntry;

/* PyTorch gathers a context when an allocation begins, and tells of it when it ends: between the two it may give back what is cached. */
static thread_local bool is_allocating;

static std::shared_ptr<c10::GatheredContext> gather()
{
    is_allocating = true;
    while_on([] { look(SIZE_MAX); });
    return nullptr;
}

static void track(const TraceEntry &entry)
{
    auto size = static_cast<int64_t>(entry.size_);
    switch (entry.action_) {
    case TraceEntry::ALLOC:
        is_allocating = false;
        take(entry.device_, entry.addr_, (entry.size_ + 511) / 512 * 512, entry.size_,
             {reinterpret_cast<uint64_t>(entry.stream_), {entry.mempool_.first, entry.mempool_.second}});
        break;
    case TraceEntry::FREE_REQUESTED:
        ledger_give(entry.addr_);
        recording_give(entry.addr_);
        break;
    case TraceEntry::SEGMENT_ALLOC:
    case TraceEntry::SEGMENT_MAP:
        ledger_reserve(entry.device_, size);
        break;
    case TraceEntry::SEGMENT_FREE:
    case TraceEntry::SEGMENT_UNMAP:
        ledger_reserve(entry.device_, -size);
        if (!is_allocating)
            recording_emptied();
        break;
    case TraceEntry::OOM:
        is_allocating = false;
        break;
    default:
        break;
    }
}

static void tracked(const TraceEntry &entry)
{
    while_on([&] { track(entry); });
}

/* 0, or 1 if the allocator has no trackers. */
ENTRY int cenote_names_track()
{
    return answered(1, [] {
        c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(&tracked);
        c10::cuda::CUDACachingAllocator::recordHistory(true, &gather, 1, c10::CachingDeviceAllocator::RecordContext::STATE, false, {});
        return 0;
    });
}

/* --- the rest */

static void before_fork()
{
    places_before_fork();
    ledger_before_fork();
    recording_before_fork();
}

static void in_parent()
{
    recording_after_fork(false);
    ledger_after_fork(false);
    places_after_fork(false);
}

static void in_child()
{
    recording_after_fork(true);
    ledger_after_fork(true);
    places_after_fork(true);
}

static std::vector<std::string> lines_of(const char *text)
{
    std::vector<std::string> found;
    for (const char *end; (end = strchr(text, '\n')); text = end + 1)
        found.emplace_back(text, end);
    return found;
}

struct cenote_names_rules {
    const char *ours, *begins, *parts; /* lines, each ended */
};

/* 0, or 1 if this Python lacks something. */
ENTRY int cenote_names_begin(Object *tensor, Object *parameter, Object *namer, int (*set_kind)(const void *, int), const cenote_names_rules *rules)
{
    static bool watches_forks;
    if (!python().is_whole() || (!watches_forks && pthread_atfork(&before_fork, &in_parent, &in_child)))
        return 1;
    watches_forks = true;
    return answered(1, [=] {
        frames_set_rules(lines_of(rules->ours), lines_of(rules->begins), lines_of(rules->parts));
        marking_begin(tensor, parameter, set_kind);
        if (!is_on) {
            ledger_clear();
            marking_clear();
        }
        modules_end();
        modules_begin(namer);
        marking_watch(true);
        is_on = true;
        return 0;
    });
}

ENTRY void cenote_names_end()
{
    is_on = false;
    marking_watch(false);
    modules_end();
}

ENTRY void cenote_names_python_ends()
{
    places_end_python();
}

/* PyMethodDef */
struct Method {
    const char *name;
    void *function;
    int flags;
    const char *text;
};

constexpr int FASTCALL = 0x80, ONE = 0x8; /* METH_FASTCALL, METH_O */

template <class Function> static Object *given(Function call)
{
    Object *result = answered(static_cast<Object *>(nullptr), call);
    if (!result && !python().error()) {
        python().take(python().none);
        return python().none;
    }
    return result;
}

template <Object *(*function)(Object *)> static Object *one(Object *, Object *argument)
{
    return given([&] { return function(argument); });
}

template <Object *(*function)(Object *const *, ptrdiff_t)> static Object *several(Object *, Object *const *arguments, ptrdiff_t count)
{
    return given([&] { return function(arguments, count); });
}

static Method methods[] = {
    {"enter", reinterpret_cast<void *>(&one<modules_enter>), ONE, nullptr},
    {"leave", reinterpret_cast<void *>(&one<modules_leave>), ONE, nullptr},
    {"name", reinterpret_cast<void *>(&several<marking_name>), FASTCALL, nullptr},
    {"number_of", reinterpret_cast<void *>(&one<marking_number>), ONE, nullptr},
    {"hold", reinterpret_cast<void *>(&several<marking_hold>), FASTCALL, nullptr},
    {"lacks_module", reinterpret_cast<void *>(&one<marking_lacks_module>), ONE, nullptr},
    {"lacks_gradients", reinterpret_cast<void *>(&one<marking_lacks_gradients>), ONE, nullptr},
    {"lacks_state", reinterpret_cast<void *>(&one<marking_lacks_state>), ONE, nullptr},
    {"inputs", reinterpret_cast<void *>(&one<marking_inputs>), ONE, nullptr},
};

/* A function for Python that takes a tenth of the time of one called by ctypes; NULL: no such function. */
ENTRY Object *cenote_names_function(const char *name)
{
    for (Method &method : methods)
        if (!strcmp(method.name, name))
            return python().method(&method, nullptr, nullptr);
    python().take(python().none);
    return python().none;
}

ENTRY void cenote_names_phase(unsigned phase)
{
    places_set_phase(phase);
}

ENTRY void cenote_names_levels(int device, Levels *levels)
{
    *levels = ledger_levels(device);
}

/* The blocks that are live, or were at the peak: fills in at most `room` of them, and returns how many there are. */
ENTRY size_t cenote_names_blocks(int device, int at_peak, Block *blocks, size_t room)
{
    return answered(size_t{0}, [=] {
        std::vector<Block> found = ledger_blocks(device, at_peak);
        memcpy(static_cast<void *>(blocks), found.data(), std::min(room, found.size()) * sizeof(Block));
        return found.size();
    });
}

/* Keeps a log from now on, of at most so many blocks for each device that are no more. */
ENTRY void cenote_names_log(size_t most)
{
    ledger_log(most);
}

ENTRY size_t cenote_names_logged(int device, Logged *blocks, size_t room)
{
    return answered(size_t{0}, [=] {
        std::vector<Logged> found = ledger_logged(device);
        memcpy(static_cast<void *>(blocks), found.data(), std::min(room, found.size()) * sizeof(Logged));
        return found.size();
    });
}

/* From now on what is allocated and freed is recorded. `is_scratch`: whether a block of that size may have another one on a card; or NULL. */
ENTRY void cenote_names_record(bool (*is_scratch)(uint64_t bytes))
{
    recording_begin(is_scratch);
}

/* torch.cuda.empty_cache() was called. */
ENTRY void cenote_names_emptied()
{
    emptied();
}

/* A token is generated: of the same call as the one before, unless it `is_first`. */
ENTRY void cenote_names_mark(int is_first)
{
    answered(0, [=] { return recording_mark(is_first), 0; });
}

/* After how many tokens the program does the same again, with larger blocks; 0: it does not. */
ENTRY int cenote_names_period()
{
    return answered(0, [] { return static_cast<int>(repeating_period()); });
}

/* Lets the allocator do what so many more tokens would. The result is for how many it had memory; -1: none, because of another error. */
ENTRY int64_t cenote_names_play(int64_t tokens)
{
    return answered(int64_t{-1}, [=] { return repeating_play(tokens); });
}

/* Writes what a device did. 0: done; 1: nothing is recorded; 2: the file cannot be written. */
ENTRY int cenote_names_save(int device, const char *path)
{
    return answered(2, [=] { return recording_save(device, path); });
}

ENTRY void cenote_names_adopt(int device, const uint64_t *blocks, size_t count)
{
    answered(0, [=] {
        for (size_t i = 0; i < count; i++)
            ledger_adopt(device, blocks[2 * i], blocks[2 * i + 1]);
        return 0;
    });
}

ENTRY void cenote_names_adopting(int begins)
{
    if (begins)
        ledger_begin_adopting();
    else
        ledger_end_adopting();
}

struct cenote_names_place {
    uint32_t path, phase;
    Object *inner, *own; /* code objects, borrowed; NULL: none */
    int32_t inner_line, own_line;
    const char *node;
    int32_t is_workspace;
};

/* 0, or 1: there is no such place. */
ENTRY int cenote_names_place_at(uint32_t number, cenote_names_place *out)
{
    Place place;
    if (!places_at(number, &place))
        return 1;
    *out = {place.path, place.phase, place.spots.inner.code, place.spots.own.code, frames_line(place.spots.inner), frames_line(place.spots.own),
            place.node, place.is_workspace};
    return 0;
}

/* The place at which this thread is. */
ENTRY uint32_t cenote_names_here(size_t bytes)
{
    return answered(uint32_t{0}, [=] {
        uint32_t place;
        if (repeating_place(&place))
            return place;
        place = places_look(bytes, true);
        places_forget_pending();
        return place;
    });
}

} // namespace cenote_names
