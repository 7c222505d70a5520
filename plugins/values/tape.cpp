/*
 * tape.cpp: the table of storages and their versions.
 *
 * A storage that is not in the table holds bytes of which nothing is known: that is what every storage begins with, and what it becomes when
 * something writes to it that the tape cannot follow. So to forget an entry is never wrong.
 *
 * Rule V1: a version is known only if every operator that wrote to its storage since the first one that wrote all of it was seen, and computed or
 * able to be. What is written past the operators (a kernel of the program's, a replay, a collective, another process, another storage over the
 * same memory) forgets the versions that it could have touched.
 *
 * Rule V16: what is forgotten because something unseen could have written anywhere keeps its values, as plausible ones: a mask has one count,
 * whatever kernels run between two questions. What was made up is made up again, in the same way.
 *
 * Rule V13: a version whose bytes are only in the device's memory is read before an operator writes there, and lost if its storage ends, or something
 * unseen writes.
 *
 * Storages are held weakly: the table keeps no memory of the program's alive, and an address of a StorageImpl in the table belongs to no other.
 * Whether PyTorch has given a storage other memory since (resize_) shows in its size and address.
 *
 * LOCKING: tape_lock, for every function here.
 */
#include "tape.h"

#include "evaluation.h"
#include "parts.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/flat_hash_map.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <map>

namespace cenote_values
{

std::mutex tape_lock;

/* The child has one thread, so a lock that another one held would never be let go. Handlers run in the opposite order of their registration: those
 * of the simulated GPU, whose locks are taken under the tape's, have to be there before. */
bool tape_survives_forks()
{
    pthread_atfork([] { tape_lock.lock(); }, [] { tape_lock.unlock(); }, [] { tape_lock.unlock(); });
    return true;
}

struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    VersionP version;
    size_t size;
    const void *at;
};

static ska::flat_hash_map<c10::StorageImpl *, Entry> table;
static std::map<uintptr_t, c10::StorageImpl *> by_address;  /* the same entries: no two of them overlap */
static ska::flat_hash_map<c10::StorageImpl *, Entry> remains; /* of entries that were forgotten: none of them is in `table` */
static size_t sweep_remains_at = 4096, bytes_since_sweep;   /* entries; bytes of those that became remains */
static constexpr size_t LEFT_MOST = 64 << 20;                /* bytes of remains that may be of storages that are gone. Chosen. */
static size_t sweep_at = 4096;                              /* entries, of which many may be of storages that are gone. Chosen. */
static uint64_t numbers;
static std::atomic<int64_t> held_bytes; /* calls can end with a thread of the program's */

VersionP new_version(int64_t size)
{
    auto made = std::make_shared<Version>();
    made->size = size;
    made->number = ++numbers;
    return made;
}

VersionP version_in_memory(const c10::Storage &storage, c10::ScalarType type)
{
    VersionP made = new_version(static_cast<int64_t>(storage.nbytes()));
    made->memory = storage.data();
    made->home = storage.getWeakStorageImpl();
    made->type = type;
    return made;
}

void Call::let_go()
{
    arguments.clear();
    operands.clear();
    held_bytes -= held;
    held = 0;
}

void hold(Call &call, int64_t bytes)
{
    call.held += bytes;
    held_bytes += bytes;
}

int64_t held_by_calls()
{
    return held_bytes;
}

bool is_plain_on(const at::Tensor &t)
{
    static const c10::DispatchKeySet others({c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
        c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor, c10::DispatchKey::NestedTensor});
    return t.defined() && t.layout() == c10::kStrided && !t.key_set().has_any(others) && t.has_storage() && !t.is_quantized();
}

static VersionP holder(const c10::Storage &storage, int64_t &offset);

static bool has_all_of(const Version &v, const at::Tensor &t, int64_t shift)
{
    auto size = static_cast<size_t>(v.size), from = static_cast<size_t>(shift);
    return from + t.storage().nbytes() <= size || from + at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.element_size(),
        static_cast<size_t>(t.storage_offset())) <= size;
}

/* A loss has the memory of all that it is the mean of, but values only of itself (recording.cpp). A view can show more. */
VersionP tape_version_of(const at::Tensor &t)
{
    VersionP v = tape_version(t.storage());
    if (!v || has_all_of(*v, t, 0))
        return v;
    tape_put(t.storage(), nullptr);
    return nullptr;
}

