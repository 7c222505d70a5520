/*
 * test_rows.c: the allocated bytes of a pool divided by arena, group, size, tag, phase and kind, and what steps leave behind, against
 * what a program knows itself. Not: the text printed from them.
 */
#include "base/memory.h"
#include "tests/api/scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define CARD   (256 * MIB)
#define ROWS   200
#define BLOCKS 300

static void *take(struct scene *scene, size_t bytes, enum scene_stream stream)
{
    void *block = NULL;
    REQUIRE(!cenote_alloc(scene->pool, bytes, scene->stream[stream], &block));
    return block;
}

static cenote_row rows[ROWS];

static size_t read_rows(cenote_pool *pool, int division)
{
    size_t count = 0;
    DONE(cenote_pool_rows(pool, division, rows, ROWS, &count));
    REQUIRE(count <= ROWS);
    return count;
}

/* The row of that name, or one that never held anything. */
static cenote_row row_named(cenote_pool *pool, int division, const char *name)
{
    size_t count = read_rows(pool, division);
    for (size_t i = 0; i < count; i++)
        if (!strcmp(rows[i].name, name))
            return rows[i];
    return (cenote_row){0};
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 511) / 512 * 512;
}

/* Whatever a program does: the rows of each division add up, level by level. But for groups, outside which blocks may be. */
static void check_sums(cenote_pool *pool)
{
    for (int division = CENOTE_BY_ARENA; division <= CENOTE_BY_KIND; division++) {
        cenote_row sum = {0};
        size_t count = read_rows(pool, division);
        cenote_stats s = scene_stats(pool);
        for (size_t i = 0; i < count; i++) {
            const cenote_level *level = &rows[i].allocated;
            EXPECT(level->current <= level->peak && level->peak <= s.allocated.peak);
            EXPECT(rows[i].at_peak <= level->peak);
            EXPECT_EQ(level->total_in - level->total_out, level->current);
            sum.allocated.current += level->current;
            sum.allocated.total_in += level->total_in;
            sum.blocks += rows[i].blocks;
            sum.at_peak += rows[i].at_peak;
            sum.reserved += rows[i].reserved;
        }
        if (division == CENOTE_BY_GROUP)
            continue;
        EXPECT_EQ(sum.allocated.current, s.allocated.current);
        EXPECT_EQ(sum.blocks, s.blocks.current);
        if (division != CENOTE_BY_KIND) /* a block that changes its kind goes out of one and into the other */
            EXPECT_EQ(sum.allocated.total_in, s.allocated.total_in);
        else
            EXPECT(sum.allocated.total_in >= s.allocated.total_in);
        EXPECT_EQ(sum.at_peak, s.allocated.peak);
        if (division == CENOTE_BY_ARENA)
            EXPECT_EQ(sum.reserved, s.reserved.current);
    }
    DONE(cenote_pool_check(pool));
}

/* The first tag of the process: neither the table nor its first item gets memory. */
CASE(no_host_memory_for_tags)
{
    for (uint64_t nth = 1; nth <= 2; nth++) {
        memory_fail(nth, true);
        EXPECT_EQ(cenote_tag_push("first"), CENOTE_OUT_OF_HOST_MEMORY);
        EXPECT_EQ(memory_failed(), 1);
        memory_fail(0, false);
        EXPECT_EQ(cenote_tag_pop(), CENOTE_INVALID);
    }
    DONE(cenote_tag_push("first"));
    DONE(cenote_tag_pop());
}

CASE(without_labels_all_is_in_one_row)
{
    struct scene scene;
    scene_open(&scene, CARD);
    void *block = take(&scene, 3 * MIB, A);
    cenote_row none = row_named(scene.pool, CENOTE_BY_TAG, "");
    EXPECT_EQ(none.allocated.current, 3 * MIB);
    EXPECT_EQ(none.key, 0);
    EXPECT_EQ(read_rows(scene.pool, CENOTE_BY_TAG), 1);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_KIND, "other").allocated.peak, 3 * MIB);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_PHASE, "none").blocks, 1);
    EXPECT_EQ(read_rows(scene.pool, CENOTE_BY_GROUP), 0);
    DONE(cenote_free(block));
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_TAG, "").allocated.total_out, 3 * MIB);
    check_sums(scene.pool);
    scene_close(&scene);
}

