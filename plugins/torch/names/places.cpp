/*
 * places.cpp: where in the program an allocation is.
 *
 * Each thread has a stack of the modules that it is inside of, which the wrapper of nn.Module.__call__ keeps. The lines are read from the thread's
 * frames when a block is large enough to be named for itself: a 4096th of the peak so far, in an optimizer's step a 64th. That takes Python's lock,
 * so it happens before the allocator takes one of its own (places_look); the allocation itself (places_taken) takes the place that was found, or
 * makes one without lines.
 *
 * An operation of backward belongs to the module, and the line, whose forward made it. Autograd numbers the operations of each thread: while a
 * thread is forward, `Past` notes at which number it entered and left modules, and at which line it allocated. What is computed again in backward
 * has modules of its own on the stack, and those count.
 *
 * Places are numbered; equal ones have one number. If there are too many, later ones are number 0, which says nothing.
 *
 * LOCKING: one lock for the table of places, one for each Past, neither held while anything else is called.
 */
#include "places.h"

#include "ledger.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <typeinfo>
#include <vector>

#include <execinfo.h>

namespace cenote_names {

constexpr size_t PLACES_MAX = 1 << 18;
constexpr unsigned WORTH_SHIFT = 12;     /* a block has lines if it is a 4096th of the peak: our choice */
constexpr unsigned WORTH_SHIFT_STEP = 6; /* in an optimizer's step a 64th */
constexpr uint32_t IN_STEP = 3;          /* of phases.def */
constexpr size_t PAST_MAX = 1 << 16;     /* notes of one thread; older operations are not known */
constexpr size_t WORKSPACE_LEAST = 1 << 20, WORKSPACE_SIZES = 256, WORKSPACE_TRIES = 8; /* our choice: see is_workspace */

static std::atomic<uint32_t> phase_now{0};
static std::atomic<bool> has_python{true};

void places_set_phase(uint32_t phase)
{
    phase_now.store(phase, std::memory_order_relaxed);
}

/* --- the table of places */

struct Mix {
    size_t operator()(const Place &place) const
    {
        uint64_t sum = place.path;
        for (uint64_t part : {uint64_t{place.phase}, reinterpret_cast<uint64_t>(place.spots.inner.code), uint64_t(place.spots.inner.at),
                              reinterpret_cast<uint64_t>(place.spots.own.code), uint64_t(place.spots.own.at),
                              reinterpret_cast<uint64_t>(place.node), uint64_t{place.is_workspace}})
            sum = (sum ^ part) * 0x9e3779b97f4a7c15, sum ^= sum >> 29;
        return sum;
    }
};

static std::mutex table_lock;
static ska::flat_hash_map<Place, uint32_t, Mix> numbers;
static std::vector<Place> places{Place()};

static uint32_t number_of(const Place &place)
{
    thread_local Place last;
    thread_local uint32_t last_number = 0;
    if (last_number && last == place)
        return last_number;
    std::lock_guard<std::mutex> hold(table_lock);
    auto found = numbers.find(place);
    if (found == numbers.end()) {
        if (places.size() >= PLACES_MAX)
            return 0;
        found = numbers.emplace(place, static_cast<uint32_t>(places.size())).first;
        places.push_back(place);
    }
    last = place;
    return last_number = found->second;
}

bool places_at(uint32_t number, Place *place)
{
    std::lock_guard<std::mutex> hold(table_lock);
    if (number >= places.size())
        return false;
    *place = places[number];
    return true;
}

/* --- what a thread did forward */

struct Note {
    uint64_t sequence;
    Path path;
    Spots spots;
};

/* The last notes of a thread, in order. */
struct Past {
    std::mutex lock;
    uint64_t thread = 0;
    std::vector<Note> notes;

    void put(const Note &note)
    {
        std::lock_guard<std::mutex> hold(lock);
        if (!notes.empty() && notes.back().sequence == note.sequence) {
            notes.back() = note;
            return;
        }
        if (notes.size() >= PAST_MAX)
            notes.erase(notes.begin(), notes.begin() + PAST_MAX / 2);
        notes.push_back(note);
    }

