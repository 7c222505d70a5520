/*
 * fuzz_ops.c: a stream of operations on the public interface, decoded from bytes, beside a model of which block owns each byte and what it holds.
 *
 * world.c says what the world is made of and what ends every input, blocks.c how contents are judged. Here is what a correct program
 * may do, operation by operation (ops.def), each with the answer it must get. What the rules of CUDA or of cenote.h forbid at the moment
 * is left out, but for op_misuse, which does it on purpose.
 */
#include <cenote/report.h>

#include "fuzz/ops/world.h"

#include "driver/driver.h"

#define OPERATIONS_MAX 2000

static int any_pool(struct world *w)
{
    int pool = (int)input_below(w->in, POOLS);
    return w->pool[pool].pool ? pool : 0;
}

/* ------------------------------------------------------------------------------------------------------------------------- blocks */

static size_t choose_size(struct world *w, const struct pool *p)
{
    uint8_t kind = input_byte(w->in);
    switch (kind & 15) {
    case 15:
        return kind & 16 ? SIZE_MAX - input_byte(w->in) : (size_t)input_byte(w->in) << 28;
    case 14:
        return p->page_bytes * (1 + (kind >> 4 & 3)) + input_byte(w->in) - 128;
    case 13:
    case 12:
        return input_below(w->in, 12 * MIB);
    case 11:
    case 10:
    case 9:
    case 8:
    case 7:
        return input_below(w->in, 2 * MIB);
    default:
        return input_below(w->in, 32 * KIB);
    }
}

/* The capture stream, while it captures, serves only the pool that was told of it. */
static bool is_taken(const struct world *w, int pool, int stream)
{
    bool captures = w->capturing >= 0 && w->pool[w->capturing].device == w->pool[pool].device;
    return captures && w->capturing != pool && stream == CAPTURE_STREAM;
}

static int choose_stream(struct world *w, int pool)
{
    int stream = (int)input_below(w->in, STREAMS);
    return is_taken(w, pool, stream) ? CAPTURE_STREAM + 1 : stream;
}

/* A block of a group with that flag has its pages to itself. Where they do not move their size is not known. */
static bool is_whole(const struct pool *p, int group)
{
    return group < GROUPS && group != GROUP_SOURCE && p->flags[group] & CENOTE_GROUP_WHOLE && cenote_pool_provider(p->pool) == CENOTE_VMM &&
           !(p->plain_graphs && p->flags[group] & CENOTE_GROUP_PRIVATE);
}

/* Or a segment: then it has the alignment that this has. */
static bool is_whole_segment(const struct pool *p, int group)
{
    return group < GROUPS && p->flags[group] & CENOTE_GROUP_WHOLE && !is_whole(p, group);
}

static int ask(struct world *w, struct block *taken, size_t *alignment, void **at)
{
    static const int groups[] = {GROUP_OPEN, GROUP_PRIVATE, GROUP_SOURCE, GROUPS, GROUPS, GROUPS, GROUPS, GROUP_WHOLE};
    struct pool *p = &w->pool[taken->pool];
    CUstream stream = world_stream(w, taken->pool, taken->stream);
    uint8_t kind = input_byte(w->in);
    taken->group = world_is_capturing(w, taken->pool, taken->stream) ? GROUPS : groups[kind & 7];
    taken->whole = is_whole(p, taken->group);
    *alignment = 512;
    if (kind & 16)
        *alignment = (size_t)1 << (input_byte(w->in) & 31);
    cenote_request request = {.bytes = taken->bytes, .alignment = *alignment, .stream = stream};
    if (taken->group < GROUPS)
        request.group = p->group[taken->group];
    return request.group || kind & 16 ? cenote_alloc_with(p->pool, &request, at) : cenote_alloc(p->pool, taken->bytes, stream, at);
}

