/*
 * test_sleep_meanwhile.c: each call that a program can make, on another thread, while a pause or a resume waits for the device, or for one of its
 * first copies. What comes of it is judged by contents, by the books of the pool and by those of the card.
 */
#include <cenote/share.h>

#include "tests/api/copies.h"
#include "tests/api/sleeps.h"
#include "tests/rounds.h"

#define HELD 7

static struct {
    struct scene  scene;
    cenote_group *graph;        /* private */
    struct held   held[HELD];   /* the last two are of the group; `at` is NULL: freed */
    int           error;        /* of the call of the other thread */
    bool          is_captured;
} m;

static const size_t bytes_of[HELD] = {5 * MIB, 300, 700 * KIB, 3 * MIB, 100 * KIB, 4 * MIB, 40 * KIB};

static bool is_of_graph(int i) { return i >= HELD - 2; }

static void begin(void)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    memset(&m, 0, sizeof m);
    shape.lag = MSEC / 10;
    scene_open_with(&m.scene, &shape, &options);
    DONE(cenote_group_create(m.scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &m.graph));
    for (int i = 0; i < HELD; i++) {
        void *block = NULL;
        CUstream stream = m.scene.stream[i % 2];
        DONE(is_of_graph(i) ? group_alloc(m.graph, bytes_of[i], 512, stream, &block) :
                              cenote_alloc(m.scene.pool, bytes_of[i], stream, &block));
        m.held[i] = held_of(block, bytes_of[i], stream);
    }
}

static void end(void)
{
    if (m.is_captured)
        DONE(cenote_capture_end(m.scene.pool, NULL, m.scene.stream[C]));
    DONE(cenote_pool_set_limit(m.scene.pool, 0));
    DONE(cenote_pool_check(m.scene.pool));
    DONE(resume_of(m.scene.pool, NULL, NULL));
    DONE(cenote_pool_check(m.scene.pool));
    for (int i = 0; i < HELD; i++)
        if (m.held[i].at)
            held_give(&m.held[i]);
    if (m.graph)
        DONE(cenote_group_destroy(m.graph));
    scene_close(&m.scene);
}

/* ---------------------------------------------------------------------------------------------------- what the other thread does */

static void give(int from, int step)
{
    for (int i = from; i < HELD; i += step) {
        DONE(cenote_free(m.held[i].at)); /* no kernel touches it any more */
        m.held[i].at = NULL;
    }
}

static void frees_all(void) { give(0, 1); }
static void frees_some(void) { give(1, 2); }

static void ends_its_group(void)
{
    give(HELD - 2, 1);
    DONE(cenote_group_destroy(m.graph));
    m.graph = NULL;
}

static void ends_its_group_under_blocks(void)
{
    DONE(cenote_group_destroy(m.graph));
    m.graph = NULL;
}

static void ends_its_group_and_takes_another(void)
{
    void *block;
    ends_its_group();
    DONE(cenote_group_create(m.scene.pool, "next", CENOTE_GROUP_PRIVATE, NULL, &m.graph));
    DONE(group_alloc(m.graph, 4 * MIB, 512, m.scene.stream[A], &block));
    m.held[HELD - 1] = held_of(block, 4 * MIB, m.scene.stream[A]);
}

static void frees_and_takes(void)
{
    for (int i = 0; i < HELD; i += 2) {
        DONE(cenote_free(m.held[i].at));
        REQUIRE(held_take(&m.held[i], m.scene.pool, bytes_of[i], m.held[i].stream));
    }
}

static void takes_and_gives(void)
{
    for (int i = 0; i < 8; i++) {
        struct held held;
        REQUIRE(held_take(&held, m.scene.pool, bytes_of[i % HELD], m.scene.stream[i % SCENE_STREAMS]));
        held_give(&held);
    }
}

static void takes_nearly_all(void)
{
    struct held held;
    if (held_take(&held, m.scene.pool, 40 * MIB, m.scene.stream[C]))
        held_give(&held);
}

static void uses(void)
{
    for (int i = 0; i < HELD; i++)
        DONE(cenote_use(m.held[i].at, m.scene.stream[C]));
    give(0, 2);
}

static void trims(void) { DONE(cenote_pool_trim(m.scene.pool, 0, CENOTE_TRIM_WAIT)); }
static void trims_a_group(void) { DONE(cenote_group_trim(m.graph, 0)); }
static void limits(void) { DONE(cenote_pool_set_limit(m.scene.pool, 20 * MIB)); }

static void retires(void)
{
    DONE(cenote_stream_retire(m.scene.pool, m.scene.stream[B]));
    takes_and_gives();
}

static void retires_what_is_empty(void)
{
    give(0, 1);
    for (int i = 0; i < 2; i++)
        DONE(cenote_stream_retire(m.scene.pool, m.scene.stream[i]));
    takes_and_gives();
    trims();
}

static void looks(void)
{
    cenote_row rows[32];
    size_t count;
    DONE(cenote_pool_check(m.scene.pool));
    DONE(cenote_pool_rows(m.scene.pool, CENOTE_BY_ARENA, rows, 32, &count));
    DONE(cenote_pool_snapshot(m.scene.pool, "/dev/null"));
    EXPECT(cenote_pool_explain(m.scene.pool, 0, NULL, 0) > 0);
}

