/*
 * pools.cpp: PyTorch's memory pools (CUDA graphs, torch.cuda.MemPool) as groups of cenote's, where there is no adapter. Pools of another allocator's
 * memory, statistics of pools and checkpoints are the adapter's (plugins/torch/pools.cpp).
 *
 * A pool has an id and, on each device that uses it, a group with a count of uses: each begin is one, and a MemPool is one as long as it lives. With
 * the last use the group goes; live blocks stay. In a forked child, calls that end something do nothing.
 *
 * LOCKING: `pools_lock` guards pools and routes (plugins/torch/routes.h).
 */
#include "pluggable.h"

#include <map>
#include <stdexcept>
#include <string>

namespace cenote_torch
{

struct Pool {
    cenote_group *group = nullptr;
    int uses = 0;
};

static Lock pools_lock;
static auto &pools = *new std::map<std::pair<int, PoolId>, Pool>; /* these two never end: graphs and tensors may die after every static object */
static auto &routes = *new Routes(pools_lock);

/* The driver itself: this library has no CUDA runtime. */
bool is_capturing(cenote_stream stream)
{
    static const auto ask = named<int (*)(cenote_stream, int *)>("libcuda.so.1", "cuStreamIsCapturing");
    int status = 0;
    return ask && !ask(stream, &status) && status;
}

/* LOCKING: pools_lock. */
static Pool &enter(int device, PoolId id)
{
    Pool &pool = pools[{device, id}];
    if (!pool.group) {
        cenote_options options;
        bool plain = !cenote_options_default(&options) && options.graphs == CENOTE_GRAPHS_PLAIN;
        std::string name = "pool " + std::to_string(id.first) + "," + std::to_string(id.second);
        int error = cenote_group_create(pool_of(device), name.c_str(), CENOTE_GROUP_PRIVATE | (plain ? CENOTE_GROUP_PLAIN : 0), nullptr, &pool.group);
        if (error) {
            pools.erase({device, id});
            fail(error);
        }
    }
    pool.uses++;
    return pool;
}

cenote_group *group_of(int device, cenote_stream stream)
{
    if (!routes.any())
        return nullptr;
    Hold hold(pools_lock);
    const Route *route = routes.of_held(device, stream);
    return route ? route->group : nullptr;
}

void end_lost_captures()
{
    if (!is_child())
        routes.end_lost_captures();
}

} // namespace cenote_torch

using namespace cenote_torch;

ENTRY void cenote_pluggable_begin(int device, PoolId id, Filter filter)
{
    cenote_stream stream = current_stream(device);
    Route route = {device, id, std::move(filter), stream};
    end_lost_captures();
    bool is_capture = is_capturing(stream) || !route.filter(stream);
    {
        Hold hold(pools_lock);
        if (routes.has_held(device, id))
            throw std::runtime_error("allocations go to this pool already: it serves one capture or use_mem_pool at a time");
        route.group = enter(device, id).group;
        routes.add_held(route);
    }
    if (is_capture)
        routes.announce(device, id, route.group, stream);
}

ENTRY void cenote_pluggable_end(int device, PoolId id)
{
    if (is_child())
        return;
    int error = routes.end(device, id);
    if (error)
        fail(error);
    end_lost_captures();
}

/* A destructor of a graph or pool may be running: an id that is not in use is left alone. */
ENTRY void cenote_pluggable_release(int device, PoolId id)
{
    if (is_child())
        return;
    Hold hold(pools_lock);
    auto found = pools.find({device, id});
    if (found == pools.end() || --found->second.uses)
        return;
    if (!cenote_group_destroy(found->second.group))
        pools.erase(found);
}

/* For C: torch.cuda.MemPool, a use of the pool that lasts as long as the object. */
ENTRY int cenote_pluggable_keep(int device, unsigned long long first, unsigned long long second)
{
    try {
        Hold hold(pools_lock);
        enter(device, {first, second});
        return CENOTE_OK;
    } catch (const std::exception &) { /* C called: cenote_message has the words */
        return CENOTE_INVALID;
    }
}

ENTRY void cenote_pluggable_drop(int device, unsigned long long first, unsigned long long second)
{
    cenote_pluggable_release(device, {first, second});
}

ENTRY int cenote_pluggable_uses(int device, unsigned long long first, unsigned long long second)
{
    if (is_child())
        return 0;
    Hold hold(pools_lock);
    auto found = pools.find({device, {first, second}});
    return found == pools.end() ? 0 : found->second.uses;
}