static void op_take(struct world *w)
{
    int pool = any_pool(w);
    struct block *b = block_any(w, false);
    if (!b || !w->pool[pool].pool)
        return;
    void *at = NULL;
    size_t alignment;
    CUcontext current = NULL;
    struct block taken = {.bytes = choose_size(w, &w->pool[pool]), .pool = pool, .stream = choose_stream(w, pool)};
    bool by_thread = taken.stream >= CREATED; /* default streams are those of the current context */
    int device = by_thread ? w->pool[pool].device : w->shape.devices - 1;
    world_enter(w, device);
    int error = ask(w, &taken, &alignment, &at);
    world_say(w, "  pool %d, stream %d, %zu bytes at %p: %s", pool, taken.stream, taken.bytes, at, cenote_error_name(error));
    JUDGE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    JUDGE(current == w->device[device].context || world_excuses(w, CENOTE_DRIVER));
    if (error || !taken.bytes) {
        int group = world_is_capturing(w, pool, taken.stream) ? (int)GROUP_GRAPHS : taken.group; /* an open capture decides */
        bool is_too_much = alignment > w->pool[pool].page_bytes || (alignment > 512 && is_whole_segment(&w->pool[pool], group));
        bool expected = error == CENOTE_OUT_OF_MEMORY || (error == CENOTE_INVALID && is_too_much) ||
                        (error == CENOTE_OUT_OF_ADDRESSES && w->shape.address_space);
        JUDGE(world_excuses(w, error) || expected);
        JUDGE(!at);
        return;
    }
    taken.at = at;
    JUDGE((uintptr_t)at % 512 == 0 && (uintptr_t)at % alignment == 0);
    JUDGE(!b->at); /* the shortage callback only gives */
    block_taken(w, b, taken);
}

/*
 * Where the last block of this place lay, with its size, in its group and on its stream: to restore what was recorded. In part of it another block
 * may lie by now, and in a live one nothing can be put.
 */
static void op_put(struct world *w)
{
    struct block *b = &w->block[input_below(w->in, BLOCKS)];
    struct pool *p = &w->pool[b->pool];
    if (!p->pool || !b->was || is_taken(w, b->pool, b->stream) || world_is_capturing(w, b->pool, b->stream))
        return;
    struct block put = {.at = b->at ? b->at : b->was, .bytes = b->bytes, .pool = b->pool, .stream = b->stream, .group = b->group};
    put.whole = is_whole(p, put.group);
    world_enter(w, p->device);
    cenote_request request = {.at = put.at, .bytes = put.bytes, .stream = world_stream(w, put.pool, put.stream)};
    if (put.group < GROUPS)
        request.group = p->group[put.group];
    void *block;
    int error = cenote_alloc_with(p->pool, &request, &block);
    world_say(w, "  pool %d, stream %d, %zu bytes at %p: %s", put.pool, put.stream, put.bytes, (void *)put.at, cenote_error_name(error));
    JUDGE(world_excuses(w, error) || error == CENOTE_INVALID || ((error == CENOTE_OUT_OF_MEMORY || error == CENOTE_BUSY) && !b->at));
    if (error)
        return;
    JUDGE(!b->at); /* the shortage callback only gives */
    block_taken(w, b, put);
}

static void op_export(struct world *w)
{
    struct share *s = &w->share[input_below(w->in, SHARES)];
    struct block *b = block_any(w, true);
    if (b)
        share_export(w, s, b);
}

static void op_import(struct world *w)
{
    share_import(w, &w->share[input_below(w->in, SHARES)]);
}

static void op_give(struct world *w)
{
    struct block *b = block_any(w, true);
    if (b)
        block_give(w, b);
}

/* Another stream reads a block, late. */
static void op_use(struct world *w)
{
    int reader;
    struct block *b = block_to_read(w, &reader);
    uint64_t late = input_byte(w->in) * (MSEC / 50);
    if (!b)
        return;
    int error = cenote_use(b->at, world_stream(w, b->pool, reader));
    JUDGE(world_excuses(w, error));
    if (!error)
        block_read_late(w, b, reader, late);
}

