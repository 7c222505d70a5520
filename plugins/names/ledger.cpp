/*
 * ledger.cpp: which blocks are live, and which were live when most bytes were.
 *
 * The blocks of the peak need no list that is made anew at each peak. A block was live at the peak if it was born before it, and is live now or was
 * freed since. So `gone` has the blocks that were freed since the peak and born before it; a new peak empties it. Each block enters it once at most,
 * so an allocation or a free costs the same at every size of the ledger.
 *
 * A device's peak is that of all its blocks since the ledger began, whatever the program resets.
 *
 * If a report will want it, the ledger also keeps a log: all blocks that were freed, and when, up to a number of them; then the older half goes.
 *
 * LOCKING: one lock, under which nothing is called. In a forked child the ledger is closed: the blocks are the parent's.
 */
#include "ledger.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>

namespace cenote_names {

struct Books {
    uint64_t now = 0, peak = 0, born = 0, born_at_peak = 0, blocks = 0;
    uint32_t peak_place = 0;
    std::vector<Block> gone;

    uint64_t events = 0, reserved = 0;
    std::vector<Logged> log;
};

struct Entry {
    Block block;
    uint64_t came, came_reserved;
    double came_us;
};

static std::mutex ledger_lock;
static std::atomic<bool> closed{false};
static std::vector<Entry> entries;    /* of live blocks, and unused ones */
static std::vector<uint32_t> unused;  /* their numbers */
static ska::flat_hash_map<uint64_t, uint32_t> live; /* number of the entry, by address */
static std::atomic<uint64_t> highest_peak{0};
static std::atomic<uint64_t> ended{0}; /* blocks that a module or an optimizer held and that were freed */
static Books devices[DEVICES];
static size_t log_most; /* 0: no log is kept */
static bool is_adopting;
static ska::flat_hash_map<uint64_t, bool> given_meanwhile;

static double now_us()
{
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* LOCKING: `ledger_lock`. */
static void log_free(Books &device, const Entry &entry)
{
    if (device.log.size() >= log_most)
        device.log.erase(device.log.begin(), device.log.begin() + static_cast<ptrdiff_t>(log_most / 2));
    device.log.push_back({entry.block, entry.came, device.events, entry.came_us, now_us(), entry.came_reserved, device.reserved});
}

/* LOCKING: `ledger_lock`. */
static void remove(ska::flat_hash_map<uint64_t, uint32_t>::iterator found)
{
    const Entry &entry = entries[found->second];
    const Block &block = entry.block;
    Books &device = devices[block.device];
    device.events++;
    if (log_most)
        log_free(device, entry);
    device.now -= block.size;
    device.blocks--;
    if (block.born < device.born_at_peak)
        device.gone.push_back(block);
    if (kind_of(block.holder) == PARAMETERS || kind_of(block.holder) == BUFFERS || kind_of(block.holder) == OPTIMIZER)
        ended.fetch_add(1, std::memory_order_relaxed);
    unused.push_back(found->second);
    live.erase(found);
}

/* LOCKING: `ledger_lock`. */
static void add(int number, uint64_t at, uint64_t size, uint32_t place)
{
    auto known = live.find(at);
    if (known != live.end()) /* its free was not seen */
        remove(known);
    Books &device = devices[number];
    device.events++;
    if (unused.empty()) {
        unused.push_back(static_cast<uint32_t>(entries.size()));
        entries.emplace_back();
    }
    uint32_t entry = unused.back();
    live.emplace(at, entry);
    unused.pop_back();
    entries[entry] = {{at, size, device.born++, place, 0, number, 0}, device.events, device.reserved, log_most ? now_us() : 0};
    device.now += size;
    device.blocks++;
    if (device.now <= device.peak)
        return;
    device.peak = device.now;
    if (device.peak > highest_peak.load(std::memory_order_relaxed))
        highest_peak.store(device.peak, std::memory_order_relaxed);
    device.born_at_peak = device.born;
    device.peak_place = place;
    device.gone.clear();
}

void ledger_take(int device, uint64_t at, uint64_t size, uint32_t place)
{
    if (device < 0 || device >= DEVICES || closed)
        return;
    std::lock_guard<std::mutex> hold(ledger_lock);
    add(device, at, size, place);
}

/* False: the block is not known. */
bool ledger_give(uint64_t at)
{
    if (closed)
        return false;
    std::lock_guard<std::mutex> hold(ledger_lock);
    auto found = live.find(at);
    if (found == live.end()) {
        if (is_adopting)
            given_meanwhile[at] = true;
        return false;
    }
    remove(found);
    return true;
}

/* Shows `look` what is known of the live block that begins there. False: there is none, or it says no. */
template <typename Look>
static bool with_block(uint64_t at, Look look)
{
    if (closed)
        return false;
    std::lock_guard<std::mutex> hold(ledger_lock);
    auto found = live.find(at);
    return found != live.end() && look(entries[found->second].block);
}

bool ledger_hold(uint64_t at, Holder holder)
{
    return with_block(at, [&](auto &block) {
        block.holder = holder;
        return true;
    });
}

bool ledger_holder(uint64_t at, Holder *holder)
{
    return with_block(at, [&](auto &block) {
        *holder = block.holder;
        return true;
    });
}

/* Where a block was allocated that has no holder. */
bool ledger_place(uint64_t at, uint32_t *place)
{
    return with_block(at, [&](auto &block) {
        *place = block.place;
        return !block.holder;
    });
}

/* It changes when a block is freed that a module or an optimizer held. */
uint64_t ledger_ended()
{
    return ended.load(std::memory_order_relaxed);
}

Levels ledger_levels(int number)
{
    std::lock_guard<std::mutex> hold(ledger_lock);
    const Books &device = devices[number];
    return {device.now, device.peak, device.blocks, device.peak_place, 0};
}

/* Of the device that has the highest. */
uint64_t ledger_peak()
{
    return highest_peak.load(std::memory_order_relaxed);
}

/* In the order in which they were allocated. */
std::vector<Block> ledger_blocks(int number, bool at_peak)
{
    std::unique_lock<std::mutex> hold(ledger_lock);
    const Books &device = devices[number];
    std::vector<Block> found = at_peak ? device.gone : std::vector<Block>();
    for (const auto &one : live) {
        const Block &block = entries[one.second].block;
        if (block.device == number && (!at_peak || block.born < device.born_at_peak))
            found.push_back(block);
    }
    hold.unlock();
    std::sort(found.begin(), found.end(), [](const Block &one, const Block &other) { return one.born < other.born; });
    return found;
}

/* Blocks came and went unseen. */
void ledger_clear()
{
    std::lock_guard<std::mutex> hold(ledger_lock);
    live.clear();
    entries.clear();
    unused.clear();
    highest_peak = 0;
    for (Books &device : devices)
        device = Books();
}

/* --- the log */

void ledger_log(size_t most)
{
    std::lock_guard<std::mutex> hold(ledger_lock);
    log_most = most;
}

/* The allocator has taken so much from the driver, or given it back. */
void ledger_reserve(int device, int64_t change)
{
    if (device < 0 || device >= DEVICES || closed)
        return;
    std::lock_guard<std::mutex> hold(ledger_lock);
    devices[device].reserved += static_cast<uint64_t>(change);
}

/* Those that are live come last. */
std::vector<Logged> ledger_logged(int number)
{
    std::lock_guard<std::mutex> hold(ledger_lock);
    std::vector<Logged> found = devices[number].log;
    for (const auto &one : live) {
        const Entry &entry = entries[one.second];
        if (entry.block.device == number)
            found.push_back({entry.block, entry.came, 0, entry.came_us, 0, entry.came_reserved, 0});
    }
    return found;
}

/* --- blocks that were live before the ledger began. What is freed while they are looked for is not adopted. */

void ledger_begin_adopting()
{
    std::lock_guard<std::mutex> hold(ledger_lock);
    is_adopting = true;
}

void ledger_adopt(int device, uint64_t at, uint64_t size)
{
    std::lock_guard<std::mutex> hold(ledger_lock);
    if (device >= 0 && device < DEVICES && live.find(at) == live.end() && !given_meanwhile.count(at))
        add(device, at, size, 0);
}

void ledger_end_adopting()
{
    std::lock_guard<std::mutex> hold(ledger_lock);
    is_adopting = false;
    given_meanwhile.clear();
}

/* Before a fork: no thread is in the middle of a change then. */
void ledger_before_fork()
{
    ledger_lock.lock();
}

/* After it. A parent that has used no GPU has left its child no blocks. */
void ledger_after_fork(bool is_child)
{
    for (const Books &device : devices)
        if (is_child && device.born)
            closed = true;
    ledger_lock.unlock();
}

} // namespace cenote_names