CASE(tags_nest)
{
    struct scene scene;
    scene_open(&scene, CARD);
    void *before = take(&scene, MIB, A);
    DONE(cenote_tag_push("train"));
    void *outer = take(&scene, 1000, A);
    DONE(cenote_tag_push("enc\xc3\xb6" "der")); /* any UTF-8 */
    void *inner = take(&scene, 5 * MIB, B);
    DONE(cenote_tag_pop());
    void *again = take(&scene, 512, A);
    DONE(cenote_tag_pop());
    void *after = take(&scene, 2 * MIB, A);

    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_TAG, "train").allocated.current, 1024 + 512);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_TAG, "train").blocks, 2);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_TAG, "train/enc\xc3\xb6" "der").allocated.current, 5 * MIB);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_TAG, "").allocated.current, 3 * MIB);
    DONE(cenote_free(outer)); /* what it was born with counts, whatever is pushed now */
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_TAG, "train").allocated.current, 512);
    check_sums(scene.pool);

    cenote_piece pieces[64];
    size_t count;
    DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 64, &count));
    uint64_t key = row_named(scene.pool, CENOTE_BY_TAG, "train/enc\xc3\xb6" "der").key;
    for (size_t i = 0; i < count; i++)
        if (pieces[i].address == (uint64_t)(uintptr_t)inner)
            EXPECT_EQ(pieces[i].tag, key);
    void *all[] = {before, inner, again, after};
    for (int i = 0; i < 4; i++)
        DONE(cenote_free(all[i]));
    check_sums(scene.pool);
    scene_close(&scene);
}

/* The same name in many places: some of them meet in the table of names. */
CASE(tags_of_one_name_are_apart)
{
    enum { PLACES = 1200 };
    static cenote_row all[2 * PLACES + 64];
    struct scene scene;
    char name[32];
    size_t count, apart = 0;
    void *block[PLACES];
    scene_open(&scene, CARD);
    for (int i = 0; i < PLACES; i++) {
        snprintf(name, sizeof name, "place %d", i);
        DONE(cenote_tag_push(name));
        DONE(cenote_tag_push("x"));
        block[i] = take(&scene, 512, A);
        DONE(cenote_tag_pop());
        DONE(cenote_tag_pop());
    }
    DONE(cenote_pool_rows(scene.pool, CENOTE_BY_TAG, all, sizeof all / sizeof *all, &count));
    REQUIRE(count <= sizeof all / sizeof *all);
    for (size_t i = 0; i < count; i++)
        apart += strstr(all[i].name, "/x") && all[i].blocks == 1;
    EXPECT_EQ(apart, PLACES);
    for (int i = 0; i < PLACES; i++)
        DONE(cenote_free(block[i]));
    scene_close(&scene);
}

CASE(bad_names_of_tags)
{
    char long_name[CENOTE_TAG_BYTES + 2];
    memset(long_name, 'x', sizeof long_name);
    long_name[CENOTE_TAG_BYTES + 1] = 0;
    const char *bad[] = {NULL,           "",             "a/b",              "line\nbreak",  "\x7f", "\xff", "\xc0\xaf",
                         "\xe0\x80\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "cut \xe2\x82", long_name};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        EXPECT_EQ(cenote_tag_push(bad[i]), CENOTE_INVALID);
    EXPECT_EQ(cenote_tag_pop(), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "without"));
    long_name[CENOTE_TAG_BYTES] = 0;
    DONE(cenote_tag_push(long_name));
    DONE(cenote_tag_pop());
    EXPECT_EQ(cenote_tag_pop(), CENOTE_INVALID);
    EXPECT_EQ(cenote_phase_set(-1), CENOTE_INVALID);
    EXPECT_EQ(cenote_phase_set(CENOTE_PHASES), CENOTE_INVALID);
}

