/*
 * follower.cpp: a library that follows memory through PyTorch's trace trackers, as NCCL does: a cache of registered memory, by address. It
 * keeps its own books of what every entry says and names the first entry that contradicts them. Compiled by the tests (follower.py).
 *
 * A registration remembers which physical memory lay under each 2 MiB when it was made, from SEGMENT_ALLOC or SEGMENT_MAP until
 * SEGMENT_FREE or SEGMENT_UNMAP. `follower_stale` asks the driver whether that is still so.
 *
 * LOCKING: `lock` guards everything; PyTorch calls with its own locks held.
 */
#include <c10/cuda/CUDACachingAllocator.h>

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace c10::cuda::CUDACachingAllocator;

namespace
{

constexpr uint64_t PAGE = 2 << 20, WHOLE = ~0ull;

struct Block {
    uint64_t bytes;
    bool freeing;
};

struct Books {
    std::map<uint64_t, uint64_t> registered; /* address of a page -> what lies there; WHOLE: a segment, which cannot move */
    std::map<uint64_t, Block> blocks;
};

std::mutex lock;
std::map<int, Books> devices;
uint64_t counts[16];
std::string problem;
bool knows_everything; /* began before there was any memory */

uint64_t what_lies_at(uint64_t at)
{
    static auto retain = reinterpret_cast<int (*)(uint64_t *, void *)>(dlsym(RTLD_DEFAULT, "cuMemRetainAllocationHandle"));
    static auto release = reinterpret_cast<int (*)(uint64_t)>(dlsym(RTLD_DEFAULT, "cuMemRelease"));
    uint64_t handle = 0;
    if (!retain(&handle, reinterpret_cast<void *>(at)))
        release(handle);
    return handle;
}

bool is_stale(const std::pair<const uint64_t, uint64_t> &registration)
{
    return registration.second != WHOLE && registration.second != what_lies_at(registration.first);
}

void complain(const TraceEntry &e, const char *what)
{
    if (!problem.empty())
        return;
    char text[200];
    snprintf(text, sizeof text, "action %d of %zu bytes at %#zx: %s", static_cast<int>(e.action_), e.size_, e.addr_, what);
    problem = text;
}

uint64_t page(uint64_t at)
{
    return at / PAGE * PAGE;
}

bool is_registered(const Books &books, uint64_t at, uint64_t bytes)
{
    for (uint64_t each = page(at); each < at + bytes; each += PAGE)
        if (!books.registered.count(each))
            return false;
    return true;
}

void enter(Books &books, const TraceEntry &e)
{
    for (uint64_t at = page(e.addr_); at < e.addr_ + e.size_; at += PAGE)
        if (!books.registered.emplace(at, e.action_ == TraceEntry::SEGMENT_ALLOC ? WHOLE : what_lies_at(at)).second)
            complain(e, "is registered already");
}

void leave(Books &books, const TraceEntry &e)
{
    auto live = books.blocks.lower_bound(e.addr_ + e.size_);
    if (live != books.blocks.begin() && (--live)->first + live->second.bytes > e.addr_)
        complain(e, "goes, and a block lives there");
    for (uint64_t at = page(e.addr_); at < e.addr_ + e.size_; at += PAGE) {
        auto known = books.registered.find(at);
        if (known == books.registered.end()) {
            if (knows_everything)
                complain(e, "goes, and was not registered");
            continue;
        }
        if (is_stale(*known))
            complain(e, "goes, and other memory lies there than was registered");
        books.registered.erase(known);
    }
}

void take(Books &books, const TraceEntry &e)
{
    auto next = books.blocks.lower_bound(e.addr_);
    if (next != books.blocks.end() && next->first < e.addr_ + e.size_)
        complain(e, "is allocated, and overlaps the next block");
    if (next != books.blocks.begin() && std::prev(next)->first + std::prev(next)->second.bytes > e.addr_)
        complain(e, "is allocated, and overlaps the block before");
    if (knows_everything && !is_registered(books, e.addr_, e.size_))
        complain(e, "is allocated where nothing is registered");
    books.blocks[e.addr_] = {e.size_, false};
}

void follow(const TraceEntry &e)
{
    std::lock_guard<std::mutex> hold(lock);
    counts[e.action_]++;
    if (e.time_.approx_t_ == 0)
        complain(e, "has no time");
    Books &books = devices[e.device_];
    auto block = books.blocks.find(e.addr_);
    switch (e.action_) {
    case TraceEntry::SEGMENT_ALLOC:
    case TraceEntry::SEGMENT_MAP:
        return enter(books, e);
    case TraceEntry::SEGMENT_FREE:
    case TraceEntry::SEGMENT_UNMAP:
        return leave(books, e);
    case TraceEntry::ALLOC:
        return take(books, e);
    case TraceEntry::FREE_REQUESTED:
        if (block == books.blocks.end() ? knows_everything : block->second.freeing || block->second.bytes != e.size_)
            complain(e, "is freed, and is no such live block");
        if (block != books.blocks.end())
            block->second.freeing = true;
        return;
    case TraceEntry::FREE_COMPLETED:
        if (block == books.blocks.end() ? knows_everything : !block->second.freeing)
            complain(e, "is free now, and no entry requested that");
        if (block != books.blocks.end())
            books.blocks.erase(block);
        return;
    default:
        return;
    }
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void follower_begin(bool early)
{
    knows_everything = early;
    attachAllocatorTraceTracker(&follow);
}

/* A follower that is attached late registers the memory in a snapshot. */
EXPORT void follower_register(int device, uint64_t at, uint64_t bytes, bool whole)
{
    std::lock_guard<std::mutex> hold(lock);
    for (uint64_t each = page(at); each < at + bytes; each += PAGE)
        devices[device].registered.emplace(each, whole ? WHOLE : what_lies_at(each));
}

EXPORT uint64_t follower_count(int action)
{
    std::lock_guard<std::mutex> hold(lock);
    return counts[action];
}

/* Pages under [at, at + bytes) that are not registered, or under which other memory lies than was registered. */
EXPORT uint64_t follower_stale(int device, uint64_t at, uint64_t bytes)
{
    std::lock_guard<std::mutex> hold(lock);
    const Books &books = devices[device];
    uint64_t stale = 0;
    for (uint64_t each = page(at); each < at + bytes; each += PAGE) {
        auto known = books.registered.find(each);
        stale += known == books.registered.end() || is_stale(*known);
    }
    return stale;
}

EXPORT uint64_t follower_registered(int device)
{
    std::lock_guard<std::mutex> hold(lock);
    return devices[device].registered.size() * PAGE;
}

EXPORT uint64_t follower_live(int device)
{
    std::lock_guard<std::mutex> hold(lock);
    return devices[device].blocks.size();
}

/* Threads that take a block of the same stream and give it back, each over and over: what one frees another has next. */
EXPORT void follower_churn(int threads, int turns, uint64_t bytes)
{
    std::vector<std::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back([=] {
            for (int turn = 0; turn < turns; turn++)
                raw_delete(raw_alloc_with_stream(bytes, nullptr));
        });
    for (auto &each : all)
        each.join();
}

/* The first contradiction, or "". */
EXPORT const char *follower_problem()
{
    std::lock_guard<std::mutex> hold(lock);
    return problem.c_str();
}

