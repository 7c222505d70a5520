/*
 * test_looks.c: long looks at a pool, while other threads allocate and free. Each pauses for those that wait for the pool's lock, and tells the truth
 * all the same: of blocks that live all the time, and of no block twice. Not: how long a thread waits (bench/scale).
 */
#include <pthread.h>
#include <unistd.h>

#include "pool/pool.h"
#include "stats/records/records.h"
#include "tests/api/scene.h"
#include "tests/patience.h"

#define STANDING 6000               /* more than a portion of anything */
#define HAMMERS  3
#define ROOM     20000
#define LOOKS    20
#define PAUSES   20                 /* looks with a pause in them */
#define ENDS     600                /* groups that end while they are looked at */
#define SIZE(i)  (600 + (size_t)(i) * 3)    /* of a standing block: below that and from SIZE(STANDING) on are those that come and go */

struct hammer {
    pthread_t    thread;
    struct crowd *crowd;
    CUstream     stream;
    uint64_t     random;
    _Atomic uint64_t calls;     /* that have taken the pool's lock */
    unsigned     failures;
};

static struct crowd {
    struct scene scene;
    cenote_group *group;
    void *standing[STANDING];
    bool  is_gone[STANDING];
    struct hammer hammer[HAMMERS];
    _Atomic bool over;
} crowd;

static cenote_piece pieces[ROOM];
static cenote_row rows[64];
static char path[200];

static void *hammer(void *arg)
{
    struct hammer *h = arg;
    void *block[40] = {NULL};
    h->failures += cuCtxPushCurrent(h->crowd->scene.context) != 0;
    for (uint64_t i = 0; !atomic_load(&h->crowd->over); i++) {
        void **b = &block[i * 7 % 40];
        h->random = h->random * 6364136223846793005u + 1442695040888963407u;
        size_t bytes = i % 3 ? 1 + (h->random >> 40) % 500 : SIZE(STANDING) + (h->random >> 40) % (3 * MIB);
        h->failures += cenote_free(*b) != 0;
        h->failures += (i % 4 ? cenote_alloc(h->crowd->scene.pool, bytes, h->stream, b) :
                                group_alloc(h->crowd->group, bytes, 512, h->stream, b)) != 0;
        h->failures += i % 500 == 0 && cenote_pool_trim(h->crowd->scene.pool, 0, 0);
        h->calls += 2;
    }
    for (int i = 0; i < 40; i++)
        h->failures += cenote_free(block[i]) != 0;
    h->failures += cuCtxPopCurrent(NULL) != 0;
    return NULL;
}

static void open_crowd(void)
{
    struct sim_shape shape = scene_card(2 * GIB);
    cenote_options options = scene_options();
    shape.manual_clock = false;
    scene_open_with(&crowd.scene, &shape, &options);
    DONE(cenote_group_create(crowd.scene.pool, "group", 0, NULL, &crowd.group));
    for (int i = 0; i < STANDING; i++) {
        DONE(i % 2 ? cenote_alloc(crowd.scene.pool, SIZE(i), crowd.scene.stream[i % 3], &crowd.standing[i]) :
                     group_alloc(crowd.group, SIZE(i), 512, crowd.scene.stream[i % 3], &crowd.standing[i]));
        crowd.is_gone[i] = false;
    }
}

static void begin(void)
{
    atomic_store(&crowd.over, false);
    for (int i = 0; i < HAMMERS; i++) {
        crowd.hammer[i] = (struct hammer){.crowd = &crowd, .stream = crowd.scene.stream[i], .random = (uint64_t)i};
        DONE(pthread_create(&crowd.hammer[i].thread, NULL, hammer, &crowd.hammer[i]));
    }
}

static void end(void)
{
    atomic_store(&crowd.over, true);
    for (int i = 0; i < HAMMERS; i++) {
        DONE(pthread_join(crowd.hammer[i].thread, NULL));
        EXPECT_EQ(crowd.hammer[i].failures, 0);
    }
}

static void close_crowd(void)
{
    for (int i = 0; i < STANDING; i++)
        DONE(crowd.is_gone[i] ? 0 : cenote_free(crowd.standing[i]));
    DONE(cenote_group_destroy(crowd.group));
    scene_close(&crowd.scene);
}