CASE(a_deep_path_keeps_its_end)
{
    struct scene scene;
    scene_open(&scene, CARD);
    char name[CENOTE_TAG_BYTES + 1];
    for (int depth = 0; depth < 12; depth++) {
        snprintf(name, sizeof name, "level-%02d-of-a-tower-with-a-long-name", depth);
        DONE(cenote_tag_push(name));
    }
    void *block = take(&scene, MIB, A);
    size_t count = read_rows(scene.pool, CENOTE_BY_TAG);
    EXPECT_EQ(count, 1);
    EXPECT(!strncmp(rows[0].name, "...", 3) && strlen(rows[0].name) == sizeof(rows[0].name) - 1);
    EXPECT(!strcmp(rows[0].name + strlen(rows[0].name) - strlen(name), name));
    for (int depth = 0; depth < 12; depth++)
        DONE(cenote_tag_pop());
    DONE(cenote_free(block));
    scene_close(&scene);
}

/* "..." and not in the middle of a character, wherever the cut is. */
CASE(a_path_that_just_does_not_fit)
{
    struct scene scene;
    scene_open(&scene, CARD);
    for (int more = 0; more < 4; more++) {
        char name[CENOTE_TAG_BYTES + 1] = "";
        memset(name, 'x', 15 + (size_t)more);
        for (size_t length = strlen(name); length + 3 <= CENOTE_TAG_BYTES; length += 3)
            strcpy(name + length, "\xe2\x82\xac");
        for (int depth = 0; depth < 4; depth++)
            DONE(cenote_tag_push(name));
        void *block = take(&scene, MIB, A);
        size_t count = read_rows(scene.pool, CENOTE_BY_TAG);
        for (size_t i = 0; i < count; i++) {
            if (!rows[i].allocated.current)
                continue;
            const char *kept = rows[i].name + 3;
            EXPECT(!strncmp(rows[i].name, "...", 3) && strlen(kept) >= 186);
            EXPECT(((unsigned char)*kept & 0xc0) != 0x80);
            EXPECT(!strcmp(kept + strlen(kept) - strlen(name), name));
        }
        DONE(cenote_free(block));
        for (int depth = 0; depth < 4; depth++)
            DONE(cenote_tag_pop());
    }
    scene_close(&scene);
}

static void *take_in_thread(void *arg)
{
    struct scene *scene = arg;
    void *block = NULL;
    cenote_alloc(scene->pool, MIB, scene->stream[B], &block);
    return block;
}

/* A framework's own threads go by the tag that was shared; one that has pushed its own goes by that. */
CASE(other_threads)
{
    struct scene scene;
    scene_open(&scene, CARD);
    pthread_t thread;
    void *block;
    DONE(cenote_tag_push("backward"));
    DONE(cenote_tag_share(1));
    DONE(cenote_phase_set(CENOTE_PHASE_BACKWARD));
    pthread_create(&thread, NULL, take_in_thread, &scene);
    pthread_join(thread, &block);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_TAG, "backward").allocated.current, MIB);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_PHASE, "backward").allocated.current, MIB);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_KIND, "activations").allocated.current, MIB);
    DONE(cenote_block_set_kind((char *)block + 100, CENOTE_KIND_GRADIENTS));
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_KIND, "activations").allocated.current, 0);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_KIND, "gradients").allocated.current, MIB);
    EXPECT_EQ(cenote_block_set_kind(block, CENOTE_KINDS), CENOTE_INVALID);
    EXPECT_EQ(cenote_block_set_kind(&scene, CENOTE_KIND_BUFFERS), CENOTE_NOT_OURS);
    DONE(cenote_tag_pop());
    DONE(cenote_phase_set(CENOTE_PHASE_NONE));
    DONE(cenote_free(block));
    /* This thread has no tag now: its call leaves what another thread shares. The last call ends it. */
    for (int last = 0; last <= 1; last++) {
        DONE(cenote_tag_share(!last));
        pthread_create(&thread, NULL, take_in_thread, &scene);
        pthread_join(thread, &block);
        EXPECT_EQ(row_named(scene.pool, CENOTE_BY_TAG, "backward").allocated.current, last ? 0 : MIB);
        DONE(cenote_free(block));
    }
    EXPECT_EQ(cenote_block_set_kind(block, CENOTE_KIND_BUFFERS), CENOTE_NOT_OURS);
    check_sums(scene.pool);
    scene_close(&scene);
}

/* A program with tags, kinds, streams, groups and all sizes, and a shadow of what each tag held when the whole was at its highest. */
struct shadow {
    struct scene scene;
    cenote_group *group;
    struct { void *block; uint64_t bytes; int tag; } held[BLOCKS];
    uint64_t live[4], at_peak[4], all, peak;
};
static const char *const names[] = {"a", "b", "c", "d"};