/* What is read by this tensor: of memory that has two names, the version that the other one has. */
VersionP tape_look(const at::Tensor &t, int64_t &shift)
{
    shift = 0;
    VersionP v = tape_version_of(t);
    if (v || static_cast<int64_t>(t.storage().nbytes()) > KNOWN_MOST)
        return v;
    v = holder(t.storage(), shift);
    if (v && shift % static_cast<int64_t>(t.element_size()) == 0 && has_all_of(*v, t, shift))
        return v;
    shift = 0; /* what the tensor reads begins where its own storage does */
    return nullptr;
}

Operand operand_of(const at::Tensor &t, int argument, int element, bool is_written)
{
    int64_t shift = 0;
    VersionP v = is_written ? tape_version_of(t) : tape_look(t, shift);
    return {argument, element, std::move(v), c10::DimVector(t.sizes()), c10::DimVector(t.strides()),
            t.storage_offset() + shift / static_cast<int64_t>(t.element_size()), t.scalar_type(), is_written,
            t.is_conj(), t.is_neg()};
}

bool is_readable(const at::Tensor &t)
{
    return is_plain(t) || (t.defined() && t.is_cuda() && (t.is_conj() || t.is_neg()) && t.layout() == c10::kStrided && t.has_storage() &&
        !t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched})));
}

bool is_plain(const at::Tensor &t)
{
    return t.defined() && t.is_cuda() && is_plain_on(t);
}

bool covers_storage(const at::Tensor &t)
{
    return t.nbytes() == t.storage().nbytes() && t.is_non_overlapping_and_dense();
}

/* The memory may be written to from now on: a version that is only there is lost to the calls that have it (V13). */
static void leave_memory(Version &v)
{
    if (v.memory && !v.bytes.defined()) {
        v.memory = nullptr;
        lose(v);
    }
}

static void erase(ska::flat_hash_map<c10::StorageImpl *, Entry>::iterator found)
{
    leave_memory(*found->second.version);
    by_address.erase(reinterpret_cast<uintptr_t>(found->second.at));
    table.erase(found);
}

/* As the version, with other values. */
static VersionP another(const Version &v)
{
    VersionP made = new_version(v.size);
    made->range = v.range;
    made->row = v.row;
    made->course = v.course;
    made->fill = v.fill;
    made->type = v.type;
    made->is_made_up = v.is_made_up;
    return made;
}

/* V16: what is plausible where something unseen may have written. NULL: any values. */
static VersionP left_of(const VersionP &v)
{
    if (!v->is_known && v->unknown.empty()) /* what was made up may be made again, by a graph; but one mask has one count (V10) */
        return v->is_made_up && v->type != at::kBool ? another(*v) : v;
    if (v->size > (c10::isIntegralType(v->type, true) ? KNOWN_MOST : UNKNOWN_MOST) || v->fill == Fill::zero) /* zeros are there to be written to */
        return nullptr;
    try {
        if (v->memory && !v->bytes.defined())
            evaluate(*v);
    } catch (const std::exception &) { /* there is no memory for it: the rest has to be forgotten all the same */
        return nullptr;
    }
    VersionP made = another(*v);
    made->is_likely = v->is_known;
    made->same = v->same ? v->same : v;
    made->depth = made->same->bytes.defined() ? 0 : made->same->depth;
    return made;
}

static void sweep_remains()
{
    for (auto each = remains.begin(); each != remains.end();)
        each = each->second.storage.expired() ? remains.erase(each) : std::next(each);
    sweep_remains_at = std::max<size_t>(4096, remains.size() * 2);
    bytes_since_sweep = 0;
}

static void sweep()
{
    std::vector<c10::StorageImpl *> gone;
    for (auto &each : table)
        if (each.second.storage.expired())
            gone.push_back(each.first);
    for (auto *each : gone)
        erase(table.find(each));
    sweep_at = std::max<size_t>(4096, table.size() * 2);
}

static bool is_current(const Entry &entry, const c10::Storage &storage)
{
    return entry.size == storage.nbytes() && entry.at == storage.data();
}

static std::map<uintptr_t, c10::StorageImpl *>::iterator first_from(uintptr_t from);

/* Another storage over the same memory was written to since (V5). */
static bool has_others(const c10::Storage &storage)
{
    auto from = reinterpret_cast<uintptr_t>(storage.data());
    auto each = first_from(from);
    return each != by_address.end() && each->first < from + storage.nbytes();
}