    /* The first allocation of an operation is its own; a later one is of what was called after it. */
    void put_first(const Note &note)
    {
        std::lock_guard<std::mutex> hold(lock);
        if (notes.empty() || notes.back().sequence < note.sequence)
            notes.push_back(note);
        else if (notes.back().sequence == note.sequence && !notes.back().spots.inner.code)
            notes.back() = note;
    }

    bool find(uint64_t sequence, Note *note)
    {
        std::lock_guard<std::mutex> hold(lock);
        auto after = std::upper_bound(notes.begin(), notes.end(), sequence,
                                      [](uint64_t wanted, const Note &each) { return wanted < each.sequence; });
        if (after == notes.begin())
            return false;
        *note = *(after - 1);
        return true;
    }
};

static std::mutex pasts_lock;
static ska::flat_hash_map<uint64_t, std::shared_ptr<Past>> pasts; /* by at::RecordFunction::currentThreadId() */

static std::shared_ptr<Past> past_of(uint64_t thread, bool make)
{
    std::lock_guard<std::mutex> hold(pasts_lock);
    auto found = pasts.find(thread);
    if (found != pasts.end())
        return found->second;
    if (!make)
        return nullptr;
    auto made = std::make_shared<Past>();
    made->thread = thread;
    pasts[thread] = made;
    return made;
}

/* --- this thread */

struct Pending {
    uint32_t place;
    size_t bytes;
    bool is_set, adds_up;
};

struct Thread {
    std::vector<Path> inside;
    std::shared_ptr<Past> past, read; /* its own; the last that it read in backward */
    Pending pending{0, 0, false, false};

