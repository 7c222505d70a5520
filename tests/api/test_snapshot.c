/*
 * test_snapshot.c: all parts of a snapshot agree, but while other threads are at work. tests/api/judge_snapshot.py reads what is written here.
 */
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stats/report/snapshot.h"
#include "tests/api/scene.h"

static char folder[96];
static unsigned written;

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "%s/cenote-snapshot-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(folder))
        _Exit(2);
    written = 0;
}

static int run(const char *format, const char *a, const char *b)
{
    char command[512];
    snprintf(command, sizeof command, format, a, b);
    return system(command);
}

static void remove_folder(void)
{
    run("rm -rf '%s'%s", folder, "");
    scene_after();
}

static const char *file_name(unsigned number)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%03u.json%s", folder, number, number % 8 == 7 ? ".gz" : "");
    return path;
}

static void snap(cenote_pool *pool)
{
    DONE(cenote_pool_snapshot(pool, file_name(written++)));
}

/* Whatever the judge has to say is a failure. `how`: --quiet where no other thread was at work, so that each has to be of one moment. */
static void judge_as(const char *how)
{
    if (system("python3 -c '' 2>/dev/null")) {
        fprintf(stderr, "no python3: the snapshot is not judged\n");
        return;
    }
    EXPECT_EQ(run("python3 -B tests/api/judge_snapshot.py %2$s '%1$s'/*", folder, how), 0);
}

static void judge(void)
{
    judge_as("--quiet");
}

static const char *last_words(void)
{
    static char contents[8 << 20];
    FILE *file = fopen(file_name(written - 1), "rb");
    REQUIRE(file != NULL);
    contents[fread(contents, 1, sizeof contents - 1, file)] = 0;
    fclose(file);
    return contents;
}

static void expect_words(const char *words)
{
    const char *contents = last_words();
    EXPECT(strstr(contents, words) != NULL);
    if (!strstr(contents, words))
        fprintf(stderr, "no \"%s\" in\n%.3000s\n", words, contents);
}

CASE(an_empty_pool)
{
    struct scene scene;
    scene_open(&scene, 64 * MIB);
    snap(scene.pool);
    expect_words("\"provider\":\"vmm\"");
    judge();
    scene_close(&scene);
}

/* Blocks, small ones, ones that wait, aliases, a capture, pins, tags and names with odd characters. */
CASE(every_layer_has_something)
{
    struct scene scene;
    cenote_group *graph, *odd;
    struct held held[6];
    CUgraph captured;
    void *block;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    options.record = 100;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_group_create(scene.pool, "a \"name\" \\ \n\xff with \xc3\xa9", CENOTE_GROUP_WHOLE, NULL, &odd));
    DONE(cenote_tag_push("tr\"ain, \xc3\xa9"));
    for (int i = 0; i < 6; i++)
        REQUIRE(held_take(&held[i], scene.pool, (size_t)(i + 1) * 700 * KIB, scene.stream[i % 3]));
    DONE(cenote_tag_pop());
    snap(scene.pool);
    expect_words("tr\\u0022ain, \xc3\xa9");
    expect_words("a \\u0022name\\u0022 \\u005c \\u000a\\u00ff with \xc3\xa9");
    DONE(cenote_use(held[1].at, scene.stream[C]));
    held_linger(&held[1], scene.stream[C]);
    held_give(&held[1]);
    snap(scene.pool);
    expect_words("\"pending\"");
    expect_words("\"fence\"]");
    DONE(cenote_pool_step(scene.pool));
    held_give(&held[5]);
    DONE(cenote_pin(held[2].at, held[2].bytes));
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &graph));
    DONE(cenote_capture_begin(scene.pool, graph, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &block));
    snap(scene.pool);
    expect_words("\"captures\":[{\"group\":2,");
    expect_words(",\"pins\":2,"); /* of slots */
    DONE(cuStreamEndCapture(scene.stream[A], &captured));
    DONE(cenote_capture_end(scene.pool, graph, scene.stream[A]));
    DONE(cenote_unpin(held[2].at, held[2].bytes));
    DONE(cenote_free(block));
    DONE(group_alloc(odd, 900, 512, scene.stream[B], &block));
    snap(scene.pool);
    DONE(cenote_free(block));
    for (int i = 0; i < 5; i++)
        if (i != 1)
            held_give(&held[i]);
    DONE(cenote_pool_trim(scene.pool, 20 * MIB, CENOTE_TRIM_WAIT));
    snap(scene.pool);
    judge();
    DONE(cuGraphDestroy(captured));
    DONE(cenote_group_destroy(graph));
    DONE(cenote_group_destroy(odd));
    scene_close(&scene);
}