static void new_peak(struct shadow *s)
{
    s->peak = s->all;
    memcpy(s->at_peak, s->live, sizeof s->live);
}

static void give_block(struct shadow *s, int i)
{
    if (!s->held[i].block)
        return;
    DONE(cenote_free(s->held[i].block));
    s->held[i].block = NULL;
    s->live[s->held[i].tag] -= s->held[i].bytes;
    s->all -= s->held[i].bytes;
}

static void take_block(struct shadow *s, int i)
{
    int tag = rand() % 4;
    size_t bytes = (size_t)(rand() % (rand() % 3 ? 9000 : 900000)) + 1;
    void **block = &s->held[i].block;
    DONE(cenote_tag_push(names[tag]));
    DONE(cenote_phase_set(rand() % CENOTE_PHASES));
    int error = rand() % 5 ? cenote_alloc(s->scene.pool, bytes, s->scene.stream[rand() % 2], block)
                           : group_alloc(s->group, bytes, 512, s->scene.stream[A], block);
    DONE(cenote_tag_pop());
    DONE(error);
    if (rand() % 4 == 0)
        DONE(cenote_block_set_kind(*block, rand() % CENOTE_KINDS));
    if (rand() % 8 == 0)
        DONE(cenote_use(*block, s->scene.stream[C]));
    s->held[i].bytes = rounded(bytes);
    s->held[i].tag = tag;
    s->live[tag] += s->held[i].bytes;
    s->all += s->held[i].bytes;
    if (s->all > s->peak)
        new_peak(s);
}

static void compare(struct shadow *s)
{
    for (int t = 0; t < 4; t++) {
        cenote_row row = row_named(s->scene.pool, CENOTE_BY_TAG, names[t]);
        EXPECT_EQ(row.allocated.current, s->live[t]);
        EXPECT_EQ(row.at_peak, s->at_peak[t]);
    }
    check_sums(s->scene.pool);
}

CASE(at_peak_is_what_it_was)
{
    static struct shadow s;
    scene_open(&s.scene, CARD);
    DONE(cenote_group_create(s.scene.pool, "graphs", CENOTE_GROUP_PRIVATE, NULL, &s.group));
    srand(7);
    for (int turn = 0; turn < 20000; turn++) {
        int i = rand() % BLOCKS;
        give_block(&s, i);
        if (rand() % 3)
            take_block(&s, i);
        if (turn == 12000) {
            DONE(cenote_pool_reset_peaks(s.scene.pool));
            new_peak(&s);
        }
        if (turn % 997 == 0)
            compare(&s);
    }
    EXPECT_EQ(read_rows(s.scene.pool, CENOTE_BY_GROUP), 1);
    EXPECT(!strcmp(rows[0].name, "graphs") && rows[0].group == s.group && rows[0].reserved >= rows[0].allocated.current);
    DONE(cenote_pool_reset_totals(s.scene.pool));
    cenote_row row = row_named(s.scene.pool, CENOTE_BY_TAG, "a");
    EXPECT_EQ(row.allocated.total_in, 0);
    EXPECT_EQ(row.allocated.total_out, 0);
    EXPECT_EQ(row.allocated.current, s.live[0]);
    DONE(cenote_phase_set(CENOTE_PHASE_NONE));
    for (int i = 0; i < BLOCKS; i++)
        give_block(&s, i);
    DONE(cenote_group_destroy(s.group));
    DONE(cenote_pool_check(s.scene.pool));
    scene_close(&s.scene);
}

