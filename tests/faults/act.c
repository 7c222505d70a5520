/*
 * act.c: the ground a scenario stands on, and its blocks.
 *
 * Contents are checked in samples, a few words in every MiB: enough to see a block that was handed out twice or lost its pages, and cheap
 * enough for thousands of runs. The simulated device runs behind the host, so what was freed is still in use.
 */
#include "tests/faults/act.h"

#include "base/memory.h"

#define SAMPLE_BYTES 64
#define LAG (MSEC)

/* -------------------------------------------------------------------------------------------------------------------------- the ground */

cenote_options act_options(const struct act *act)
{
    cenote_options options = scene_options();
    options.provider = act->ground.provider;
    options.announced = !act->ground.no_promise;
    options.trim_every = act->ground.trim_every;
    options.decay_ms = act->ground.decay_ms;
    options.background = act->ground.background;
    options.trim_above = act->ground.trim_above;
    if (act->ground.page_mib)
        options.page_mib = act->ground.page_mib;
    if (act->ground.aliases)
        options.aliases = act->ground.aliases;
    if (act->ground.order)
        options.order = act->ground.order;
    if (act->ground.mappings)
        options.mappings = act->ground.mappings;
    if (act->ground.harvest_budget > 0)
        options.harvest_budget = act->ground.harvest_budget;
    return options;
}