/* So many blocks that the copy is made twice; blocks that wait for an event and for another device, two captures, and sites. */
CASE(more_than_fits_at_first)
{
    enum { MANY = 20000 };
    static void *small[MANY];
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_group *groups[2];
    CUcontext other;
    CUstream far;
    struct held held, used[2];
    shape.lag = MSEC;
    shape.devices = 2;
    options.sites = 4;
    scene_open_with(&scene, &shape, &options);
    DONE(cuDevicePrimaryCtxRetain(&other, 1));
    DONE(cuCtxPushCurrent(other));
    DONE(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
    DONE(sim_launch_wait(far, 10 * MSEC));
    DONE(cuCtxPopCurrent(NULL));
    for (int i = 0; i < 2; i++)
        REQUIRE(held_take(&used[i], scene.pool, 3 * MIB, scene.stream[A]));
    DONE(cenote_use_on_device(used[0].at, 1, far));
    DONE(cenote_use(used[1].at, NULL));
    DONE(sim_launch_wait(NULL, 10 * MSEC));
    for (int i = 0; i < 2; i++)
        held_give(&used[i]);
    for (int i = 0; i < MANY; i++)
        REQUIRE(!cenote_alloc(scene.pool, 512, scene.stream[C], &small[i]));
    snap(scene.pool);
    expect_words("\"sites\":{\n\"1\":\"");
    EXPECT(strstr(last_words(), ",1,\"device\"]") && strstr(last_words(), ",0,\"event\"]"));
    for (int i = 0; i < MANY; i++)
        REQUIRE(!cenote_free(small[i]));
    for (int i = 0; i < 2; i++) {
        DONE(cenote_group_create(scene.pool, i ? "second" : "first \x7f", CENOTE_GROUP_PRIVATE, NULL, &groups[i]));
        DONE(cenote_capture_begin(scene.pool, groups[i], scene.stream[i]));
    }
    snap(scene.pool);
    expect_words("first \\u007f");
    EXPECT(strstr(last_words(), "},{\"group\":2,") != NULL);
    for (int i = 0; i < 2; i++) {
        DONE(cenote_capture_end(scene.pool, groups[i], scene.stream[i]));
        DONE(cenote_group_destroy(groups[i]));
    }
    DONE(cuCtxSynchronize());
    DONE(cuCtxPushCurrent(other));
    DONE(cuCtxSynchronize());
    DONE(cuStreamDestroy(far));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(1));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    REQUIRE(held_take(&held, scene.pool, MIB, scene.stream[A]));
    snap(scene.pool);
    judge();
    held_give(&held);
    scene_close(&scene);
}

/* The number of an arena that is gone is passed over, in each list. */
CASE(an_arena_that_is_gone)
{
    struct scene scene;
    struct held held[2];
    cenote_group *group;
    cenote_row rows[4];
    uint64_t bytes;
    size_t count;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "group", 0, NULL, &group));
    for (int i = 0; i < 2; i++)
        REQUIRE(held_take(&held[i], scene.pool, 3 * MIB, scene.stream[i]));
    held_give(&held[0]);
    DONE(cenote_stream_retire(scene.pool, scene.stream[0]));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).arenas, 1);
    snap(scene.pool);
    expect_words("\"arenas\":[\n{\"arena\":2,");
    DONE(cenote_pool_rows(scene.pool, CENOTE_BY_ARENA, rows, 4, &count));
    EXPECT_EQ(count, 1);
    DONE(cenote_group_reserved(group, &bytes));
    EXPECT_EQ(bytes, 0);
    judge();
    DONE(cenote_group_destroy(group));
    held_give(&held[1]);
    scene_close(&scene);
}

CASE(mistakes_are_told)
{
    struct scene scene;
    scene_open(&scene, 64 * MIB);
    EXPECT_EQ(cenote_pool_snapshot(NULL, "x"), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_snapshot(scene.pool, NULL), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_snapshot(scene.pool, ""), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_snapshot(scene.pool, "/no/such/folder/x"), CENOTE_FILE);
    EXPECT(strstr(cenote_message(), "No such file") != NULL);
    EXPECT_EQ(cenote_pool_snapshot(scene.pool, "/dev/full"), CENOTE_FILE);
    EXPECT(strstr(cenote_message(), "No space left") != NULL);
    scene_close(&scene);
}

