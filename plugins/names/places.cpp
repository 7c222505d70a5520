/*
 * places.cpp: where in the program an allocation is.
 *
 * Each thread has a stack of the modules that it is inside of, which the wrapper of nn.Module.__call__ keeps. The lines are read from the thread's
 * frames when a block is large enough to be named for itself: a 2048th of the peak so far, in an optimizer's step a 64th. That takes Python's lock,
 * so it happens while the allocator holds none of its own (places_look); the ledger then gets the place that was found (places_taken). PyTorch's own
 * allocator tells of a block under its lock: there the look comes before, or the place has no lines.
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
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <typeinfo>
#include <vector>

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <unistd.h>

namespace cenote_names {

constexpr size_t PLACES_MAX = 1 << 18, RECENT = 512;
constexpr unsigned WORTH_SHIFT = 11;     /* a block has lines if it is a 2048th of the peak: our choice */
constexpr unsigned WORTH_SHIFT_STEP = 6; /* in an optimizer's step a 64th */
constexpr uint32_t IN_STEP = 3;          /* of phases.def */
constexpr size_t PAST_MAX = 1 << 16;     /* notes of one thread; older operations are not known */
constexpr size_t PASTS_MAX = 256;        /* threads; if there are more, those that have ended go */
constexpr unsigned LOOKS_ALIKE = 16, LOOKS_MAX = 1 << 14; /* our choice: see is_workspace */
constexpr size_t KNOWN_MAX = 1 << 16;

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
    struct Recent {
        Place place;
        uint32_t number = 0;
    };
    thread_local Recent all_recent[RECENT]; /* so that most allocations take no lock here */
    Recent &recent = all_recent[Mix()(place) % RECENT];
    if (recent.number && recent.place == place)
        return recent.number;
    std::lock_guard<std::mutex> hold(table_lock);
    auto found = numbers.find(place);
    if (found == numbers.end()) {
        if (places.size() >= PLACES_MAX)
            return 0;
        found = numbers.emplace(place, static_cast<uint32_t>(places.size())).first;
        places.push_back(place);
    }
    recent = {place, found->second};
    return recent.number;
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
    if (pasts.size() >= PASTS_MAX)
        for (auto each = pasts.begin(); each != pasts.end();)
            each = each->second.use_count() == 1 ? pasts.erase(each) : std::next(each); /* of threads that have ended */
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

/* A module that the thread is inside of. */
struct Inside {
    Path path;
    Around around;
};

struct Thread {
    std::vector<Inside> inside;
    std::shared_ptr<Past> past, read; /* its own; the last that it read in backward */
    Pending pending{0, 0, false, false};

    Past &own()
    {
        if (!past)
            past = past_of(at::RecordFunction::currentThreadId(), true);
        return *past;
    }
};

static thread_local Thread *mine;
static thread_local bool is_over;

struct End {
    ~End()
    {
        delete mine;
        mine = nullptr;
        is_over = true;
    }
};

/* NULL: the thread ends. It may allocate and free all the same. */
static Thread *thread()
{
    if (!mine && !is_over) {
        static thread_local End end;
        mine = new Thread;
    }
    return mine;
}

Path places_path()
{
    const Thread *here = thread();
    return here && !here->inside.empty() ? here->inside.back().path : 0;
}

/* Returns what is to be given to places_leave. A call that left by an exception before its `leave` is left with the one around it. */
size_t places_enter(Path path)
{
    Thread *here = thread();
    if (!here)
        return 0;
    here->inside.push_back({path, {}});
    if (at::GradMode::is_enabled())
        here->own().put({at::sequence_number::peek(), path, {}});
    return here->inside.size() - 1;
}