    Past &own()
    {
        if (!past)
            past = past_of(at::RecordFunction::currentThreadId(), true);
        return *past;
    }
};

/* Never destroyed: a thread may free and allocate while it ends. */
static Thread &thread()
{
    thread_local Thread *found = new Thread;
    return *found;
}

Path places_path()
{
    Thread &here = thread();
    return here.inside.empty() ? 0 : here.inside.back();
}

/* Returns what is to be given to places_leave. A call that left by an exception before its `leave` is left with the one around it. */
size_t places_enter(Path path)
{
    Thread &here = thread();
    here.inside.push_back(path);
    if (at::GradMode::is_enabled())
        here.own().put({at::sequence_number::peek(), path, {}});
    return here.inside.size() - 1;
}

void places_leave(size_t depth)
{
    Thread &here = thread();
    if (here.inside.size() > depth)
        here.inside.resize(depth);
    if (here.past && at::GradMode::is_enabled())
        here.past->put({at::sequence_number::peek(), places_path(), {}});
}

/* --- operations of backward */

struct Operation {
    const char *name;
    bool is_pythons; /* it calls a function of the program */
};

static Operation operation_of(const torch::autograd::Node &node)
{
    thread_local ska::flat_hash_map<const std::type_info *, Operation> known;
    const std::type_info *type = &typeid(node);
    auto found = known.find(type);
    if (found != known.end())
        return found->second;
    const char *name = type->name();
    return known[type] = {name, strstr(name, "PyNode") || strstr(name, "CppNode") || strstr(name, "PyFunction")};
}

/* --- workspaces. PyTorch allocates those of cuBLAS like any tensor, from functions with these names, once for each stream and handle: so the native
 * stacks of the first allocations of each size are looked at. */

static bool is_workspace(size_t bytes)
{
    static std::mutex sizes_lock;
    static ska::flat_hash_map<size_t, unsigned> tries;
    thread_local size_t tried[64]; /* sizes that were tried often enough */
    size_t &mine = tried[(bytes >> 9) % 64];
    if (bytes < WORKSPACE_LEAST || mine == bytes)
        return false;
    {
        std::lock_guard<std::mutex> hold(sizes_lock);
        bool is_full = tries.size() >= WORKSPACE_SIZES && tries.find(bytes) == tries.end();
        if (is_full || tries[bytes]++ >= WORKSPACE_TRIES) {
            mine = bytes;
            return false;
        }
    }
    void *stack[24];
    int depth = backtrace(stack, 24);
    for (int i = 0; i < depth; i++) {
        Dl_info found;
        if (!dladdr(stack[i], &found) || !found.dli_sname)
            continue;
        const char *name = found.dli_sname;
        if (strstr(name, "CUDABlasHandle") || strstr(name, "CUDABlasLtWorkspace") || strstr(name, "BlasLtWorkspace") ||
            strstr(name, "SolverDnHandle"))
            return true;
    }
    return false;
}

/* --- an allocation */

/* An optimizer's step has many blocks of the size of parameters, for a moment each. PyTorch's own allocator does not say how many bytes: SIZE_MAX. */
static bool is_worth_lines(size_t bytes, const Place &place)
{
    return bytes >= ledger_peak() >> (place.phase == IN_STEP && !place.path ? WORTH_SHIFT_STEP : WORTH_SHIFT);
}

static Spots lines_of_this_thread()
{
    const Python &p = python();
    Spots spots;
    if (!has_python || !p.thread())
        return spots;
    int state = p.enter();
    Object *type, *value, *traceback;
    p.fetch(&type, &value, &traceback);
    spots = frames_now();
    p.clear();
    p.restore(type, value, traceback);
    p.leave(state);
    return spots;
}

static Place backward_place(const torch::autograd::Node &node, Place place, bool may_ask)
{
    Thread &here = thread();
    Operation operation = operation_of(node);
    place.node = operation.name;
    place.adds_up = node.sequence_nr() == UINT64_MAX;
    if (!here.read || here.read->thread != node.thread_id())
        here.read = past_of(node.thread_id(), false);
    Note note;
    if (!place.adds_up && here.read && here.read->find(node.sequence_nr(), &note)) {
        place.path = note.path;
        place.spots = note.spots;
    }
    if (operation.is_pythons && may_ask) {
        Spots own = lines_of_this_thread();
        if (own.inner.code)
            place.spots = own;
    }
    return place;
}

static Place place_now(size_t bytes, bool may_ask)
{
    Place place;
    place.phase = phase_now.load(std::memory_order_relaxed);
    place.path = places_path();
    place.is_workspace = bytes != SIZE_MAX && is_workspace(bytes);
    bool asks = may_ask && is_worth_lines(bytes, place);
    if (!place.path) {
        auto node = torch::autograd::get_current_node();
        if (node)
            return backward_place(*node, place, asks);
    }
    if (!asks)
        return place;
    place.spots = lines_of_this_thread();
    uint64_t next = at::sequence_number::peek();
    if (next && at::GradMode::is_enabled() && place.spots.inner.code)
        thread().own().put_first({next - 1, place.path, place.spots});
    return place;
}

/* Before an allocation, and under no lock. */
uint32_t places_look(size_t bytes, bool may_ask)
{
    Thread &here = thread();
    here.pending.is_set = false; /* to read lines may free blocks, and so come here again */
    Place place = place_now(bytes, may_ask);
    here.pending = {number_of(place), bytes, true, place.adds_up};
    return here.pending.place;
}

void places_forget_pending()
{
    thread().pending.is_set = false;
}

/* The place of the allocation that this thread has made; and whether it is for a gradient that is added up. */
uint32_t places_taken(size_t bytes, bool *adds_up)
{
    Thread &here = thread();
    if (!here.pending.is_set)
        places_look(bytes, false);
    here.pending.is_set = false;
    *adds_up = here.pending.adds_up;
    Place place;
    if (here.pending.bytes != SIZE_MAX || !is_workspace(bytes) || !places_at(here.pending.place, &place))
        return here.pending.place;
    place.is_workspace = true;
    return number_of(place);
}

/* Python ends: no thread may ask for its lock any more. */
void places_end_python()
{
    has_python = false;
}

/* In a forked child. */
void places_renew()
{
    new (&table_lock) std::mutex;
    new (&pasts_lock) std::mutex;
    pasts.clear();
    thread().past = thread().read = nullptr;
}

} // namespace cenote_names