static void open_other_device(struct act *act)
{
    DONE(cuDevicePrimaryCtxRetain(&act->other_context, 1));
    DONE(cuCtxPushCurrent(act->other_context));
    DONE(cuStreamCreate(&act->other_stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

void act_begin(struct act *act, const struct ground *ground, const struct injection *injection)
{
    struct sim_shape shape = scene_card(CARD);
    memset(act, 0, sizeof *act);
    act->ground = *ground;
    act->injection = *injection;
    shape.lag = LAG;
    shape.devices = ground->devices ? ground->devices : 1;
    shape.vmm = !ground->no_vmm;
    shape.pools = !ground->no_pools;
    shape.address_space = ground->address_space;
    if (ground->driver_version)
        shape.driver_version = ground->driver_version;
    scene_open_card(&act->scene, &shape);
    if (shape.devices > 1)
        open_other_device(act);
    if (!ground->no_pool) {
        cenote_options options = act_options(act);
        act->scene.pool = act_pool(act, 0, &options);
        REQUIRE(act->scene.pool);
    }
    for (int i = 0; i < SCENE_STREAMS && ground->no_promise; i++)
        DONE(cenote_stream_set_immortal(act->scene.pool, act->scene.stream[i]));
}

void act_armed(struct act *act)
{
    const struct injection *i = &act->injection;
    EXPECT_EQ(act->refused, 0); /* the way here is never refused */
    if (act->retry || i->kind == FAULT_NONE)
        return;
    act->armed = true;
    driver_tallies_reset();
    if (i->kind == FAULT_DRIVER)
        fault_arm(NULL, i->nth, i->error, i->persistent);
    else
        memory_fail(i->nth, i->persistent);
    if (i->other != OTHER_NONE)
        other_begin(act);
}

bool act_disarm(struct act *act)
{
    other_end();
    bool fired = act->injection.kind == FAULT_DRIVER ? fault_fired() != 0 : memory_failed() != 0;
    if (!act->armed)
        return false;
    act->armed = false;
    if (act->injection.kind == FAULT_DRIVER)
        fault_disarm();
    else
        memory_fail(0, false);
    return fired;
}

bool act_is_sticky(const struct act *act)
{
    return act->injection.kind == FAULT_DRIVER && driver_result_is_sticky(act->injection.error);
}

/* ------------------------------------------------------------------------------------------------------------------------- the answers */

/* Errors that say what happened when a driver or the host fails below us. Others would blame the caller. */
static bool is_clear(const struct act *act, int error)
{
    switch (error) {
    case CENOTE_OUT_OF_MEMORY: case CENOTE_OUT_OF_ADDRESSES: case CENOTE_DRIVER: case CENOTE_NO_DEVICE: case CENOTE_NO_DRIVER:
    case CENOTE_NOT_SUPPORTED:
        return act->injection.kind == FAULT_DRIVER;
    case CENOTE_OUT_OF_HOST_MEMORY:
        return act->injection.kind == FAULT_MEMORY;
    case CENOTE_DEVICE_LOST: case CENOTE_GONE: /* the exporter's context is lost */
        return act_is_sticky(act);
    case CENOTE_INVALID: /* a driver that does not know the stream */
        return act->injection.kind == FAULT_DRIVER && act->injection.error == CUDA_ERROR_INVALID_VALUE;
    default:
        return false;
    }
}

bool act_done(struct act *act, int error)
{
    if (!error)
        return true;
    act->refused++;
    act->lost = act->lost || error == CENOTE_DEVICE_LOST;
    if (!act->armed || !is_clear(act, error))
        fprintf(stderr, "    answered %s: %s\n", cenote_error_name(error), cenote_message());
    EXPECT(act->armed); /* nothing else is a reason to refuse */
    EXPECT(is_clear(act, error));
    EXPECT(cenote_message()[0] != 0);
    return false;
}

/* -------------------------------------------------------------------------------------------------------------------------- the blocks */

static void launch(const struct act_block *b, CUresult (*work)(CUstream, CUdeviceptr, uint64_t, size_t), CUstream stream)
{
    for (size_t from = 0; from + SAMPLE_BYTES <= b->bytes; from += MIB)
        DONE(work(stream, device_address(b->at + from), b->pattern + from, SAMPLE_BYTES));
}

/* Anew: it has another size now. */
void act_fill(const struct act_block *block)
{
    launch(block, sim_launch_fill, block->stream);
}

static struct act_block *keep(struct act *act, void *at, size_t bytes, CUstream stream)
{
    static uint64_t serial;
    for (int i = 0; i < ACT_BLOCKS; i++) {
        struct act_block *b = &act->blocks[i];
        if (b->at)
            continue;
        *b = (struct act_block){at, bytes, ++serial * 0x9e3779b97f4a7c15u, stream};
        launch(b, sim_launch_fill, stream);
        return b;
    }
    REQUIRE(!"a scenario holds more blocks than ACT_BLOCKS");
    return NULL;
}

/* What a call answered and the block it set; results are set only on success. */
static struct act_block *taken(struct act *act, int error, void *at, size_t bytes, CUstream stream)
{
    if (act_done(act, error))
        return keep(act, at, bytes, stream);
    EXPECT_EQ(at, act);
    return NULL;
}

struct act_block *act_take_aligned(struct act *act, cenote_pool *pool, size_t bytes, size_t alignment, CUstream stream)
{
    void *at = act;
    if (!pool)
        return NULL;
    int error = alloc_aligned(pool, bytes, alignment, stream, &at);
    struct act_block *b = taken(act, error, at, bytes, stream);
    EXPECT(!b || (uintptr_t)b->at % alignment == 0);
    return b;
}

struct act_block *act_take(struct act *act, cenote_pool *pool, size_t bytes, CUstream stream)
{
    return act_take_aligned(act, pool, bytes, 512, stream);
}

struct act_block *act_take_from(struct act *act, cenote_group *group, size_t bytes, CUstream stream)
{
    void *at = act;
    if (!group)
        return NULL;
    int error = group_alloc(group, bytes, 512, stream, &at);
    return taken(act, error, at, bytes, stream);
}

struct act_block *act_take_at(struct act *act, cenote_pool *pool, cenote_group *group, void *at, size_t bytes, CUstream stream)
{
    int error = alloc_at(pool, group, at, bytes, stream);
    bool is_taken = error == CENOTE_INVALID && act->armed && act->injection.other == OTHER_IN_POOL; /* by the second thread */
    if (is_taken || !act_done(act, error))
        return NULL;
    return keep(act, at, bytes, stream);
}

void act_hoard(struct act *act, cenote_pool *pool, size_t each, CUstream stream)
{
    size_t sum = 0;
    void *at = act;
    int error = CENOTE_OK;
    while (pool && sum <= CARD && !(error = cenote_alloc(pool, each, stream, &at))) {
        keep(act, at, each, stream);
        sum += each;
    }
    EXPECT(sum <= CARD);
    if (error && error != CENOTE_OUT_OF_MEMORY && error != CENOTE_OUT_OF_ADDRESSES)
        act_done(act, error);
    EXPECT(!error || cenote_message()[0] != 0);
}

void act_give(struct act_block *block)
{
    if (!block || !block->at)
        return;
    launch(block, sim_launch_expect, block->stream);
    DONE(cenote_free(block->at)); /* never fails */
    block->at = NULL;
}

void act_give_all(struct act *act)
{
    for (int i = 0; i < ACT_BLOCKS; i++)
        act_give(&act->blocks[i]);
}

void act_use(struct act *act, struct act_block *block, CUstream stream)
{
    if (!block || !act_done(act, cenote_use(block->at, stream)))
        return;
    judge_context(act); /* what the test itself calls wants its own */
    order(block->stream, stream);
    DONE(sim_launch_wait(stream, 10 * MSEC));
    launch(block, sim_launch_expect, stream);
}