/* What a reset leaves to add up is still there: peaks of rows that nothing has come into since, and memory that lies in an arena. */
CASE(resets_leave_no_row_out)
{
    struct scene scene;
    cenote_group *group = NULL;
    void *of_group;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "grouped", 0, NULL, &group));
    DONE(group_alloc(group, 10 * MIB, 512, scene.stream[A], &of_group));
    DONE(cenote_free(of_group));
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_GROUP, "grouped").allocated.peak, 10 * MIB);
    DONE(cenote_pool_reset_peaks(scene.pool));
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_GROUP, "grouped").allocated.peak, 0);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT)); /* and it is gone */
    DONE(cenote_tag_push("gone"));
    void *block = take(&scene, 10 * MIB, A);
    DONE(cenote_tag_pop());
    DONE(cenote_free(block));
    block = take(&scene, 3 * MIB, B);
    DONE(cenote_pool_reset_totals(scene.pool));
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_TAG, "gone").at_peak, 10 * MIB);
    EXPECT_EQ(row_named(scene.pool, CENOTE_BY_CLASS, "block to 16777216").at_peak, 10 * MIB);
    DONE(cenote_pool_reset_peaks(scene.pool));
    REQUIRE_EQ(read_rows(scene.pool, CENOTE_BY_ARENA), 2);
    EXPECT_EQ(rows[0].at_peak + rows[1].at_peak, 3 * MIB);
    EXPECT_EQ(rows[0].reserved + rows[1].reserved, scene_stats(scene.pool).reserved.current);
    DONE(cenote_free(block));
    scene_close(&scene);
}

/* A thread that reads while others allocate sees sums that agree: the readings of one division are one moment's. */
struct busy {
    struct scene *scene;
    int number;
    _Atomic(bool) *stop;
    int errors;
};

static void *be_busy(void *arg)
{
    struct busy *busy = arg;
    unsigned seed = (unsigned)busy->number + 1;
    char name[16];
    while (!atomic_load(busy->stop)) {
        void *block[8];
        snprintf(name, sizeof name, "t%d", rand_r(&seed) % 6);
        busy->errors += !!(cenote_tag_push(name));
        for (int i = 0; i < 8; i++)
            busy->errors += !!(cenote_alloc(busy->scene->pool, (size_t)rand_r(&seed) % 100000 + 1, busy->scene->stream[busy->number % 2], &block[i]));
        cenote_block_set_kind(block[0], CENOTE_KIND_BUFFERS);
        busy->errors += !!(cenote_tag_pop());
        for (int i = 0; i < 8; i++)
            busy->errors += !!(cenote_free(block[i]));
    }
    return NULL;
}

CASE(rows_add_up_under_threads)
{
    struct scene scene;
    scene_open(&scene, CARD);
    _Atomic(bool) stop = false;
    pthread_t threads[4];
    struct busy busy[4];
    for (int i = 0; i < 4; i++) {
        busy[i] = (struct busy){&scene, i, &stop, 0};
        pthread_create(&threads[i], NULL, be_busy, &busy[i]);
    }
    for (int turn = 0; turn < 400; turn++) {
        uint64_t tags = 0, totals = 0;
        size_t count = read_rows(scene.pool, CENOTE_BY_TAG);
        for (size_t i = 0; i < count; i++) {
            EXPECT_EQ(rows[i].allocated.total_in - rows[i].allocated.total_out, rows[i].allocated.current);
            EXPECT(rows[i].allocated.current <= rows[i].allocated.peak);
            tags += rows[i].blocks;
            totals += rows[i].at_peak;
        }
        EXPECT(tags <= 32); /* 4 threads of 8 blocks */
        EXPECT(totals <= 32 * 100352);
        DONE(cenote_pool_check(scene.pool)); /* invariant 20, in one hold of the lock */
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        EXPECT_EQ(busy[i].errors, 0);
    check_sums(scene.pool);
    scene_close(&scene);
}

CASE(steps)
{
    struct scene scene;
    scene_open(&scene, CARD);
    cenote_step_note notes[CENOTE_STEPS_KEPT];
    size_t count;
    DONE(cenote_pool_steps(scene.pool, notes, CENOTE_STEPS_KEPT, &count));
    EXPECT_EQ(count, 0);
    void *kept[3];
    uint64_t ended[3];
    for (int step = 0; step < 3; step++) {
        void *block = take(&scene, 10 * MIB, A);
        kept[step] = take(&scene, MIB, A);
        DONE(cenote_free(block));
        sim_advance(MSEC);
        ended[step] = scene_clock(NULL);
        DONE(cenote_pool_step(scene.pool));
    }
    DONE(cenote_pool_steps(scene.pool, notes, 2, &count)); /* too little room */
    EXPECT_EQ(count, 3);
    DONE(cenote_pool_steps(scene.pool, notes, CENOTE_STEPS_KEPT, &count));
    for (uint64_t i = 0; i < 3; i++) {
        EXPECT_EQ(notes[i].step, 3 - i);
        EXPECT_EQ(notes[i].live, (3 - i) * MIB);
        EXPECT_EQ(notes[i].peak, (13 - i) * MIB);
        EXPECT(notes[i].reserved >= notes[i].live);
        EXPECT_EQ(notes[i].ns, ended[2 - i]);
    }
    cenote_piece pieces[64];
    DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 64, &count));
    for (size_t i = 0; i < count; i++)
        for (uint64_t step = 0; step < 3; step++)
            if (pieces[i].state == CENOTE_PIECE_LIVE && pieces[i].address == (uint64_t)(uintptr_t)kept[step])
                EXPECT_EQ(pieces[i].born, step);
    DONE(cenote_pool_step(scene.pool));
    DONE(cenote_pool_steps(scene.pool, notes, 1, &count));
    EXPECT_EQ(notes[0].peak, 3 * MIB); /* nothing was allocated, but that is what lived when it began */
    for (int step = 0; step < 3; step++)
        DONE(cenote_free(kept[step]));
    for (int step = 0; step < CENOTE_STEPS_KEPT + 10; step++)
        DONE(cenote_pool_step(scene.pool));
    DONE(cenote_pool_steps(scene.pool, notes, CENOTE_STEPS_KEPT, &count));
    EXPECT_EQ(count, CENOTE_STEPS_KEPT);
    EXPECT_EQ(notes[0].step, CENOTE_STEPS_KEPT + 14);
    EXPECT_EQ(notes[CENOTE_STEPS_KEPT - 1].step, 15);
    EXPECT_EQ(cenote_pool_steps(scene.pool, NULL, 0, NULL), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_rows(scene.pool, CENOTE_BY_KIND + 1, rows, ROWS, &count), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_rows(scene.pool, -1, rows, ROWS, &count), CENOTE_INVALID);
    scene_close(&scene);
}