/* Pieces tile their segments, and each standing block of the group, or of all, is there once. */
static void expect_standing(cenote_group *group)
{
    static unsigned char seen[STANDING];
    size_t count = 0;
    unsigned crooked = 0, wrong = 0, missing = 0;
    memset(seen, 0, sizeof seen);
    DONE(cenote_pool_pieces(crowd.scene.pool, group, pieces, ROOM, &count));
    REQUIRE(count <= ROOM);
    for (size_t i = 0; i < count; i++) {
        const cenote_piece *p = &pieces[i];
        bool begins = i == 0 || p->segment != pieces[i - 1].segment;
        crooked += p->address != (begins ? p->segment : pieces[i - 1].address + pieces[i - 1].size);
        if (p->state != CENOTE_PIECE_LIVE || p->requested < SIZE(0) || p->requested >= SIZE(STANDING))
            continue;
        size_t number = (p->requested - SIZE(0)) / 3;
        wrong += SIZE(number) != p->requested || p->address != (uintptr_t)crowd.standing[number] || seen[number]++;
    }
    for (int i = 0; i < STANDING; i += group ? 2 : 1)
        missing += !seen[i];
    EXPECT_EQ(crooked, 0);
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(missing, 0);
}

static uint64_t calls_of_hammers(void)
{
    uint64_t calls = 0;
    for (int i = 0; i < HAMMERS; i++)
        calls += crowd.hammer[i].calls;
    return calls;
}

/* Until some pictures have had a pause: a thread can end so many calls during a picture only if it has had the lock in between. */
CASE(pictures)
{
    struct wait wait = {clock_ns() + patience(5) * (uint64_t)1000000000};
    open_crowd();
    begin();
    for (int i = 0, pauses = 0; i < LOOKS || pauses < PAUSES; i++) {
        uint64_t before = calls_of_hammers();
        expect_standing(i % 2 ? crowd.group : NULL);
        pauses += calls_of_hammers() > before + 4 * HAMMERS;
        REQUIRE(wait_on(&wait));
    }
    end();
    expect_standing(NULL);
    close_crowd();
}

/* A check finds nothing broken, counters stay in their order, and what stands is counted. */
CASE(checks_and_sums)
{
    size_t count;
    uint64_t bytes, least = 0;
    char text[16384];
    open_crowd();
    for (int i = 0; i < STANDING; i += 2)
        least += SIZE(i);
    begin();
    for (int i = 0; i < LOOKS; i++) {
        DONE(cenote_pool_check(crowd.scene.pool));
        DONE(cenote_group_reserved(crowd.group, &bytes));
        EXPECT(bytes >= least);
        cenote_stats s = scene_stats(crowd.scene.pool);
        EXPECT(s.requested.current <= s.allocated.current && s.allocated.current <= s.active.current && s.active.current <= s.reserved.current);
        DONE(cenote_pool_rows(crowd.scene.pool, CENOTE_BY_GROUP, rows, 64, &count));
        REQUIRE_EQ(count, 1);
        EXPECT(rows[0].allocated.current >= least && rows[0].reserved >= least);
        DONE(cenote_pool_reset_peaks(crowd.scene.pool));
        cenote_pool_explain(crowd.scene.pool, 1 << 30, text, sizeof text);
    }
    end();
    close_crowd();
}

static bool is_of_one_moment(void)
{
    char start[400] = "";
    DONE(cenote_pool_snapshot(crowd.scene.pool, path));
    FILE *file = fopen(path, "rb");
    REQUIRE(file != NULL);
    start[fread(start, 1, sizeof start - 1, file)] = 0;
    fclose(file);
    EXPECT(strstr(start, "\"one_moment\":") != NULL);
    return strstr(start, "\"one_moment\":true") != NULL;
}

/* Sooner or later another thread wants the lock: then it has it, and the snapshot says so. */
CASE(snapshots_let_others_go_on)
{
    struct wait wait = {clock_ns() + patience(5) * (uint64_t)1000000000};
    open_crowd();
    EXPECT(is_of_one_moment());
    begin();
    bool others_went_on = false;
    while (!others_went_on && wait_on(&wait))
        others_went_on = !is_of_one_moment();
    EXPECT(others_went_on);
    end();
    EXPECT(is_of_one_moment());
    close_crowd();
}