/* What is left of an entry becomes one when it is looked at: from then on it has values. */
static Entry *entry_of(const c10::Storage &storage)
{
    auto *key = storage.unsafeGetStorageImpl();
    auto found = table.find(key);
    if (found == table.end()) {
        auto left = remains.find(key);
        if (left == remains.end())
            return nullptr;
        if (is_current(left->second, storage) && !has_others(storage))
            tape_put(storage, VersionP(left->second.version));
        else
            remains.erase(left);
        found = table.find(key);
    }
    return found != table.end() && is_current(found->second, storage) ? &found->second : nullptr;
}

Version *tape_find(const c10::Storage &storage)
{
    Entry *found = entry_of(storage);
    return found ? found->version.get() : nullptr;
}

VersionP tape_version(const c10::Storage &storage)
{
    Entry *found = entry_of(storage);
    return found ? found->version : nullptr;
}

static VersionP holder(const c10::Storage &storage, int64_t &offset)
{
    auto from = reinterpret_cast<uintptr_t>(storage.data());
    auto each = by_address.upper_bound(from);
    if (each == by_address.begin() || !storage.nbytes())
        return nullptr;
    Entry &entry = table.find(std::prev(each)->second)->second;
    offset = static_cast<int64_t>(from - std::prev(each)->first);
    if (static_cast<size_t>(offset) + storage.nbytes() > entry.size)
        return nullptr;
    auto holder = entry.storage.lock();
    return holder && holder->data() == entry.at && holder->nbytes() == entry.size ? entry.version : nullptr;
}

/* The first entry that has an address from this one on; it may begin before. */
static std::map<uintptr_t, c10::StorageImpl *>::iterator first_from(uintptr_t from)
{
    auto each = by_address.lower_bound(from);
    if (each != by_address.begin() && std::prev(each)->first + table.find(std::prev(each)->second)->second.size > from)
        --each;
    return each;
}

/* Forgets other storages over the same memory: those that are gone, and those that this one is another name of (DLPack). */
static void forget_others(const c10::Storage &storage)
{
    auto from = reinterpret_cast<uintptr_t>(storage.data()), to = from + storage.nbytes();
    auto each = first_from(from);
    while (each != by_address.end() && each->first < to) {
        auto found = table.find((each++)->second);
        if (found->first != storage.unsafeGetStorageImpl())
            erase(found);
    }
}

void tape_put(const c10::Storage &storage, VersionP version)
{
    if (version && version->depth > DEPTH_MOST) /* V9 */
        version = nullptr;
    if (!storage.nbytes())
        return;
    forget_others(storage);
    auto *key = storage.unsafeGetStorageImpl();
    remains.erase(key);
    auto found = table.find(key);
    if (found != table.end() && version && is_current(found->second, storage)) {
        found->second.version = std::move(version);
        return;
    }
    if (found != table.end())
        erase(found);
    if (!version)
        return;
    if (table.size() >= sweep_at)
        sweep();
    table.emplace(key, Entry{storage.getWeakStorageImpl(), std::move(version), storage.nbytes(), storage.data()});
    by_address.emplace(reinterpret_cast<uintptr_t>(storage.data()), key);
}

static bool is_in(const Entry &entry, uintptr_t from, uintptr_t to)
{
    auto at = reinterpret_cast<uintptr_t>(entry.at);
    return at < to && at + entry.size > from;
}

void tape_forget_range(uintptr_t from, uintptr_t to)
{
    std::vector<c10::StorageImpl *> touched;
    for (auto &each : table)
        if (is_in(each.second, from, to))
            touched.push_back(each.first);
    for (auto *each : touched)
        erase(table.find(each));
    for (auto each = remains.begin(); each != remains.end();)
        each = is_in(each->second, from, to) ? remains.erase(each) : std::next(each);
}

void tape_forget_all()
{
    std::vector<std::pair<c10::StorageImpl *, Entry>> left;
    for (auto &each : table)
        if (VersionP version = each.second.storage.expired() ? nullptr : left_of(each.second.version))
            left.emplace_back(each.first, Entry{each.second.storage, std::move(version), each.second.size, each.second.at});
    for (auto &each : table)
        leave_memory(*each.second.version);
    table.clear();
    by_address.clear();
    for (auto &each : left) {
        bytes_since_sweep += each.second.size;
        remains.insert_or_assign(each.first, std::move(each.second));
    }
    if (remains.size() >= sweep_remains_at || bytes_since_sweep >= LEFT_MOST)
        sweep_remains();
}

size_t tape_size()
{
    return table.size();
}

} // namespace cenote_values