/* Rows for new tags need host memory: a block is refused, and one that changes its kind keeps the one it has. */
CASE(no_host_memory_for_rows)
{
    struct scene scene;
    struct sim_shape shape = scene_card(4 * MIB);
    cenote_options options = scene_options();
    cenote_row row;
    void *block = NULL, *more = NULL;
    char name[32];
    scene_open_with(&scene, &shape, &options);
    block = take(&scene, MIB, A);
    for (int i = 0; i < 3000; i++) {
        snprintf(name, sizeof name, "row %d", i);
        DONE(cenote_tag_push(name));
        if (i < 2999)
            DONE(cenote_tag_pop());
    }
    memory_fail(1, true);
    EXPECT_EQ(cenote_block_set_kind(block, CENOTE_KIND_GRADIENTS), CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, scene.stream[A], &more), CENOTE_OUT_OF_HOST_MEMORY);
    memory_fail(0, false);
    row = row_named(scene.pool, CENOTE_BY_KIND, "gradients");
    EXPECT_EQ(row.allocated.current, 0);
    DONE(cenote_block_set_kind(block, CENOTE_KIND_GRADIENTS));
    more = take(&scene, MIB, A);
    check_sums(scene.pool);
    DONE(cenote_tag_pop());
    DONE(cenote_free(block));
    DONE(cenote_free(more));
    scene_close(&scene);
}

/* The last case: what is used up stays so. Paths that are known can still be used, and each is found among all. */
CASE(a_program_has_so_many_tags)
{
    char name[16];
    int number = 0, error = 0, again = 0;
    while (!error && number <= CENOTE_TAGS_MAX) {
        snprintf(name, sizeof name, "%d", number);
        error = cenote_tag_push(name);
        number += !error;
        DONE(error ? 0 : cenote_tag_pop());
    }
    EXPECT_EQ(error, CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT(strstr(cenote_message(), "use a name again") != NULL);
    EXPECT_EQ(cenote_tag_pop(), CENOTE_INVALID); /* nothing was pushed */
    for (int i = 0; i < number; i++) {
        snprintf(name, sizeof name, "%d", i);
        again += !cenote_tag_push(name) && !cenote_tag_pop();
    }
    EXPECT_EQ(again, number);
}

SCENES_MAIN("rows")