/* --------------------------------------------------------------------------------------------------------------------------- threads */

struct hammer {
    pthread_t     thread;
    cenote_pool  *pool;
    cenote_group *group;
    CUcontext     context;
    CUstream      stream, other;
    uint64_t      random;
    unsigned      failures;
};

static _Atomic bool over;

static void *hammer(void *arg)
{
    struct hammer *h = arg;
    void *block[24] = {NULL};
    h->failures += cuCtxPushCurrent(h->context) != 0;
    for (uint64_t i = 0; !atomic_load(&over); i++) {
        void **b = &block[i * 7 % 24];
        h->random = h->random * 6364136223846793005u + 1442695040888963407u;
        size_t bytes = 1 + (h->random >> 40) % (i % 3 ? 9000 : 9 * MIB);
        h->failures += cenote_free(*b) != 0;
        h->failures += i % 11 == 0 && cenote_tag_push(i % 2 ? "inner" : "outer");
        int error = i % 4 ? cenote_alloc(h->pool, bytes, h->stream, b) : group_alloc(h->group, bytes, 512, h->stream, b);
        h->failures += error && error != CENOTE_OUT_OF_MEMORY;
        *b = error ? NULL : *b;
        h->failures += i % 11 == 0 && cenote_tag_pop();
        h->failures += i % 5 == 0 && cenote_use(*b, h->other);
        h->failures += i % 100 == 0 && cenote_pool_step(h->pool);
        h->failures += i % 70 == 0 && cenote_pool_trim(h->pool, 0, i % 140 ? 0 : CENOTE_TRIM_WAIT);
        h->failures += i % 13 == 0 && *b && cenote_block_set_kind(*b, CENOTE_KIND_GRADIENTS);
    }
    for (int i = 0; i < 24; i++)
        h->failures += cenote_free(block[i]) != 0;
    h->failures += cuCtxPopCurrent(NULL) != 0;
    return NULL;
}

static void snap_under_threads(unsigned provider)
{
    struct scene scene;
    struct hammer h[3];
    cenote_group *group;
    struct sim_shape shape = scene_card(300 * MIB); /* it runs short now and then */
    cenote_options options = scene_options();
    options.provider = provider;
    shape.lag = MSEC / 5;
    shape.manual_clock = false;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_group_create(scene.pool, "others", 0, NULL, &group));
    atomic_store(&over, false);
    for (int i = 0; i < 3; i++) {
        h[i] = (struct hammer){.pool = scene.pool, .group = group, .context = scene.context, .stream = scene.stream[i],
                               .other = scene.stream[(i + 1) % 3], .random = (uint64_t)i};
        DONE(pthread_create(&h[i].thread, NULL, hammer, &h[i]));
    }
    for (int i = 0; i < 40; i++) {
        usleep(3000);
        snap(scene.pool);
    }
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++) {
        DONE(pthread_join(h[i].thread, NULL));
        EXPECT_EQ(h[i].failures, 0);
    }
    snap(scene.pool);
    judge_as("");
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(while_threads_are_at_work)
{
    snap_under_threads(CENOTE_VMM);
}

CASE(while_threads_are_at_work_on_segments)
{
    snap_under_threads(CENOTE_ASYNC);
}

/* A snapshot is of the moment of its copy: the file has the number that the group had then. */
CASE(a_group_that_ends_before_the_file_is_written)
{
    static struct snapshot s;
    static char text[1 << 16], expected[64];
    struct scene scene;
    cenote_group *group;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "short-lived", 0, NULL, &group));
    snprintf(expected, sizeof expected, "\"group\":%u,\"stream_id\"", group->number);
    cenote_piece piece = {.address = 512, .segment = 512, .size = 512, .group = group};
    s.memory = (char *)&piece;
    s.parts[PART_PIECES].count = 1;
    DONE(cenote_group_destroy(group));
    EXPECT_EQ(group->number, 0);
    struct file *file = file_create(file_name(0));
    REQUIRE(file);
    snapshot_write(&s, scene.pool, file);
    EXPECT(file_finish(file));
    FILE *written_file = fopen(file_name(0), "r");
    REQUIRE(written_file);
    size_t length = fread(text, 1, sizeof text - 1, written_file);
    fclose(written_file);
    EXPECT(length > 0);
    EXPECT(strstr(text, expected));
    scene_close(&scene);
}

SUITE_MAIN_AROUND("snapshot", make_folder, remove_folder)
