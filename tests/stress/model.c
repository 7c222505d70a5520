/*
 * model.c: a random program that remembers what it did: which bytes are whose, and what they must hold when the device gets there.
 *
 * Every block is filled on its stream when it is taken and compared on its stream as the last thing before it is given back; in between
 * other streams read it behind an event, announced by cenote_use. Long work is strewn in, so that the device is behind by an amount that
 * changes. The rest of the interface is mixed in as it would be in a program that uses all of it at once.
 *
 * With others beside it, it puts some blocks where another thread finds and frees them.
 *
 * It checks nothing itself: failures are counted, so that models can run in threads. Contents are judged by the simulated card.
 */
#include "tests/stress/model.h"

#include "driver/driver.h"

#define STRIPE 2048u
#define STRIDE (256 * KIB)

#define MUST(x) model_must(m, (x), #x, __LINE__)
#define ASKED(x) model_asked(m, (x), #x, __LINE__)

static bool model_must(struct model *m, bool fine, const char *what, int line)
{
    if (!fine && m->failures++ == 0) {
        m->what = what;
        m->line = line;
    }
    return fine;
}

/* Did the call work? With faults under way it may say that the driver failed; then nothing has changed. */
static bool model_asked(struct model *m, int error, const char *what, int line)
{
    bool excused = m->faults && (error == CENOTE_DRIVER || error == CENOTE_OUT_OF_ADDRESSES || error == CENOTE_DEVICE_LOST);
    m->refused += excused;
    if (error && !excused && !m->failures)
        snprintf(m->message, sizeof m->message, "%s: %s", cenote_error_name(error), cenote_message());
    return model_must(m, error == CENOTE_OK || excused, what, line) && !error;
}

/* xorshift: the same program for the same seed, everywhere. */
static uint64_t pick(struct model *m, uint64_t below)
{
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return (m->random >> 11) % below;
}

typedef CUresult (*launch_fn)(CUstream stream, CUdeviceptr at, uint64_t pattern, size_t bytes);

/* Small blocks whole; of large ones a stripe here and there, in every page and each with contents of its own, and the end. */
static void launch(struct model *m, launch_fn function, const struct model_block *b, CUstream stream)
{
    size_t words = b->bytes & ~(size_t)7;
    size_t step = words <= 64 * KIB ? 64 * KIB : STRIDE;
    for (size_t from = 0; from < words; from += step) {
        size_t length = words <= 64 * KIB ? words : words - from < STRIPE ? words - from : STRIPE;
        MUST(function(stream, device_address(b->at + from), b->pattern + from, length) == CUDA_SUCCESS);
    }
    if (words > 64 * KIB && words % STRIDE > STRIPE + 512)
        MUST(function(stream, device_address(b->at + words - 512), b->pattern, 512) == CUDA_SUCCESS);
}

static size_t pick_size(struct model *m)
{
    uint64_t kind = pick(m, 100);
    if (kind < 60)
        return pick(m, 32 * KIB) + 1;
    if (kind < 90)
        return pick(m, 2 * MIB) + 1;
    return pick(m, 9 * MIB) + 1;
}

/* --- taking and giving */

/* Of any group or none, without a wait: a thread that has the turn is not waited for, either. */
static int ask_now(struct model *m, size_t bytes, size_t alignment, CUstream stream, void **at)
{
    cenote_request request = {.bytes = bytes, .alignment = alignment, .stream = stream, .flags = CENOTE_NO_WAIT};
    uint64_t group = pick(m, 8);
    request.group = group <= GROUP_PRIVATE ? m->group[group] : NULL;
    int error = cenote_alloc_with(m->pool, &request, at);
    MUST(error != CENOTE_BUSY || !m->alone);
    return error == CENOTE_BUSY ? CENOTE_OUT_OF_MEMORY : error;
}

static int ask(struct model *m, size_t bytes, CUstream stream, void **at)
{
    uint64_t kind = pick(m, 20);
    size_t alignment = (size_t)1 << pick(m, 22);
    if (kind <= GROUP_PRIVATE)
        return group_alloc(m->group[kind], bytes, alignment, stream, at);
    if (kind < 4)
        return alloc_aligned(m->pool, bytes, alignment, stream, at);
    if (kind < 6)
        return ask_now(m, bytes, alignment, stream, at);
    return cenote_alloc(m->pool, bytes, stream, at);
}