/* The stream of the last use is named by the free. Where that fails the block lives, and its own stream is behind the other. */
static void op_give_on(struct world *w)
{
    int reader;
    struct block *b = block_to_read(w, &reader);
    uint64_t late = input_byte(w->in) * (MSEC / 50);
    if (!b)
        return;
    CUstream stream = world_stream(w, b->pool, reader);
    block_read_late(w, b, reader, late);
    int error = cenote_free_on(b->at, stream);
    JUDGE(world_excuses(w, error));
    if (error)
        world_order(stream, world_stream(w, b->pool, b->stream));
    else
        block_gone(w, b);
}

static void op_find(struct world *w)
{
    struct block *b = block_any(w, true);
    cenote_block found;
    if (!b)
        return;
    JUDGE(cenote_find(b->at + input_below(w->in, b->bytes), &found) == CENOTE_OK);
    JUDGE(found.start == b->at && found.requested == b->bytes && found.size >= b->bytes);
    JUDGE(found.pool == w->pool[b->pool].pool);
}

/* Pinned memory may be touched whatever becomes of its block: that is what pins are for. */
static void op_pin(struct world *w)
{
    struct pin *pin = &w->pin[input_below(w->in, PINS)];
    struct block *b = block_any(w, true);
    bool touch = input_byte(w->in) & 1;
    if (!pin->at && b) {
        *pin = (struct pin){b->at, b->bytes, b->pool};
        JUDGE(cenote_pin(pin->at, pin->bytes) == CENOTE_OK);
    } else if (pin->at) {
        if (touch && w->capturing < 0) {
            world_enter(w, w->pool[pin->pool].device);
            JUDGE(sim_launch_touch(world_stream(w, pin->pool, 1), (CUdeviceptr)(uintptr_t)pin->at, pin->bytes) == CUDA_SUCCESS);
            JUDGE(cuStreamSynchronize(world_stream(w, pin->pool, 1)) == CUDA_SUCCESS);
        }
        JUDGE(cenote_unpin(pin->at, pin->bytes) == CENOTE_OK);
        pin->at = NULL;
    }
}

/* ------------------------------------------------------------------------------------------------------------------ time and streams */

static void op_work(struct world *w)
{
    int device = (int)input_below(w->in, (uint64_t)w->shape.devices), stream = (int)input_below(w->in, STREAMS);
    world_enter(w, device);
    JUDGE(sim_launch_wait(w->device[device].stream[stream], input_byte(w->in) * (MSEC / 20)) == CUDA_SUCCESS);
}

static void op_advance(struct world *w)
{
    sim_advance(input_byte(w->in) * (MSEC / 20));
}

static void op_synchronise(struct world *w)
{
    int device = (int)input_below(w->in, (uint64_t)w->shape.devices), stream = (int)input_below(w->in, STREAMS);
    if (w->capturing >= 0)
        return;
    world_enter(w, device);
    JUDGE(cuStreamSynchronize(w->device[device].stream[stream]) == CUDA_SUCCESS);
}

static void retire(struct world *w, int device, int stream)
{
    for (int i = 0; i < POOLS; i++) {
        if (!w->pool[i].pool || w->pool[i].device != device)
            continue;
        int error = cenote_stream_retire(w->pool[i].pool, w->device[device].stream[stream]);
        bool captured = is_taken(w, i, stream); /* for another pool: which stream it is cannot be asked */
        JUDGE((captured && error == CENOTE_BUSY) || world_excuses(w, error));
    }
}

/*
 * A stream goes, with its work under way and blocks of it live, and its handle may come back as another stream. A driver without stream
 * ids needs to be told before.
 */