static void pins(void)
{
    for (int i = 0; i < HELD; i++)
        if (!cenote_pin(m.held[i].at, m.held[i].bytes))
            DONE(cenote_unpin(m.held[i].at, m.held[i].bytes));
}

static void exports(void)
{
    cenote_share share;
    for (int i = 0; i < HELD; i++)
        m.error = cenote_export(m.held[i].at, &share);
}

static void reads(void)
{
    static char bytes[5 * MIB];
    for (int i = 0; i < HELD; i++)
        m.error = cenote_block_read_asleep(m.held[i].at, bytes, m.held[i].bytes);
}

static void takes_the_address_again(void)
{
    char *at = m.held[3].at;
    give(3, HELD);
    m.error = alloc_at(m.scene.pool, NULL, at, 3 * MIB, m.scene.stream[B]);
    if (!m.error)
        m.held[3] = held_of(at, 3 * MIB, m.scene.stream[B]);
}

static void announces(void)
{
    DONE(cenote_capture_begin(m.scene.pool, NULL, m.scene.stream[C]));
    m.is_captured = true;
}

static void captures_for_a_moment(void)
{
    DONE(cenote_capture_begin(m.scene.pool, NULL, m.scene.stream[C]));
    frees_some();
    DONE(cenote_capture_end(m.scene.pool, NULL, m.scene.stream[C]));
}

static void ends_the_pool(void)
{
    EXPECT_EQ(cenote_pool_destroy(m.scene.pool), CENOTE_BUSY);
}

static void opens_another_pool(void)
{
    cenote_pool *other;
    struct held held;
    cenote_options options = scene_options();
    DONE(cenote_pool_create(0, &options, &other));
    if (held_take(&held, other, 30 * MIB, m.scene.stream[C]))
        held_give(&held);
    DONE(cenote_pool_destroy(other));
}

static void hears_of_no_captures(void)
{
    cenote_pool *other;
    cenote_options options = strict();
    DONE(cenote_pool_create(0, &options, &other));
    DONE(cenote_pool_destroy(other));
}

static void steps(void)
{
    for (int i = 0; i < 3; i++)
        DONE(cenote_pool_step(m.scene.pool));
    DONE(cenote_pool_trim(m.scene.pool, 0, CENOTE_TRIM_PERIODIC));
}

#define ACT(name) {#name, name}
static const struct { const char *name; void (*act)(void); } acts[] = {
    ACT(frees_all), ACT(frees_some), ACT(ends_its_group), ACT(ends_its_group_under_blocks), ACT(ends_its_group_and_takes_another),
    ACT(frees_and_takes), ACT(takes_and_gives), ACT(takes_nearly_all), ACT(uses), ACT(trims), ACT(trims_a_group), ACT(limits), ACT(retires),
    ACT(retires_what_is_empty), ACT(looks), ACT(pins), ACT(exports), ACT(reads), ACT(takes_the_address_again), ACT(announces),
    ACT(captures_for_a_moment), ACT(ends_the_pool), ACT(opens_another_pool), ACT(hears_of_no_captures), ACT(steps)};

static const char *current;

static void in_the_context(void)
{
    DONE(cuCtxSetCurrent(m.scene.context));
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (acts[i].name == current)
            acts[i].act();
}

/* The call may be refused for what happened: a capture is open then, or a limit is in the way. */
static void judge(int error, bool wakes)
{
    bool may = !error || (error == CENOTE_CAPTURE && m.is_captured) || (wakes && error == CENOTE_OUT_OF_MEMORY && !strcmp(current, "limits"));
    if (!may)
        fprintf(stderr, "\n%s beside a %s: %s\n", current, wakes ? "resume" : "pause", cenote_message());
    EXPECT(may);
}

static void beside(bool wakes, uint32_t contents)
{
    size_t ran = 0;
    int step = rounds(4) < 4 ? 3 : 1; /* with a sanitizer not beside every wait */
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        for (int skip = 0; skip < 6; skip += step) {
            begin();
            if (wakes)
                DONE(pause_of(m.scene.pool, NULL, contents, NULL));
            current = acts[i].name;
            at_the_next_copy(in_the_context);
            copies.at_any_wait = true;
            copies.skip = skip;
            judge(wakes ? resume_of(m.scene.pool, NULL, NULL) : pause_of(m.scene.pool, NULL, contents, NULL), wakes);
            ran += !copies.meanwhile;
            copies.meanwhile = NULL;
            copies.at_any_wait = false;
            copies.skip = 0;
            int before = (int)CU_get_number_of_failures();
            end();
            if (CU_get_number_of_failures() != (unsigned)before)
                fprintf(stderr, "\n%s beside a %s, wait %d\n", current, wakes ? "resume" : "pause", skip);
        }
    EXPECT(ran >= sizeof acts / sizeof *acts);
}

CASE(beside_a_pause) { beside(false, CENOTE_KEEP); }
CASE(beside_a_resume) { beside(true, CENOTE_KEEP); }
CASE(beside_a_pause_of_constants) { beside(false, CENOTE_CONSTANT); }
CASE(beside_a_resume_of_constants) { beside(true, CENOTE_CONSTANT); }

SCENES_MAIN("sleep_meanwhile")