static void check_apart(struct model *m, const struct model_block *b)
{
    for (int i = 0; i < MODEL_BLOCKS; i++) {
        const struct model_block *other = &m->block[i];
        if (other != b && other->at)
            MUST(b->at + b->bytes <= other->at || other->at + other->bytes <= b->at);
    }
}

static void take(struct model *m, struct model_block *b)
{
    void *at = NULL;
    struct model_block taken = {.bytes = pick_size(m), .stream = (int)pick(m, MODEL_STREAMS), .pattern = m->random | 1};
    int error = ask(m, taken.bytes, m->stream[taken.stream], &at);
    if (error == CENOTE_OUT_OF_MEMORY)
        m->refused++;
    if (error == CENOTE_OUT_OF_MEMORY || !ASKED(error))
        return;
    taken.at = at;
    MUST((uintptr_t)at % 512 == 0);
    *b = taken;
    check_apart(m, b);
    m->requested += b->bytes;
    m->allocations++;
    launch(m, sim_launch_fill, b, m->stream[b->stream]);
}

static void give(struct model *m, struct model_block *b)
{
    char *at = b->at;
    launch(m, sim_launch_expect, b, m->stream[b->stream]);
    b->at = NULL;
    m->requested -= b->bytes;
    if (m->shelf && b->stream < m->shared && pick(m, 2)) {
        at = atomic_exchange(&m->shelf->at[pick(m, 64)], at);
        MUST(cenote_free(at) == CENOTE_OK);
    } else if (pick(m, 2)) {
        MUST(cenote_free(at) == CENOTE_OK);
    } else {
        MUST(cenote_free_sized(at, b->bytes + 1) == CENOTE_WRONG_SIZE);
        MUST(cenote_free_sized(at, b->bytes) == CENOTE_OK);
    }
    if (m->alone && pick(m, 4) == 0) {
        int again = cenote_free(at);
        MUST(again == CENOTE_DOUBLE_FREE || again == CENOTE_NOT_OURS || again == CENOTE_INTERIOR);
    }
}

static void order_streams(struct model *m, CUstream before, CUstream after)
{
    CUevent event = NULL;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    MUST(cuEventRecord(event, before) == CUDA_SUCCESS);
    MUST(cuStreamWaitEvent(after, event, 0) == CUDA_SUCCESS);
    MUST(cuEventDestroy(event) == CUDA_SUCCESS);
}

static struct model_block *any_block(struct model *m)
{
    struct model_block *b = &m->block[pick(m, MODEL_BLOCKS)];
    return b->at ? b : NULL;
}

/* The block grows where it is, if it can. Nothing else may read it, for what is in it changes: the end of its contents is another. */
static void extend(struct model *m)
{
    struct model_block *b = any_block(m);
    size_t more = pick(m, 4) ? pick(m, 2 * MIB) + 1 : pick(m, 4 * KIB) + 1;
    if (!b || b->read)
        return;
    launch(m, sim_launch_expect, b, m->stream[b->stream]);
    int error = cenote_extend(b->at, b->bytes + more);
    m->refused += error == CENOTE_OUT_OF_MEMORY || error == CENOTE_BUSY;
    if (error == CENOTE_OUT_OF_MEMORY || error == CENOTE_BUSY || !ASKED(error))
        return;
    b->bytes += more;
    b->pattern = m->random | 1;
    m->requested += more;
    m->extensions++;
    check_apart(m, b);
    launch(m, sim_launch_fill, b, m->stream[b->stream]);
}

/* Another stream reads a block, late. */
static void use(struct model *m)
{
    struct model_block *b = any_block(m);
    CUstream reader = m->stream[pick(m, MODEL_STREAMS)];
    if (!b)
        return;
    if (m->stalled && pick(m, 8) == 0) {
        ASKED(cenote_use(b->at, m->stalled));
        return;
    }
    if (!ASKED(cenote_use(b->at, reader)))
        return;
    b->read = true;
    order_streams(m, m->stream[b->stream], reader);
    MUST(sim_launch_wait(reader, pick(m, MSEC)) == CUDA_SUCCESS);
    launch(m, sim_launch_expect, b, reader);
}