/* How many standing blocks are live where the trace ends, and of how many in all. */
static unsigned standing_in_trace(unsigned *records)
{
    struct records_reader *reader = records_open(path);
    struct record r;
    enum records_result got;
    int standing = 0;
    REQUIRE(reader != NULL);
    for (*records = 0; (got = records_next(reader, &r)) == RECORDS_ONE; ++*records)
        if (r.bytes >= SIZE(0) && r.bytes < SIZE(STANDING))
            standing += r.op == RECORD_ALLOC ? 1 : r.op == RECORD_FREE ? -1 : 0;
    EXPECT_EQ(got, RECORDS_END);
    EXPECT_TEXT_EQ(records_message(reader), "");
    records_close(reader);
    return (unsigned)standing;
}

/* A ring that was begun late and loses what it has: each trace begins with what stood, whether that is freed later or not. */
CASE(traces)
{
    unsigned records, left = STANDING;
    open_crowd();
    DONE(cenote_pool_record(crowd.scene.pool, 2000));
    begin();
    for (int i = 0; i < LOOKS; i++) {
        DONE(cenote_pool_record_save(crowd.scene.pool, path));
        EXPECT_EQ(standing_in_trace(&records), left);
        EXPECT(records >= left); /* the others may not have begun */
        for (int k = 0; k < 10; k++, left--) {
            DONE(cenote_free(crowd.standing[i * 100 + k]));
            crowd.is_gone[i * 100 + k] = true;
        }
    }
    end();
    DONE(cenote_pool_record_save(crowd.scene.pool, path));
    EXPECT_EQ(standing_in_trace(&records), left);
    close_crowd();
}

/* There is room for more records than are kept, and that is used up, too. */
CASE(a_ring_that_went_round)
{
    enum { KEPT = 100, STEPS = (1 << 16) + 20 };
    struct records_reader *reader;
    struct record r;
    unsigned allocs = 0, steps = 0;
    enum record_op newest = RECORD_FREE;
    void *block[3];
    scene_open(&crowd.scene, 64 * MIB);
    DONE(cenote_alloc(crowd.scene.pool, MIB, crowd.scene.stream[A], &block[0]));
    DONE(cenote_pool_record(crowd.scene.pool, KEPT));
    DONE(cenote_alloc(crowd.scene.pool, MIB, crowd.scene.stream[A], &block[1]));
    for (int i = 0; i < STEPS; i++)
        DONE(cenote_pool_step(crowd.scene.pool));
    DONE(cenote_alloc(crowd.scene.pool, MIB, crowd.scene.stream[A], &block[2]));
    DONE(cenote_pool_record_save(crowd.scene.pool, path));
    reader = records_open(path);
    REQUIRE(reader != NULL);
    while (records_next(reader, &r) == RECORDS_ONE) {
        allocs += r.op == RECORD_ALLOC;
        steps += r.op == RECORD_STEP;
        newest = r.op;
    }
    EXPECT_TEXT_EQ(records_message(reader), "");
    EXPECT_EQ(newest, RECORD_ALLOC); /* oldest first: the last block is the last record */
    EXPECT_EQ(steps, KEPT - 1);
    EXPECT_EQ(allocs, 3);
    records_close(reader);
    for (int i = 0; i < 3; i++)
        DONE(cenote_free(block[i]));
    scene_close(&crowd.scene);
}

/*
 * A group of many arenas, half of them with blocks that another thread frees meanwhile, is destroyed: nothing of it is left. Both threads wait for
 * the pool's lock before either has it, so that the first pause comes for certain. The newest arena ends first, and its blocks are freed last:
 * what is freed in a pause is of an arena that has not ended.
 */
enum { ARENAS = 1200 };
static void *block_of_arena[ARENAS];

struct worker {
    pthread_t     thread;
    cenote_group *group;        /* to destroy; NULL: it frees the blocks */
    _Atomic int   id;
    unsigned      failures;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    atomic_store(&w->id, gettid());
    if (w->group)
        w->failures += cenote_group_destroy(w->group) != 0;
    for (int i = 0; i < ARENAS && !w->group; i++)
        w->failures += cenote_free(block_of_arena[i]) != 0;
    return NULL;
}

/* It waits for the pool's lock, which the caller has. */
static void begin_work(struct worker *w)
{
    struct wait wait = {0};
    DONE(pthread_create(&w->thread, NULL, work, w));
    while (!atomic_load(&w->id) && wait_on(&wait))
        ;
    EXPECT(wait_until_asleep(atomic_load(&w->id)));
}

