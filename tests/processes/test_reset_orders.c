/*
 * test_reset_orders.c: random programs on two devices that are reset at any moment, in any order, with pools that end before the reset, after it, or
 * just before the next pool of the device opens. In between the programs do what a reset has to leave whole: blocks of the other device, blocks
 * that the other device's kernels read by a grant or that streams there use, and captures. Contents and the books of the simulated driver judge.
 *
 * Blocks of a context that has ended are freed or left to the end of their pool. Those in segments are all left: the driver gives their addresses
 * again, to whichever device.
 *
 * A seed makes a program, in a process of its own, on one thread. What resets do to the calls of other threads: test_reset.c.
 */
#include "tests/processes/process.h"
#include "tests/rounds.h"

#define HELD  6
#define GONE  2     /* pools of contexts that have ended, which the program has not destroyed yet */
#define STEPS 120
#define SEEDS 12

static const unsigned providers[] = {CENOTE_VMM, CENOTE_PLAIN, CENOTE_ASYNC};

static struct side {
    CUcontext    context;
    CUstream     stream;
    cenote_pool *pool;          /* NULL: none */
    bool         is_granted;    /* to the other side's context */
    struct held  held[HELD];    /* of `pool` */
    cenote_pool *gone[GONE];
    bool         has_lost[GONE]; /* live blocks */
    void        *left[GONE];    /* one of them, which can be freed */
} sides[2];

static uint64_t random_state;
static unsigned provider;

static uint64_t draw(uint64_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % below;
}

static void enter(int d)
{
    DONE(cuCtxSetCurrent(sides[d].context));
}

static void begin(int d)
{
    DONE(cuDevicePrimaryCtxRetain(&sides[d].context, d));
    enter(d);
    DONE(cuStreamCreate(&sides[d].stream, CU_STREAM_NON_BLOCKING));
}

static void destroy_gone(int d, int i)
{
    struct side *s = &sides[d];
    if (!s->gone[i])
        return;
    if (s->has_lost[i] && draw(2)) {
        void *more = NULL;
        EXPECT_EQ(cenote_alloc(s->gone[i], 90 * MIB, NULL, &more), CENOTE_DEVICE_LOST);
    }
    if (s->left[i] && draw(2))
        DONE(cenote_free(s->left[i]));
    DONE(cenote_pool_destroy(s->gone[i]));
    s->gone[i] = s->left[i] = NULL;
    s->has_lost[i] = false;
}

/* Those of earlier contexts have to go before. */
static void make_pool(int d)
{
    cenote_options options = scene_options();
    options.provider = provider;
    for (int i = 0; i < GONE; i++)
        destroy_gone(d, i);
    if (!sides[d].pool)
        DONE(cenote_pool_create(d, &options, &sides[d].pool));
}

static void take(int d, int i)
{
    struct side *s = &sides[d];
    enter(d);
    make_pool(d);
    if (!s->held[i].at)
        EXPECT(held_take(&s->held[i], s->pool, 512 + draw(5 * MIB), s->stream));
}

static void give(int d, int i)
{
    struct held *held = &sides[d].held[i];
    enter(d);
    if (held->at)
        held_give(held);
    held->at = NULL;
}

/* The other device's kernels read a block, late; by a grant alone the free has to come after them in the order of the block's stream. */
static void read_from(int d, int i, bool is_told)
{
    struct side *s = &sides[d], *far = &sides[1 - d];
    struct held *held = &s->held[i];
    if (!held->at)
        return;
    make_pool(1 - d);
    if (!s->is_granted)
        DONE(cenote_pool_grant(s->pool, 1 - d));
    s->is_granted = true;
    enter(d);
    DONE(cuStreamSynchronize(s->stream));
    enter(1 - d);
    held_linger(held, far->stream);
    if (is_told)
        DONE(cenote_use_on_device(held->at, 1 - d, far->stream));
    else
        DONE(cuStreamSynchronize(far->stream));
}

