/*
 * start.c: how the machine starts, at the first call or by sim_reset. The one place that lists what every room has to forget.
 *
 * A room is started after those below it: memory has numbers before it is handed out, devices are there before their contexts.
 *
 * LOCKING: the model's lock.
 */
#include "sim/entries/start.h"

#include <stdlib.h>

#include "sim/code/kernel.h"
#include "sim/entries/entries.h"
#include "sim/graph/graph.h"
#include "sim/machine/cost.h"
#include "sim/machine/machine.h"
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

static void reset_order(void)
{
    clock_reset();
    moments_reset();
    queue_reset();
    work_reset();
    calls_reset();
}

static void reset_memory(uint64_t numbered)
{
    if (!contents_reset(numbered))
        model_cannot_start("no address space for the contents of device memory");
    transfers_reset();
    shared_reset();
    physical_reset();
    if (!virtual_reset())
        model_cannot_start("no address space for device addresses");
    host_reset();
    allocations_reset();
    ipc_reset();
}

static void reset_code_and_graphs(void)
{
    modules_reset();
    linkers_reset();
    graphs_reset();
    execs_reset();
    graph_memory_reset();
    objects_reset();
}

void start_with(const struct sim_shape *shape)
{
    machine_leave();
    uint64_t numbered = model_reset(shape);
    if (!cost_reset(shape->prices))
        model_cannot_start("the prices are not understood");
    visible_reset();
    reset_order();
    reset_memory(numbered);
    reset_code_and_graphs();
    captures_reset();
    events_reset();
    streams_reset();
    contexts_reset();
    partitions_reset();
    green_reset();
    pools_reset();
    pool_places_reset();
    lookup_reset();
}

void start_from_environment(void)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    const char *text = getenv("CENOTE_SIM");
    bool quiet = false;
    if (text && !shape_parse(&shape, &quiet, text))
        model_cannot_start("CENOTE_SIM is not understood");
    model.quiet = quiet;
    start_with(&shape);
    visible_follow_environment();
}

static void after_fork(void)
{
    clock_after_fork();
    calls_after_fork();
}

__attribute__((constructor)) static void connect_rooms(void)
{
    static const struct model_hooks hooks = {
        .start = start_from_environment,
        .fork_in_child = after_fork,
        .thread_ends = streams_close_thread,
        .synchronized = pools_synchronized,
    };
    model_set_hooks(&hooks);
}