static void op_renew_stream(struct world *w)
{
    int device = (int)input_below(w->in, (uint64_t)w->shape.devices);
    int stream = 1 + (int)input_below(w->in, CREATED - 1);
    bool told = (input_byte(w->in) & 1) || w->shape.driver_version < 12000;
    struct device *d = &w->device[device];
    if (d->immortal[stream])
        return;
    for (int i = 0; i < BLOCKS; i++) {
        struct block *b = &w->block[i];
        if (b->at && b->stream == stream && w->pool[b->pool].device == device)
            block_last_look(w, b);
    }
    world_enter(w, device);
    if (told)
        retire(w, device, stream);
    JUDGE(cuStreamDestroy(d->stream[stream]) == CUDA_SUCCESS);
    JUDGE(cuStreamCreate(&d->stream[stream], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
}

/* Retired and then used all the same: its next block finds an arena again. */
static void op_retire_stream(struct world *w)
{
    int device = (int)input_below(w->in, (uint64_t)w->shape.devices), stream = (int)input_below(w->in, CREATED);
    world_enter(w, device);
    if (!w->device[device].immortal[stream])
        retire(w, device, stream);
}

static void op_keep_stream(struct world *w)
{
    int pool = any_pool(w), stream = (int)input_below(w->in, CREATED);
    struct pool *p = &w->pool[pool];
    if (!p->pool)
        return;
    w->device[p->device].immortal[stream] = true;
    world_enter(w, p->device);
    JUDGE(world_excuses(w, cenote_stream_set_immortal(p->pool, world_stream(w, pool, stream))));
}

/* ------------------------------------------------------------------------------------------------------------------------- pools */

static void op_trim(struct world *w)
{
    struct pool *p = &w->pool[any_pool(w)];
    uint64_t keep = input_byte(w->in) * (w->shape.capacity / 256);
    unsigned flags = input_byte(w->in) & 1 ? CENOTE_TRIM_WAIT : 0;
    if (!p->pool)
        return;
    int error = cenote_pool_trim(p->pool, keep, flags);
    JUDGE(world_excuses(w, error) || (error == CENOTE_CAPTURE && w->capturing >= 0));
}

static void op_trim_group(struct world *w)
{
    struct pool *p = &w->pool[any_pool(w)];
    int group = (int)input_below(w->in, GROUPS);
    unsigned flags = input_byte(w->in) & 1 ? CENOTE_TRIM_WAIT : 0;
    if (!p->pool)
        return;
    int error = cenote_group_trim(p->group[group], flags);
    JUDGE(world_excuses(w, error) || (error == CENOTE_CAPTURE && w->capturing >= 0));
}

static void op_step(struct world *w)
{
    struct pool *p = &w->pool[any_pool(w)];
    if (p->pool)
        JUDGE(world_excuses(w, cenote_pool_step(p->pool)));
}

static void op_limit(struct world *w)
{
    struct pool *p = &w->pool[any_pool(w)];
    uint64_t limit = input_byte(w->in) * (w->shape.capacity / 256);
    if (p->pool)
        JUDGE(world_excuses(w, cenote_pool_set_limit(p->pool, limit)));
}

/* A group goes with blocks of it live; they stay valid. Not the one of the graphs, which replays write to. */
static void op_renew_group(struct world *w)
{
    int pool = any_pool(w);
    uint8_t choice = input_byte(w->in);
    enum group group = choice < 252 ? (enum group)(choice % GROUP_GRAPHS) : GROUP_WHOLE;
    if (!w->pool[pool].pool)
        return;
    world_say(w, "  pool %d, group %d", pool, (int)group);
    JUDGE(cenote_group_destroy(w->pool[pool].group[group]) == CENOTE_OK);
    group_open(w, pool, group);
}

/* What is free in it may serve others, or blocks get their pages to themselves, from now on. That it is private is for good. */
static void op_change_group(struct world *w)
{
    static const enum group groups[] = {GROUP_OPEN, GROUP_PRIVATE, GROUP_SOURCE, GROUP_WHOLE};
    struct pool *p = &w->pool[any_pool(w)];
    uint8_t how = input_byte(w->in);
    enum group group = how & 16 ? GROUP_GRAPHS : groups[how & 3];
    unsigned flags = (how & 4 ? CENOTE_GROUP_LEND : 0) | (how & 8 ? CENOTE_GROUP_WHOLE : 0) | (p->flags[group] & CENOTE_GROUP_PRIVATE);
    if (!p->pool)
        return;
    world_say(w, "  group %d: flags %u", (int)group, flags);
    JUDGE(cenote_group_set_flags(p->group[group], flags ^ CENOTE_GROUP_PRIVATE) == CENOTE_INVALID);
    JUDGE(cenote_group_set_flags(p->group[group], flags) == CENOTE_OK);
    p->flags[group] = flags;
    w->lends_source = w->lends_source || (group == GROUP_SOURCE && flags & CENOTE_GROUP_LEND);
}

static void op_renew_pool(struct world *w)
{
    int pool = (int)input_below(w->in, POOLS);
    if (w->capturing < 0 && pool_close(w, pool))
        pool_open(w, pool);
}

/* ------------------------------------------------------------------------------------------------------------------------ captures */

static void begin_capture(struct world *w, int pool, int graph)
{
    struct pool *p = &w->pool[pool];
    CUstream stream = world_stream(w, pool, CAPTURE_STREAM);
    for (int i = 0; i < BLOCKS; i++) {
        struct block *b = &w->block[i];
        if (!b->at || w->pool[b->pool].device != p->device || b->stream != CAPTURE_STREAM)
            continue;
        if (b->graph < 0)
            block_last_look(w, b);
        else if (b->pool == pool && b->graph == graph)
            b->readable = false; /* its graph goes */
    }
    world_enter(w, p->device);
    int error = cenote_capture_begin(p->pool, p->group[GROUP_GRAPHS], stream);
    JUDGE(world_excuses(w, error));
    if (error)
        return;
    if (p->graph[graph])
        JUDGE(cuGraphExecDestroy(p->graph[graph]) == CUDA_SUCCESS);
    p->graph[graph] = NULL;
    JUDGE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    w->capturing = pool;
    w->graph = graph;
}

static void end_capture(struct world *w)
{
    struct pool *p = &w->pool[w->capturing];
    CUstream stream = world_stream(w, w->capturing, CAPTURE_STREAM);
    CUgraph graph = NULL;
    world_enter(w, p->device);
    JUDGE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    int error = cenote_capture_end(p->pool, p->group[GROUP_GRAPHS], stream);
    JUDGE(world_excuses(w, error));
    if (error)
        JUDGE(cenote_capture_end(p->pool, p->group[GROUP_GRAPHS], stream) == CENOTE_OK);
    w->capturing = -1;
    JUDGE(cuGraphInstantiate(&p->graph[w->graph], graph, 0) == CUDA_SUCCESS);
    JUDGE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

/* One capture at a time, in the mode that forbids most. */
static void op_capture(struct world *w)
{
    int pool = any_pool(w), graph = (int)input_below(w->in, GRAPHS);
    if (w->capturing >= 0)
        end_capture(w);
    else if (w->pool[pool].pool)
        begin_capture(w, pool, graph);
}

/* Begun and ended at once, without a group: a thread that asks for memory there gets none. */
static void op_capture_nothing(struct world *w)
{
    int pool = any_pool(w);
    struct pool *p = &w->pool[pool];
    CUgraph graph = NULL;
    void *at = NULL;
    if (!p->pool || w->capturing >= 0)
        return;
    CUstream stream = world_stream(w, pool, CAPTURE_STREAM);
    world_enter(w, p->device);
    int error = cenote_capture_begin(p->pool, NULL, stream);
    JUDGE(world_excuses(w, error));
    if (error)
        return;
    JUDGE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    error = cenote_alloc(p->pool, 1 + input_byte(w->in), stream, &at);
    JUDGE(!at && error && (error == CENOTE_CAPTURE || world_excuses(w, error)));
    JUDGE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    error = cenote_capture_end(p->pool, NULL, stream);
    JUDGE(world_excuses(w, error));
    if (error)
        JUDGE(cenote_capture_end(p->pool, NULL, stream) == CENOTE_OK);
    JUDGE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

/* Its blocks that are still live hold what it wrote, until another graph of the group is replayed. */
static void op_replay(struct world *w)
{
    int pool = any_pool(w), graph = (int)input_below(w->in, GRAPHS);
    struct pool *p = &w->pool[pool];
    if (!p->pool || !p->graph[graph] || w->capturing >= 0)
        return;
    world_enter(w, p->device);
    JUDGE(cuGraphLaunch(p->graph[graph], world_stream(w, pool, CAPTURE_STREAM)) == CUDA_SUCCESS);
    for (int i = 0; i < BLOCKS; i++)
        if (w->block[i].at && w->block[i].pool == pool && w->block[i].graph == graph && w->block[i].readable)
            block_read(w, &w->block[i], CAPTURE_STREAM);
}

/* ----------------------------------------------------------------------------------------------------------------- faults and misuse */

static void op_fault(struct world *w)
{
    world_arm(w);
}

/* Each mistake has its error and changes nothing. */
static void op_misuse(struct world *w)
{
    uint8_t kind = input_byte(w->in);
    struct block *b = block_any(w, true);
    int error;
    if (!b)
        return;
    switch (kind % 5) {
    case 0:
        JUDGE(b->bytes == 1 || cenote_free(b->at + b->bytes / 2) == CENOTE_INTERIOR);
        break;
    case 1:
        JUDGE(cenote_free(&error) == CENOTE_NOT_OURS);
        break;
    case 2: {
        void *at = b->at;
        block_give(w, b);
        error = cenote_free(at);
        JUDGE(error == CENOTE_DOUBLE_FREE || error == CENOTE_NOT_OURS || error == CENOTE_INTERIOR);
        break;
    }
    case 3:
        error = cenote_capture_end(w->pool[b->pool].pool, w->pool[b->pool].group[GROUP_PRIVATE], world_stream(w, b->pool, 1));
        JUDGE(error == CENOTE_CAPTURE || (error && world_excuses(w, error)));
        break;
    case 4:
        JUDGE(cenote_free_sized(b->at, b->bytes - 1) == CENOTE_WRONG_SIZE);
        break;
    }
}

static void op_judge(struct world *w)
{
    world_judge_deeply(w);
}

/* Labels move no block. That their rows add up is judged with everything else: invariant 20. */
static void op_label(struct world *w)
{
    static const char *const names[] = {"a", "b", "c", "\xff"};
    uint8_t how = input_byte(w->in), value = input_byte(w->in);
    struct block *b = block_any(w, true);
    cenote_row rows[8];
    size_t count;
    int error;
    switch (how % 5) {
    case 0:
        if (w->tags < 4)
            w->tags += cenote_tag_push(names[value & 3]) == CENOTE_OK;
        break;
    case 1:
        JUDGE(cenote_tag_pop() == (w->tags ? CENOTE_OK : CENOTE_INVALID));
        w->tags -= w->tags > 0;
        break;
    case 2:
        JUDGE(cenote_phase_set(value % (CENOTE_PHASES + 1)) == (value % (CENOTE_PHASES + 1) < CENOTE_PHASES ? CENOTE_OK : CENOTE_INVALID));
        break;
    case 3:
        error = b ? cenote_block_set_kind(b->at + b->bytes / 2, value % CENOTE_KINDS) : CENOTE_OK;
        JUDGE(!error);
        break;
    case 4:
        JUDGE(!b || cenote_pool_rows(w->pool[b->pool].pool, value % (CENOTE_BY_KIND + 1), rows, 8, &count) == CENOTE_OK);
        break;
    }
}

/* -------------------------------------------------------------------------------------------------------------------------- decoding */

static const struct {
    int weight;
    const char *name;
    void (*run)(struct world *w);
} ops[] = {
#define OP(weight, name) {weight, #name, op_##name},
#include "fuzz/ops/ops.def"
#undef OP
};

static void operate(struct world *w)
{
    int chosen = input_byte(w->in), op = 0;
    while (chosen >= ops[op].weight)
        chosen -= ops[op++].weight;
    w->fired = fault_fired();
    world_say(w, "%s (%zu bytes left)", ops[op].name, w->in->left);
    ops[op].run(w);
    if (fault_fired() != w->fired) {
        world_say(w, "  the fault fired");
        w->has_failed = true;
    }
    world_judge(w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world world;
    struct input in = {data, size};
    world_open(&world, &in);
    for (int i = 0; in.left && i < OPERATIONS_MAX; i++)
        operate(&world);
    if (world.capturing >= 0)
        end_capture(&world);
    world_close(&world);
    return 0;
}