/* Of one side, while blocks of both come and go. */
static void capture(int d)
{
    CUgraph graph = NULL;
    enter(d);
    make_pool(d);
    DONE(cenote_capture_begin(sides[d].pool, NULL, sides[d].stream));
    DONE(cuStreamBeginCapture(sides[d].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    if (sides[1 - d].pool)
        take(1 - d, (int)draw(HELD));
    give(1 - d, (int)draw(HELD));
    enter(d);
    DONE(cuStreamEndCapture(sides[d].stream, &graph));
    DONE(cenote_capture_end(sides[d].pool, NULL, sides[d].stream));
    EXPECT(graph);
    DONE(cuGraphDestroy(graph));
}

static void forget_pool(struct side *s)
{
    for (int i = 0; i < HELD; i++)
        s->held[i].at = NULL;
    s->pool = NULL;
    s->is_granted = false;
}

static void end_pool(int d)
{
    struct side *s = &sides[d];
    for (int i = 0; i < HELD; i++)
        DONE(cenote_free(s->held[i].at));
    if (s->pool)
        DONE(cenote_pool_destroy(s->pool));
    forget_pool(s);
}

/* The context has ended. The pool goes at once, or later. */
static void end_pool_that_is_lost(int d, bool waits)
{
    struct side *s = &sides[d];
    int slot = (int)draw(GONE);
    bool frees = provider == CENOTE_VMM;
    if (!s->pool)
        return;
    destroy_gone(d, slot);
    for (int i = 0; i < HELD; i++) {
        s->has_lost[slot] |= s->held[i].at != NULL;
        if (frees && s->held[i].at && !s->left[slot])
            s->left[slot] = s->held[i].at;
        else if (frees && draw(2))
            DONE(cenote_free(s->held[i].at));
    }
    s->gone[slot] = s->pool;
    forget_pool(s);
    if (!waits)
        destroy_gone(d, slot);
}

/* The program lets the device finish, as CUDA asks for. */
static void reset(int d)
{
    uint64_t when = draw(3);
    for (int i = 0; i < 2; i++) {
        enter(i);
        DONE(cuCtxSynchronize());
    }
    if (when == 0)
        end_pool(d);
    DONE(cuDevicePrimaryCtxReset(d));
    if (when == 1)
        end_pool_that_is_lost(d, false);
    begin(d);
    end_pool_that_is_lost(d, true);
    sides[1 - d].is_granted = false;
}

static void step(void)
{
    int d = (int)draw(2), i = (int)draw(HELD);
    switch (draw(12)) {
    case 0: reset(d); break;
    case 1: reset(d), reset(1 - d); break;
    case 2: capture(d); break;
    case 3: destroy_gone(d, i % GONE); break;
    case 4: read_from(d, i, false); break;
    case 5: case 6: read_from(d, i, true); break;
    case 7: case 8: give(d, i); break;
    default: take(d, i); break;
    }
}

/* Whatever was reset, all of it is given back. */
static void close_all(void)
{
    struct sim_books books;
    for (int d = 0; d < 2; d++) {
        enter(d);
        DONE(cuCtxSynchronize());
        if (sides[d].pool)
            DONE(cenote_pool_check(sides[d].pool));
        for (int i = 0; i < HELD; i++)
            give(d, i);
        for (int i = 0; i < GONE; i++)
            destroy_gone(d, i);
    }
    for (int d = 0; d < 2; d++)
        if (sides[d].pool)
            DONE(cenote_pool_destroy(sides[d].pool));
    sim_books(&books);
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT_EQ(books.violations, 0);
    EXPECT_TEXT_EQ(sim_last_violation(), "");
    EXPECT_EQ(books.used + books.reserved + books.handles + books.mappings + books.reservations + books.allocations + books.pools + books.events, 0);
}

static void program(void)
{
    struct sim_shape shape = scene_card(CARD);
    scene_is_open = true;
    shape.devices = 2;
    sim_reset(&shape);
    sim_set_lag(MSEC);
    DONE(cuInit(0));
    begin(0);
    begin(1);
    for (int i = 0; i < STEPS; i++)
        step();
    close_all();
    scene_is_open = false;
}

CASE(programs_with_resets)
{
    for (unsigned p = 0; p < sizeof providers / sizeof providers[0]; p++)
        for (int seed = 0; seed < rounds(SEEDS); seed++) {
            provider = providers[p];
            random_state = (uint64_t)seed * 3 + p;
            int status = status_of(program);
            if (status)
                fprintf(stderr, "provider %u, seed %d\n", provider, seed);
            EXPECT_EQ(status, 0);
        }
}

PROCESSES_MAIN("orders of resets")