void places_leave(size_t depth)
{
    Thread *here = thread();
    if (!here)
        return;
    if (here->inside.size() > depth)
        here->inside.erase(here->inside.begin() + static_cast<ptrdiff_t>(depth), here->inside.end());
    if (here->past && at::GradMode::is_enabled())
        here->past->put({at::sequence_number::peek(), places_path(), {}});
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

/* --- workspaces. PyTorch allocates those of cuBLAS like any tensor, once for each stream and handle or for each call, and of two sizes. If a block
 * has such a size, the native stack says whether it is one. A look takes time: if all of the first blocks in a module, or in an operation of
 * backward, were workspaces, or none was, the thread takes the later ones there for the same. */

struct Workspaces {
    size_t sizes[2] = {0, 0};

    Workspaces()
    {
        void *torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
        const char *names[2] = {"_ZN2at4cuda22getChosenWorkspaceSizeEv", "_ZN2at4cuda26getCUDABlasLtWorkspaceSizeEv"};
        for (int i = 0; i < 2; i++)
            if (auto size = torch ? reinterpret_cast<size_t (*)()>(dlsym(torch, names[i])) : nullptr)
                sizes[i] = size();
    }
};

/* PyTorch works the sizes out when it is asked first: that must not happen under a lock. */
static const Workspaces &workspaces()
{
    static const Workspaces found;
    return found;
}

/* Whether native code at the address belongs to PyTorch's functions for cuBLAS. */
static bool is_of_blas(void *address)
{
    thread_local ska::flat_hash_map<void *, bool> known; /* dladdr takes a tenth of a millisecond */
    if (known.size() > KNOWN_MAX)
        known.clear();
    auto at = known.find(address);
    if (at != known.end())
        return at->second;
    Dl_info found;
    bool is = dladdr(address, &found) && found.dli_sname && (strstr(found.dli_sname, "CUDABlas") || strstr(found.dli_sname, "BlasLtWorkspace"));
    return known[address] = is;
}

/* Does the native stack lead through PyTorch's functions for cuBLAS? */
static bool is_called_by_blas()
{
    void *stack[24];
    int depth = backtrace(stack, 24);
    for (int i = 0; i < depth; i++)
        if (is_of_blas(stack[i]))
            return true;
    return false;
}

/* `place`: without lines. */
static bool is_workspace(size_t bytes, const Place &place)
{
    struct Seen {
        unsigned looks = 0, found = 0;
    };
    thread_local ska::flat_hash_map<uint64_t, Seen> all_seen; /* by module and operation */
    const size_t *sizes = workspaces().sizes;
    if (bytes != sizes[0] && bytes != sizes[1])
        return false;
    if (all_seen.size() > KNOWN_MAX)
        all_seen.clear();
    Place where;
    where.path = place.path;
    where.node = place.node;
    Seen &seen = all_seen[Mix()(where)];
    bool is_settled = (place.path || place.node) && seen.looks >= LOOKS_ALIKE && (!seen.found || seen.found == seen.looks);
    if (is_settled || seen.looks >= LOOKS_MAX)
        return is_settled && seen.found;
    bool is = is_called_by_blas();
    seen.looks++;
    seen.found += is;
    return is;
}

/* --- an allocation */

/* An optimizer's step has many blocks of the size of parameters, for a moment each. PyTorch's own allocator does not say how many bytes: SIZE_MAX. */
static bool is_worth_lines(size_t bytes, const Place &place)
{
    return bytes >= ledger_peak() >> (place.phase == IN_STEP && !place.path ? WORTH_SHIFT_STEP : WORTH_SHIFT);
}

static Spots lines_of(Thread &here)
{
    const Python &p = python();
    Spots spots;
    size_t depth = here.inside.size();
    Around around = depth ? here.inside.back().around : Around();
    if (!has_python || !p.thread())
        return spots;
    int state = 0;
    try {
        state = p.enter();
    } catch (const abi::__forced_unwind &) { /* Python has ended, and ends the thread; PyTorch's frames would end the process. As in outward.h */
        for (;;)
            pause();
    }
    Object *type, *value, *traceback;
    p.fetch(&type, &value, &traceback);
    spots = frames_now(depth ? &around : nullptr);
    p.clear();
    p.restore(type, value, traceback);
    p.leave(state);
    if (depth && here.inside.size() == depth) /* code of the program may have run: a collection of garbage */
        here.inside.back().around = around;
    return spots;
}

static Place backward_place(Thread &here, const torch::autograd::Node &node, size_t bytes, Place place, bool may_ask)
{
    Operation operation = operation_of(node);
    place.node = operation.name;
    place.is_workspace = is_workspace(bytes, place);
    place.adds_up = node.sequence_nr() == UINT64_MAX;
    if (!here.read || here.read->thread != node.thread_id())
        here.read = past_of(node.thread_id(), false);
    Note note;
    if (!place.adds_up && here.read && here.read->find(node.sequence_nr(), &note)) {
        place.path = note.path;
        place.spots = note.spots;
    }
    if (operation.is_pythons && may_ask) {
        Spots own = lines_of(here);
        if (own.inner.code)
            place.spots = own;
    }
    return place;
}

static Place place_now(Thread &here, size_t bytes, bool may_ask)
{
    Place place;
    place.phase = phase_now.load(std::memory_order_relaxed);
    place.path = places_path();
    bool asks = may_ask && is_worth_lines(bytes, place);
    if (!place.path) {
        auto node = torch::autograd::get_current_node();
        if (node)
            return backward_place(here, *node, bytes, place, asks);
    }
    place.is_workspace = is_workspace(bytes, place);
    if (!asks)
        return place;
    place.spots = lines_of(here);
    uint64_t next = at::sequence_number::peek();
    if (next && at::GradMode::is_enabled() && place.spots.inner.code)
        here.own().put_first({next - 1, place.path, place.spots});
    return place;
}

/* Beside an allocation, and under no lock. */
uint32_t places_look(size_t bytes, bool may_ask)
{
    Thread *here = thread();
    if (!here)
        return 0;
    here->pending.is_set = false; /* to read lines may free blocks, and so come here again */
    Place place = place_now(*here, bytes, may_ask);
    here->pending = {number_of(place), bytes, true, place.adds_up};
    return here->pending.place;
}

void places_forget_pending()
{
    if (thread())
        thread()->pending.is_set = false;
}

/* The place of the allocation that this thread has made; and whether it is for a gradient that is added up. */
uint32_t places_taken(size_t bytes, bool *adds_up)
{
    Thread *here = thread();
    if (!here)
        return 0;
    if (!here->pending.is_set)
        places_look(bytes, false);
    here->pending.is_set = false;
    *adds_up = here->pending.adds_up;
    Place place;
    if (here->pending.bytes != SIZE_MAX || !places_at(here->pending.place, &place) || !is_workspace(bytes, place))
        return here->pending.place;
    place.is_workspace = true;
    return number_of(place);
}

/* Python ends: no thread may ask for its lock any more. */
void places_end_python()
{
    has_python = false;
}

/* Before a fork: no thread is in the middle of a change then. */
void places_before_fork()
{
    table_lock.lock();
    pasts_lock.lock();
}

/* After it. The child has one thread, and forgets what others did forward: one of them may have been changing its notes. */
void places_after_fork(bool is_child)
{
    if (is_child) {
        new (&pasts) decltype(pasts);
        if (mine)
            mine->past = mine->read = nullptr;
    }
    pasts_lock.unlock();
    table_lock.unlock();
}

} // namespace cenote_names