/* Its last use is on another stream, and the free names that one. Where it fails the block lives, and its own stream is behind the other. */
static void give_on(struct model *m)
{
    struct model_block *b = any_block(m);
    CUstream reader = m->stream[pick(m, MODEL_STREAMS)];
    if (!b)
        return;
    order_streams(m, m->stream[b->stream], reader);
    MUST(sim_launch_wait(reader, pick(m, MSEC)) == CUDA_SUCCESS);
    launch(m, sim_launch_expect, b, reader);
    if (!ASKED(cenote_free_on(b->at, reader))) {
        order_streams(m, reader, m->stream[b->stream]);
        return;
    }
    b->at = NULL;
    m->requested -= b->bytes;
}

static void find(struct model *m)
{
    struct model_block *b = any_block(m);
    cenote_block found;
    if (!b)
        return;
    MUST(cenote_find(b->at + pick(m, b->bytes), &found) == CENOTE_OK);
    MUST(found.start == b->at && found.requested == b->bytes && found.pool == m->pool);
}

/* --- streams, pins, graphs */

/* A stream goes, with its work under way and its blocks just freed, and its handle comes back as another stream. Not the one of replays. */
static void renew_stream(struct model *m)
{
    int first = m->shared ? m->shared : 1;
    int gone = first + (int)pick(m, (uint64_t)(MODEL_STREAMS - first));
    for (int i = 0; i < MODEL_BLOCKS; i++)
        if (m->block[i].at && m->block[i].stream == gone)
            give(m, &m->block[i]);
    if (pick(m, 2) || m->tells)
        ASKED(cenote_stream_retire(m->pool, m->stream[gone]));
    MUST(cuStreamDestroy(m->stream[gone]) == CUDA_SUCCESS);
    MUST(cuStreamCreate(&m->stream[gone], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
}

static void pin_or_unpin(struct model *m)
{
    struct model_pin *pin = &m->pin[pick(m, 4)];
    struct model_block *b = any_block(m);
    if (pin->at) {
        MUST(cenote_unpin(pin->at, pin->bytes) == CENOTE_OK);
        pin->at = NULL;
    } else if (b) {
        *pin = (struct model_pin){b->at, b->bytes};
        MUST(cenote_pin(pin->at, pin->bytes) == CENOTE_OK);
    }
}

/* A graph that fills and compares temporaries; all replays run on one stream, as graphs that share a pool must. */
static void capture(struct model *m, CUgraphExec *exec)
{
    CUgraph graph = NULL;
    CUstream stream = m->stream[0];
    if (!ASKED(cenote_capture_begin(m->pool, m->group[GROUP_GRAPHS], stream)))
        return;
    m->capturing = true;
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    for (int i = 0; i < 4; i++) {
        void *at = NULL;
        struct model_block b = {.bytes = pick_size(m), .pattern = m->random | 1};
        if (cenote_alloc(m->pool, b.bytes, stream, &at))
            continue;
        b.at = at;
        launch(m, sim_launch_fill, &b, stream);
        MUST(sim_launch_wait(stream, pick(m, MSEC)) == CUDA_SUCCESS);
        launch(m, sim_launch_expect, &b, stream);
        MUST(cenote_free(at) == CENOTE_OK);
    }
    m->capturing = false;
    MUST(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    if (!m->lost)
        fault_disarm();
    MUST(cenote_capture_end(m->pool, m->group[GROUP_GRAPHS], stream) == CENOTE_OK);
    MUST(cuGraphInstantiate(exec, graph, 0) == CUDA_SUCCESS);
    MUST(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

/* One that takes no memory: a thread that asks for some there gets none. */
static void capture_without_memory(struct model *m)
{
    CUgraph graph = NULL;
    CUstream stream = m->stream[0];
    void *at = NULL;
    if (!ASKED(cenote_capture_begin(m->pool, NULL, stream)))
        return;
    m->capturing = true;
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    int error = cenote_alloc(m->pool, pick_size(m), stream, &at);
    MUST(error == CENOTE_CAPTURE || (m->faults && error));
    MUST(sim_launch_wait(stream, pick(m, MSEC)) == CUDA_SUCCESS);
    m->capturing = false;
    MUST(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    if (!m->lost)
        fault_disarm();
    MUST(cenote_capture_end(m->pool, NULL, stream) == CENOTE_OK);
    MUST(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

static void capture_or_replay(struct model *m)
{
    CUgraphExec *exec = &m->graph[pick(m, MODEL_GRAPHS)];
    if (!*exec) {
        capture(m, exec);
    } else if (pick(m, 8)) {
        MUST(cuGraphLaunch(*exec, m->stream[0]) == CUDA_SUCCESS);
    } else {
        MUST(cuGraphExecDestroy(*exec) == CUDA_SUCCESS);
        *exec = NULL;
    }
}

/* --- the rest of the interface */

static void give_back(struct model *m)
{
    uint64_t keep = pick(m, m->capacity);
    unsigned flags = pick(m, 4) || m->stalled ? 0 : CENOTE_TRIM_WAIT;
    ASKED(cenote_pool_trim(m->pool, keep, flags));
}

/* Little, where nothing may be waited for: there has to be memory for all of it. */
static void reserve(struct model *m)
{
    uint64_t most = m->stalled ? 4 * MIB : m->capacity / 8;
    int error = cenote_pool_reserve(m->pool, pick(m, most), m->stream[pick(m, MODEL_STREAMS)]);
    m->refused += error == CENOTE_OUT_OF_MEMORY;
    if (error != CENOTE_OUT_OF_MEMORY)
        ASKED(error);
}

static void give_back_a_group(struct model *m)
{
    unsigned flags = pick(m, 4) || m->stalled ? 0 : CENOTE_TRIM_WAIT;
    ASKED(cenote_group_trim(m->group[pick(m, MODEL_GROUPS)], flags));
}

static void change_limit(struct model *m)
{
    uint64_t limit = pick(m, 3) ? 0 : m->capacity / 2 + pick(m, m->capacity / 2);
    ASKED(cenote_pool_set_limit(m->pool, limit));
}

static void check_books(struct model *m)
{
    cenote_stats s;
    MUST(cenote_pool_stats(m->pool, &s) == CENOTE_OK);
    MUST(s.reserved.current == s.allocated.current + s.cached.current);
    MUST(s.requested.current <= s.allocated.current);
    MUST(s.allocated.current <= s.active.current);
    MUST(s.active.current <= s.reserved.current);
    if (m->alone)
        MUST(s.requested.current == m->requested);
    MUST(cenote_pool_check(m->pool) == CENOTE_OK);
}

/*
 * One of the driver's next calls fails, or all from there on until the next such order. Not ready is an answer as well: for ever it would be a
 * device that never comes to an end, and an allocation that is short of memory waits for it.
 */
static void order_fault(struct model *m)
{
    static const CUresult errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_READY};
    CUresult error = errors[pick(m, sizeof errors / sizeof errors[0])];
    const char *name = pick(m, 2) ? NULL : driver_call_name((enum driver_call)pick(m, DRIVER_CALLS));
    if (pick(m, 4) == 0)
        fault_disarm();
    else
        fault_arm(name, 1 + pick(m, 20), error, pick(m, 4) == 0 && error != CUDA_ERROR_NOT_READY);
}

static void operate(struct model *m)
{
    if (m->faults && !m->lost && pick(m, 50) == 0)
        order_fault(m);
    uint64_t kind = pick(m, 1000);
    if (kind < 750) {
        struct model_block *b = &m->block[pick(m, MODEL_BLOCKS)];
        b->at ? give(m, b) : take(m, b);
    } else if (kind < 840) {
        use(m);
    } else if (kind < 850) {
        give_on(m);
    } else if (kind < 870) {
        extend(m);
    } else if (kind < 900) {
        MUST(sim_launch_wait(m->stream[pick(m, MODEL_STREAMS)], pick(m, 2 * MSEC)) == CUDA_SUCCESS);
    } else if (kind < 940) {
        sim_advance(pick(m, MSEC));
    } else if (kind < 950) {
        find(m);
    } else if (kind < 952) {
        reserve(m);
    } else if (kind < 957) {
        give_back(m);
    } else if (kind < 960) {
        give_back_a_group(m);
    } else if (kind < 970) {
        ASKED(cenote_pool_step(m->pool));
    } else if (kind < 975) {
        check_books(m);
    } else if (kind < 978) {
        change_limit(m);
    } else if (kind < 981) {
        renew_stream(m);
    } else if (kind < 986 && m->moves) {
        pin_or_unpin(m);
    } else if (kind < 995 && m->moves && m->alone) {
        capture_or_replay(m);
    } else if (kind < 996 && m->moves && m->alone) {
        capture_without_memory(m);
    }
}

/* --- from the outside */

void model_open(struct model *m, cenote_pool *pool, uint64_t seed)
{
    cenote_stats s;
    memset(m, 0, sizeof *m);
    m->pool = pool;
    m->random = seed * 0x9e3779b97f4a7c15u + 1;
    MUST(cenote_pool_stats(pool, &s) == CENOTE_OK);
    m->capacity = s.capacity;
    for (int i = 0; i < MODEL_STREAMS; i++)
        MUST(cuStreamCreate(&m->stream[i], CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    for (int i = 0; i < MODEL_GROUPS; i++)
        MUST(cenote_group_create(pool, "model", i == GROUP_OPEN ? 0 : CENOTE_GROUP_PRIVATE, NULL, &m->group[i]) == CENOTE_OK);
}

void model_share_streams(struct model *m, const CUstream *streams, int count)
{
    m->shared = count;
    for (int i = 0; i < count; i++) {
        MUST(cuStreamDestroy(m->stream[i]) == CUDA_SUCCESS);
        m->stream[i] = streams[i];
    }
}

static void give_to_driver(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    struct model *m = arg;
    (void)bytes, (void)stream;
    MUST(cenote_pool_check(m->pool) == CENOTE_OK); /* functions of a source may call cenote */
    MUST(cuMemFree(device_address(memory)) == CUDA_SUCCESS);
}

void model_use_source(struct model *m)
{
    const cenote_source source = {take_source, give_to_driver, m};
    MUST(cenote_group_destroy(m->group[GROUP_OPEN]) == CENOTE_OK);
    MUST(cenote_group_create(m->pool, "source", 0, &source, &m->group[GROUP_OPEN]) == CENOTE_OK);
}

bool model_gives_up_a_block(struct model *m)
{
    struct model_block *b = m->capturing ? NULL : any_block(m); /* its last look at its contents must not become part of a graph */
    if (b)
        give(m, b);
    return b != NULL;
}

/* Stops at the first failure: what comes after it says nothing. */
void model_run(struct model *m, int operations)
{
    for (int i = 0; i < operations && !m->failures; i++)
        operate(m);
}

/* What can be done when the context is lost. */
void model_let_go(struct model *m)
{
    for (int i = 0; i < MODEL_BLOCKS; i++)
        if (m->block[i].at)
            MUST(cenote_free(m->block[i].at) == CENOTE_OK);
    for (int i = 0; i < 4; i++)
        if (m->pin[i].at)
            MUST(cenote_unpin(m->pin[i].at, m->pin[i].bytes) == CENOTE_OK);
    for (int i = 0; i < MODEL_GROUPS; i++)
        MUST(cenote_group_destroy(m->group[i]) == CENOTE_OK);
}

bool model_clear_shelf(struct model_shelf *shelf)
{
    bool cleared = true;
    for (int i = 0; i < 64; i++)
        cleared &= cenote_free(atomic_exchange(&shelf->at[i], NULL)) == CENOTE_OK;
    return cleared;
}

void model_close(struct model *m)
{
    m->shelf = NULL;
    for (int i = 0; i < MODEL_BLOCKS; i++)
        if (m->block[i].at)
            give(m, &m->block[i]);
    for (int i = 0; i < 4; i++)
        if (m->pin[i].at)
            MUST(cenote_unpin(m->pin[i].at, m->pin[i].bytes) == CENOTE_OK);
    for (int i = 0; i < MODEL_GRAPHS; i++)
        if (m->graph[i])
            MUST(cuGraphExecDestroy(m->graph[i]) == CUDA_SUCCESS);
    for (int i = 0; i < MODEL_GROUPS; i++)
        MUST(cenote_group_destroy(m->group[i]) == CENOTE_OK);
    for (int i = m->shared; i < MODEL_STREAMS; i++) {
        if (m->tells)
            MUST(cenote_stream_retire(m->pool, m->stream[i]) == CENOTE_OK);
        MUST(cuStreamDestroy(m->stream[i]) == CUDA_SUCCESS);
    }
}
