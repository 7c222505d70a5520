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
 * Storages are held weakly: the table keeps no memory of the program's alive, and an address of a StorageImpl in the table belongs to no other.
 * Whether PyTorch has given a storage other memory since (resize_) shows in its size and address.
 *
 * LOCKING: tape_lock, for every function here.
 */
#include "tape.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <map>

namespace cenote_values
{

std::mutex tape_lock;

struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    VersionP version;
    size_t size;
    const void *at;
    bool is_given_away;
};

static ska::flat_hash_map<c10::StorageImpl *, Entry> table;
static std::map<uintptr_t, c10::StorageImpl *> by_address;  /* the same entries: no two of them overlap */
static size_t sweep_at = 4096;                              /* entries, of which many may be of storages that are gone. Chosen. */
static uint64_t numbers;

VersionP new_version(int64_t size)
{
    auto made = std::make_shared<Version>();
    made->size = size;
    made->number = ++numbers;
    return made;
}

bool is_plain(const at::Tensor &t)
{
    static const c10::DispatchKeySet others({c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
        c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor, c10::DispatchKey::NestedTensor});
    return t.defined() && t.is_cuda() && t.layout() == c10::kStrided && !t.key_set().has_any(others) && t.has_storage();
}

bool covers_storage(const at::Tensor &t)
{
    return t.nbytes() == t.storage().nbytes() && t.is_non_overlapping_and_dense();
}

static void erase(ska::flat_hash_map<c10::StorageImpl *, Entry>::iterator found)
{
    by_address.erase(reinterpret_cast<uintptr_t>(found->second.at));
    table.erase(found);
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

Version *tape_find(const c10::Storage &storage)
{
    auto found = table.find(storage.unsafeGetStorageImpl());
    return found != table.end() && is_current(found->second, storage) ? found->second.version.get() : nullptr;
}

VersionP tape_version(const c10::Storage &storage)
{
    auto found = table.find(storage.unsafeGetStorageImpl());
    return found != table.end() && is_current(found->second, storage) ? found->second.version : nullptr;
}

/* Forgets other storages over the same memory: those that are gone, and those that this one is another name of (DLPack). False: one of them was
 * given away, and so is what is written here. */
static bool forget_others(const c10::Storage &storage)
{
    auto from = reinterpret_cast<uintptr_t>(storage.data()), to = from + storage.nbytes();
    auto each = by_address.lower_bound(from);
    if (each != by_address.begin() && std::prev(each)->first + table.find(std::prev(each)->second)->second.size > from)
        --each;
    while (each != by_address.end() && each->first < to) {
        auto found = table.find((each++)->second);
        if (found->first == storage.unsafeGetStorageImpl())
            continue;
        if (found->second.is_given_away && !found->second.storage.expired())
            return false;
        erase(found);
    }
    return true;
}

void tape_put(const c10::Storage &storage, VersionP version)
{
    if (!storage.nbytes() || !forget_others(storage))
        return;
    auto *key = storage.unsafeGetStorageImpl();
    auto found = table.find(key);
    if (found != table.end() && found->second.is_given_away)
        return;
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
    table.emplace(key, Entry{storage.getWeakStorageImpl(), std::move(version), storage.nbytes(), storage.data(), false});
    by_address.emplace(reinterpret_cast<uintptr_t>(storage.data()), key);
}

void tape_forget_range(uintptr_t from, uintptr_t to)
{
    std::vector<c10::StorageImpl *> touched;
    for (auto &each : table) {
        auto at = reinterpret_cast<uintptr_t>(each.second.at);
        if (at < to && at + each.second.size > from && !each.second.is_given_away)
            touched.push_back(each.first);
    }
    for (auto *each : touched)
        erase(table.find(each));
}

void tape_forget_all()
{
    tape_forget_range(0, UINTPTR_MAX);
}

void tape_give_away(const c10::Storage &storage)
{
    tape_put(storage, new_version(0)); /* an entry */
    auto found = table.find(storage.unsafeGetStorageImpl());
    if (found == table.end())
        return;
    found->second.version = nullptr;
    found->second.is_given_away = true;
}

size_t tape_size()
{
    return table.size();
}

} // namespace cenote_values
