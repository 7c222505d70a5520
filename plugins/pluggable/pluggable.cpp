/*
 * pluggable.cpp: libcenote behind torch.cuda.memory.CUDAPluggableAllocator, for machines where the adapter cannot be compiled: its eight hooks are
 * here and in pools.cpp. docs/pytorch.md says what it cannot do. The function that PyTorch calls to free must not throw.
 *
 * LOCKING: none of its own.
 */
#include "pluggable.h"

#include <cenote/report.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#define DEVICES_MAX 64

static std::atomic<cenote_pool *> used[DEVICES_MAX]; /* pools that PyTorch has asked for: default ones stay */

using namespace cenote_torch;

static void check(int error)
{
    if (error)
        fail(error);
}

static bool all_reach_each_other(int devices)
{
    auto can_reach = named<int (*)(int *, int, int)>("libcuda.so.1", "cuDeviceCanAccessPeer");
    int can = 1;
    for (int one = 0; one < devices && can_reach; one++)
        for (int other = 0; other < devices; other++)
            if (one != other && !can_reach(&can, one, other) && !can)
                return false;
    return true;
}

/* PyTorch copies between all devices by a call that refuses pages where they cannot reach each other. */
static void take_what_can_be_copied(int devices)
{
    const char *conf = getenv("CENOTE_CONF");
    std::string given = conf ? conf : "";
    if (given.find("provider:") == std::string::npos && !all_reach_each_other(devices))
        setenv("CENOTE_CONF", (given + (given.empty() ? "" : ",") + "provider:plain").c_str(), 1);
}

/*
 * PyTorch tells its allocator when devices are to reach each other's memory, and has no hook for that. So two devices that the program uses are told
 * of each other at once.
 */
static void introduce(int device, cenote_pool *pool)
{
    for (int other = 0; other < DEVICES_MAX; other++) {
        cenote_pool *its = used[other].load();
        if (!its || other == device)
            continue;
        for (int error : {cenote_pool_grant(pool, other), cenote_pool_grant(its, device)})
            check(error == CENOTE_NOT_SUPPORTED ? CENOTE_OK : error);
    }
}

cenote_pool *cenote_torch::pool_of(int device)
{
    cenote_pool *pool = nullptr;
    check(cenote_pool_default(device, &pool));
    if (device < DEVICES_MAX && used[device].exchange(pool) != pool)
        introduce(device, pool);
    return pool;
}

ENTRY void cenote_pluggable_init(int devices)
{
    cenote_pool *pool = nullptr;
    note_use();
    take_what_can_be_copied(devices);
    for (int device = 0; device < devices; device++) {
        check(cenote_pool_default(device, &pool));
        cenote_pool_set_user(pool, "PyTorch");
    }
}

/*
 * PyTorch's streams last as long as the program: a block waits only for the work that was there at its free, and with announced:0 cenote waits for a
 * graph that was replayed on any of them. PyTorch makes all of a device with the first, so they are declared before a stream of them is used.
 */
static void declare_streams(int device, cenote_pool *pool, bool is_used)
{
    static std::atomic<bool> declared[DEVICES_MAX];
    static const bool announced = captures_are_announced();
    if (device >= DEVICES_MAX || declared[device] || (!is_used && announced))
        return;
    for (cenote_stream stream : lasting_streams(device))
        check(cenote_stream_set_immortal(pool, stream));
    declared[device] = true;
}

/* Throws if there is no memory: PyTorch would take NULL for a block. */
ENTRY void *cenote_pluggable_alloc(size_t bytes, int device, cenote_stream stream)
{
    void *block = nullptr;
    cenote_pool *pool = pool_of(device);
    declare_streams(device, pool, stream != nullptr);
    cenote_group *group = group_of(device, stream);
    cenote_request request = {};
    request.bytes = bytes;
    request.group = group;
    request.stream = stream;
    int error = group ? cenote_alloc_with(pool, &request, &block) : cenote_alloc(pool, bytes, stream, &block);
    if (error)
        fail(error, pool);
    return block;
}

/* A child drops its copies of tensors; the memory stays the parent's. */
ENTRY void cenote_pluggable_free(void *block, size_t, int, cenote_stream)
{
    int error = cenote_free(block);
    if (error && error != CENOTE_FORKED)
        fprintf(stderr, "cenote: a block could not be freed: %s\n", cenote_message());
}

ENTRY void cenote_pluggable_use(void *block, cenote_stream stream)
{
    cenote_block known;
    if (block && !cenote_find(block, &known))
        declare_streams(cenote_pool_device(known.pool), known.pool, true);
    int error = block ? cenote_use(block, stream) : CENOTE_OK;
    if (error && error != CENOTE_NOT_OURS) /* not ours: a tensor that wraps memory of another library */
        fail(error);
}

/* The block in which the address lies. */
ENTRY void *cenote_pluggable_base(void *address, size_t *size)
{
    cenote_block found;
    check(cenote_find(address, &found));
    if (size)
        *size = found.size;
    return found.start;
}

/* torch.cuda.empty_cache, on every device. A device that was not used gets a pool by this, but no memory. */
ENTRY void cenote_pluggable_reset(void)
{
    cenote_pool *pool = nullptr;
    end_lost_captures();
    for (int device = 0; cenote_pool_default(device, &pool) == CENOTE_OK; device++)
        check(cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT));
}

ENTRY void cenote_pluggable_fraction(double fraction, int device)
{
    cenote_stats stats;
    cenote_pool *pool = pool_of(device);
    check(cenote_pool_stats(pool, &stats));
    auto bytes = static_cast<uint64_t>(fraction * static_cast<double>(stats.capacity));
    check(cenote_pool_set_limit(pool, fraction < 1 ? bytes + !bytes : 0));
}

/* --- what the program does itself that cenote must not do with announced:0, by the names that the adapter has, too (plugins/torch/synced.cpp) */

static thread_local uint64_t begun[DEVICES_MAX];
static thread_local bool has_begun[DEVICES_MAX];

/* If captures are announced, a fence covers all that this wait does. */
ENTRY void cenote_torch_sync_begin(void)
{
    bool announced = captures_are_announced();
    for (int device = 0; device < DEVICES_MAX; device++) {
        cenote_pool *pool = used[device].load(std::memory_order_relaxed);
        has_begun[device] = !announced && pool && !cenote_pool_sync_begin(pool, &begun[device]);
    }
}

ENTRY void cenote_torch_sync_end(void)
{
    for (int device = 0; device < DEVICES_MAX; device++)
        if (has_begun[device])
            cenote_pool_sync_end(used[device].load(std::memory_order_relaxed), begun[device]);
}

/* Blocks of any device may have been used on it. */
ENTRY int cenote_torch_retire(unsigned long long stream, char *why, size_t room)
{
    int error = CENOTE_OK;
    for (int device = 0; device < DEVICES_MAX && !error; device++) {
        cenote_pool *pool = used[device].load(std::memory_order_relaxed);
        error = pool ? cenote_stream_retire(pool, reinterpret_cast<cenote_stream>(stream)) : CENOTE_OK;
    }
    if (error)
        snprintf(why, room, "%s", cenote_message());
    return error;
}