static void end_work(struct worker *w)
{
    DONE(pthread_join(w->thread, NULL));
    EXPECT_EQ(w->failures, 0);
}

static void destroy_while_freed(unsigned flags)
{
    static CUstream streams[ARENAS];
    struct scene *s = &crowd.scene;
    struct worker destroyer = {0}, freer = {0};
    cenote_group *next;
    struct sim_shape shape = scene_card(8 * GIB);
    cenote_options options = scene_options();
    scene_open_with(s, &shape, &options);
    DONE(cenote_group_create(s->pool, "group", flags, NULL, &destroyer.group));
    for (int i = 0; i < ARENAS; i++) {
        DONE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        DONE(group_alloc(destroyer.group, 4 * KIB, 512, streams[i], &block_of_arena[i]));
        if (i % 2) {
            DONE(cenote_free(block_of_arena[i]));
            block_of_arena[i] = NULL;
        }
    }
    lock_take(&s->pool->lock);
    begin_work(&destroyer); /* the first to wait is the first to have it */
    begin_work(&freer);
    lock_give(&s->pool->lock);
    end_work(&destroyer);
    DONE(cenote_group_create(s->pool, "next", flags, NULL, &next));
    end_work(&freer);
    DONE(cenote_group_destroy(next));
    DONE(cenote_pool_check(s->pool));
    DONE(cenote_pool_trim(s->pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(s->pool).reserved.current, 0);
    EXPECT_EQ(scene_stats(s->pool).arenas, 0);
    for (int i = 0; i < ARENAS; i++)
        DONE(cuStreamDestroy(streams[i]));
    scene_close(s);
}

CASE(a_group_of_many_arenas_ends)
{
    destroy_while_freed(0);
    destroy_while_freed(CENOTE_GROUP_PRIVATE);
}

/* ------------------------------------------------------------------------------------------------- a group that ends while it is looked at */

struct last {
    void     *block;
    pthread_t thread;
};

static void *free_last(void *arg)
{
    struct last *last = arg;
    return cenote_free(last->block) ? last : NULL;
}

/* Has the pool's lock most of the time. */
static void *draw_all(void *arg)
{
    struct crowd *c = arg;
    size_t count;
    unsigned failures = 0;
    while (!atomic_load(&c->over))
        failures += cenote_pool_pieces(c->scene.pool, NULL, NULL, 0, &count) != 0;
    return failures ? arg : NULL;
}

/*
 * It was destroyed, and another thread frees its last block. Both threads wait for the lock: what is drawn is of the group, or nothing, and nothing
 * of the blocks without a group.
 */
CASE(a_group_ends_while_it_is_drawn)
{
    pthread_t drawing;
    void *failed;
    unsigned others = 0;
    open_crowd();
    atomic_store(&crowd.over, false);
    DONE(pthread_create(&drawing, NULL, draw_all, &crowd));
    for (int i = 0; i < ENDS; i++) {
        struct last last;
        cenote_group *group;
        size_t count = 0;
        DONE(cenote_group_create(crowd.scene.pool, "ends", 0, NULL, &group));
        DONE(group_alloc(group, 3 * MIB, 512, crowd.scene.stream[A], &last.block));
        DONE(cenote_group_destroy(group));
        DONE(pthread_create(&last.thread, NULL, free_last, &last));
        int error = cenote_pool_pieces(crowd.scene.pool, group, pieces, ROOM, &count);
        EXPECT(error == CENOTE_INVALID || (!error && count));
        for (size_t p = 0; p < count && p < ROOM; p++)
            others += pieces[p].group != group;
        DONE(pthread_join(last.thread, &failed));
        EXPECT_EQ(failed, NULL);
    }
    atomic_store(&crowd.over, true);
    DONE(pthread_join(drawing, &failed));
    EXPECT_EQ(failed, NULL);
    EXPECT_EQ(others, 0);
    close_crowd();
}

static void remove_file(void)
{
    unlink(path);
    scene_after();
}

static void make_path(void)
{
    snprintf(path, sizeof path, "%s/cenote-looks-%d.csv", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
}

SUITE_MAIN_AROUND("looks", make_path, remove_file)
