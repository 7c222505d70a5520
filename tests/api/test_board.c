/*
 * test_board.c: what another process sees of a pool is what the pool says of itself, and what it wishes is done at the program's next call.
 * It reads as others do: /proc/PID/fd, the head as text, slots by pread. Not: how `cenote top` shows it (tests/python/).
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/board.h"
#include "stats/account/board.h"
#include "tests/api/scene.h"
#include "tests/base/child.h"

#define CARD (256 * MIB)

static char head[BOARD_HEAD_MAX];
static long slot_first, slot_bytes;

/* The number of a board of this process; -1: there is none. It is opened anew, as a reader does. */
static int open_board(int flags)
{
    char link[64], target[64];
    int number = -1;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; number < 0 && (entry = readdir(folder));) {
        snprintf(link, sizeof link, "/proc/self/fd/%.20s", entry->d_name);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        if (!strncmp(target, "/memfd:" BOARD_NAME " ", strlen(BOARD_NAME) + 8))
            number = open(link, flags);
    }
    closedir(folder);
    return number;
}

static void read_head(int number)
{
    REQUIRE_EQ(pread(number, head, sizeof head, 0), (ssize_t)sizeof head);
    REQUIRE(!strncmp(head, BOARD_NAME " 1\n", strlen(BOARD_NAME) + 3));
    REQUIRE_EQ(sscanf(strstr(head, "\nslots "), "\nslots %ld %ld", &slot_first, &slot_bytes), 2);
}

/* Where a thing lies in a slot, as the head has it: "level allocated". */
static size_t place_of(const char *thing)
{
    char line[96];
    size_t at = 0, size = 0;
    snprintf(line, sizeof line, "\n%s ", thing);
    const char *found = strstr(head, line);
    REQUIRE(found);
    REQUIRE_EQ(sscanf(found + strlen(line), "%zu %zu", &at, &size), 2);
    return at;
}

static void read_at(int number, long slot, size_t at, void *to, size_t bytes)
{
    REQUIRE_EQ(pread(number, to, bytes, slot_first + slot * slot_bytes + (long)at), (ssize_t)bytes);
}

static uint64_t number_at(int number, long slot, const char *thing, size_t bytes)
{
    uint64_t value = 0;
    read_at(number, slot, place_of(thing), &value, bytes);
    return value;
}

/* The slot of the pool that has this limit; -1: there is none. Each pool of these tests has one of its own. */
static long slot_of(int number, uint64_t limit)
{
    struct stat stat;
    read_head(number);
    REQUIRE(!fstat(number, &stat));
    for (long slot = 0; slot < (stat.st_size - slot_first) / slot_bytes; slot++)
        if (number_at(number, slot, "u32 serial", 4) && number_at(number, slot, "u64 limit", 8) == limit)
            return slot;
    return -1;
}

static void wish(int number, long slot, uint32_t what)
{
    REQUIRE_EQ(pwrite(number, &what, 4, slot_first + slot * slot_bytes + (long)place_of("u32 wished")), 4);
}

static void open_scene(struct scene *scene, double limit)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.limit = limit;
    scene_open_with(scene, &shape, &options);
}

/* Levels and counts are there at once; of what is derived, the limit, the capacity and what sleeps. */
static void check_counters(int number, long slot, cenote_pool *pool)
{
    cenote_stats stats = scene_stats(pool);
    cenote_level level;
#define CENOTE_LEVEL(name, unit, text)                                                      \
    read_at(number, slot, place_of("level " #name), &level, sizeof level);                  \
    if (strcmp(#name, "cached"))                                                            \
        EXPECT(!memcmp(&level, &stats.name, sizeof level));
#define CENOTE_COUNT(name, unit, text) EXPECT_EQ(number_at(number, slot, "count " #name, 8), stats.name);
#define CENOTE_GAUGE(name, unit, text)
#include <cenote/counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
    EXPECT_EQ(number_at(number, slot, "u64 capacity", 8), stats.capacity);
    EXPECT_EQ(number_at(number, slot, "u64 limit", 8), stats.limit);
    EXPECT_EQ(number_at(number, slot, "u64 page_bytes", 8), stats.page_bytes);
}

static void open_without_a_board(void *unused)
{
    struct scene scene;
    void *block;
    const struct rlimit *none = unused;
    setrlimit(RLIMIT_FSIZE, none);
    open_scene(&scene, 100 * MIB);
    DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &block));
    DONE(cenote_free(block));
    scene_close(&scene);
    EXPECT_EQ(open_board(O_RDONLY), -1);
    _exit((int)CU_get_number_of_failures());
}

/* The first case: once a process has begun with CUDA its children cannot. */
CASE(no_board_is_no_error)
{
    const struct rlimit none = {0, 0};
    struct child_end end = child_run(open_without_a_board, (void *)&none);
    EXPECT_EQ(end.signal, 0);
    EXPECT_EQ(end.status, 0);
}

CASE(counters_are_there_without_a_word_to_the_program)
{
    struct scene scene;
    void *blocks[20];
    open_scene(&scene, 200 * MIB);
    int number = open_board(O_RDONLY);
    REQUIRE(number >= 0);
    long slot = slot_of(number, 200 * MIB);
    REQUIRE(slot >= 0);
    for (size_t i = 0; i < 20; i++) {
        DONE(cenote_alloc(scene.pool, (i + 1) * 300 * KIB, scene.stream[i % SCENE_STREAMS], &blocks[i]));
        check_counters(number, slot, scene.pool);
    }
    for (size_t i = 0; i < 20; i++) {
        DONE(cenote_free(blocks[i]));
        check_counters(number, slot, scene.pool);
    }
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ(number_at(number, slot, "u64 steps", 8), 1);
    DONE(cenote_pool_set_limit(scene.pool, 120 * MIB));
    check_counters(number, slot, scene.pool);
    char text[64];
    read_at(number, slot, place_of("text provider"), text, 16);
    EXPECT_TEXT_EQ(text, "vmm");
    read_at(number, slot, place_of("text card"), text, sizeof text);
    EXPECT(*text);
    scene_close(&scene);
    EXPECT_EQ(slot_of(number, 120 * MIB), -1); /* it is gone from the board, too */
    close(number);
}

CASE(only_the_user_may_read_it)
{
    struct scene scene;
    struct stat stat;
    open_scene(&scene, 100 * MIB);
    int number = open_board(O_RDONLY);
    REQUIRE(number >= 0 && !fstat(number, &stat));
    EXPECT_EQ(stat.st_mode & 07777, 0600);
    EXPECT_EQ(stat.st_uid, getuid());
    close(number);
    scene_close(&scene);
}

CASE(a_peak_is_since_the_last_reader)
{
    struct scene scene;
    void *large, *small;
    const uint64_t none = 0;
    open_scene(&scene, 100 * MIB);
    int number = open_board(O_RDWR);
    long slot = slot_of(number, 100 * MIB);
    REQUIRE(slot >= 0);
    DONE(cenote_alloc(scene.pool, 20 * MIB, scene.stream[A], &large));
    DONE(cenote_free(large));
    EXPECT_EQ(number_at(number, slot, "u64 peak_allocated", 8), 20 * MIB);
    EXPECT(number_at(number, slot, "u64 peak_reserved", 8) >= 20 * MIB);
    REQUIRE_EQ(pwrite(number, &none, 8, slot_first + slot * slot_bytes + (long)place_of("u64 peak_allocated")), 8);
    DONE(cenote_alloc(scene.pool, 2 * MIB, scene.stream[A], &small));
    EXPECT_EQ(number_at(number, slot, "u64 peak_allocated", 8), 2 * MIB);
    EXPECT_EQ(scene_stats(scene.pool).allocated.peak, 20 * MIB);
    DONE(cenote_free(small));
    close(number);
    scene_close(&scene);
}

CASE(a_wish_is_granted_at_the_next_call)
{
    struct scene scene;
    void *block;
    struct board_row row;
    open_scene(&scene, 100 * MIB);
    int number = open_board(O_RDWR);
    long slot = slot_of(number, 100 * MIB);
    REQUIRE(slot >= 0);
    DONE(cenote_tag_push("attention"));
    DONE(cenote_alloc(scene.pool, 30 * MIB, scene.stream[A], &block));
    DONE(cenote_tag_pop());
    wish(number, slot, BOARD_REFRESH);
    EXPECT_EQ(number_at(number, slot, "u32 answers", 4), 0);
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ(number_at(number, slot, "u32 answers", 4), 2);
    EXPECT_EQ(number_at(number, slot, "u32 wished", 4), 0);
    EXPECT_EQ(number_at(number, slot, "figure address_used", 8), scene_stats(scene.pool).address_used);
    REQUIRE(number_at(number, slot, "u32 tags", 4) >= 1);
    read_at(number, slot, place_of("rows tags"), &row, sizeof row);
    EXPECT_TEXT_EQ(row.name, "attention");
    EXPECT_EQ(row.current, 30 * MIB);

    DONE(cenote_free(block));
    DONE(cuCtxSynchronize());
    wish(number, slot, BOARD_TRIM);
    DONE(cenote_alloc(scene.pool, KIB, scene.stream[A], &block));
    EXPECT_EQ(number_at(number, slot, "u32 answers", 4), 4);
    EXPECT_EQ(number_at(number, slot, "i32 error", 4), 0);
    EXPECT(scene_stats(scene.pool).reserved.current < 10 * MIB);
    DONE(cenote_free(block));
    close(number);
    scene_close(&scene);
}

static void wish_snapshot(int number, long slot, const char *path)
{
    long at = slot_first + slot * slot_bytes + (long)place_of("text path");
    REQUIRE_EQ(pwrite(number, path, strlen(path) + 1, at), (ssize_t)strlen(path) + 1);
    wish(number, slot, BOARD_SNAPSHOT);
}

/* What a reader wishes in a capture is refused or put off like what the program wishes, and breaks nothing. */
CASE(a_wish_in_a_capture_ends_nothing)
{
    struct scene scene;
    void *block;
    CUgraph graph;
    cenote_group *group;
    open_scene(&scene, 100 * MIB);
    int number = open_board(O_RDWR);
    long slot = slot_of(number, 100 * MIB);
    REQUIRE(slot >= 0);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
    DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    wish(number, slot, BOARD_TRIM | BOARD_REFRESH);
    DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cuStreamEndCapture(scene.stream[A], &graph));
    DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
    EXPECT_EQ(number_at(number, slot, "u32 answers", 4), 2);
    DONE(cuGraphDestroy(graph));
    DONE(cenote_group_destroy(group));
    close(number);
    scene_close(&scene);
}

/* A program that closes all numbers that it does not know has no board any more; its next structure begins another one. */
CASE(a_program_that_closes_the_number_loses_nothing_else)
{
    struct scene scene;
    cenote_pool *more[3];
    void *block;
    char link[64], target[64];
    struct stat before, after;
    open_scene(&scene, 100 * MIB);
    int other = open("/dev/null", O_RDWR), closed = -1;
    for (int number = 3; number < 256 && closed < 0; number++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", number);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        if (!strncmp(target, "/memfd:" BOARD_NAME, strlen(BOARD_NAME) + 7))
            closed = number;
    }
    REQUIRE(closed >= 0);
    FILE *file = tmpfile();
    REQUIRE(file && dup2(fileno(file), closed) == closed); /* the number is another file's now */
    REQUIRE(!fstat(closed, &before));
    for (int i = 0; i < 3; i++) {
        cenote_options options = scene_options();
        options.limit = (double)((110 + (unsigned)i) * MIB);
        DONE(cenote_pool_create(0, &options, &more[i]));
        DONE(cenote_alloc(more[i], MIB, scene.stream[A], &block));
        DONE(cenote_free(block));
    }
    REQUIRE(!fstat(closed, &after));
    EXPECT_EQ(before.st_size, after.st_size);
    int number = open_board(O_RDONLY);
    REQUIRE(number >= 0);
    EXPECT(slot_of(number, 112 * MIB) >= 0);
    for (int i = 0; i < 3; i++)
        DONE(cenote_pool_destroy(more[i]));
    close(closed);
    close(other);
    fclose(file);
    close(number);
    scene_close(&scene);
}

static cenote_pool *parents;

static void call_in_child(void *block)
{
    void *other;
    EXPECT_EQ(cenote_alloc(parents, MIB, NULL, &other), CENOTE_FORKED);
    EXPECT_EQ(cenote_free(block), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_step(parents), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_reset_peaks(parents), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_destroy(parents), CENOTE_FORKED);
    exit((int)CU_get_number_of_failures()); /* with the handlers */
}

CASE(the_child_of_a_fork_changes_nothing)
{
    struct scene scene;
    void *block;
    open_scene(&scene, 100 * MIB);
    int number = open_board(O_RDWR);
    long slot = slot_of(number, 100 * MIB);
    REQUIRE(slot >= 0);
    DONE(cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &block));
    char *before = malloc((size_t)slot_bytes), *after = malloc((size_t)slot_bytes);
    wish(number, slot, BOARD_REFRESH);
    read_at(number, slot, 0, before, (size_t)slot_bytes);
    parents = scene.pool;
    struct child_end end = child_run(call_in_child, block);
    EXPECT_EQ(end.status, 0);
    EXPECT_EQ(end.signal, 0);
    read_at(number, slot, 0, after, (size_t)slot_bytes);
    EXPECT(!memcmp(before, after, (size_t)slot_bytes));
    free(before);
    free(after);
    DONE(cenote_free(block));
    close(number);
    scene_close(&scene);
}

/* What a reader wishes, or does to the file, neither ends the program nor holds it up. */
CASE(a_reader_does_no_harm)
{
    struct scene scene;
    void *block;
    char path[64], said[512];
    struct rlimit before, none = {100, 0};
    open_scene(&scene, 100 * MIB);
    int number = open_board(O_RDWR);
    long slot = slot_of(number, 100 * MIB);
    REQUIRE(slot >= 0);
    EXPECT(ftruncate(number, 0));
    snprintf(path, sizeof path, "/tmp/cenote-board-%d", (int)getpid());
    REQUIRE(!mkfifo(path, 0600));
    wish_snapshot(number, slot, path);
    DONE(cenote_alloc(scene.pool, KIB, scene.stream[A], &block));
    EXPECT_EQ((int)number_at(number, slot, "i32 error", 4), CENOTE_FILE);
    EXPECT(!unlink(path));
    wish_snapshot(number, slot, "relative.json");
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ((int)number_at(number, slot, "i32 error", 4), CENOTE_FILE);

    wish_snapshot(number, slot, path);
    getrlimit(RLIMIT_FSIZE, &before);
    none.rlim_max = before.rlim_max;
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &none));
    DONE(cenote_pool_step(scene.pool));
    REQUIRE(!setrlimit(RLIMIT_FSIZE, &before));
    EXPECT_EQ((int)number_at(number, slot, "i32 error", 4), CENOTE_FILE);
    read_at(number, slot, place_of("text said"), said, sizeof said);
    EXPECT(strstr(said, "File too large"));
    EXPECT(access(path, F_OK));
    DONE(cenote_free(block));
    close(number);
    scene_close(&scene);
}

/*
 * A program with abort:1 ends at its own mistakes, and its last message is about its own calls. The last case: from here on the process is one with
 * abort:1.
 */
CASE(what_cannot_be_granted_is_said_on_the_board_alone)
{
    struct scene scene;
    void *block;
    char said[512], path[64], kept[512];
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.limit = 100 * MIB;
    options.abort = 1;
    scene_open_with(&scene, &shape, &options);
    int number = open_board(O_RDWR);
    long slot = slot_of(number, 100 * MIB);
    REQUIRE(slot >= 0);
    EXPECT_EQ(cenote_alloc(scene.pool, 4096 * MIB, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    snprintf(kept, sizeof kept, "%s", cenote_message());
    wish_snapshot(number, slot, "/proc/none/there.json");
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ((int)number_at(number, slot, "i32 error", 4), CENOTE_FILE);
    read_at(number, slot, place_of("text said"), said, sizeof said);
    EXPECT(strstr(said, "/proc/none/there.json"));
    EXPECT(!strncmp(cenote_message(), kept, sizeof kept - 1));

    wish_snapshot(number, slot, "");
    DONE(cenote_alloc(scene.pool, KIB, scene.stream[A], &block));
    EXPECT((int)number_at(number, slot, "i32 error", 4));
    snprintf(path, sizeof path, "/tmp/cenote-board-%d.json", (int)getpid());
    wish_snapshot(number, slot, path);
    DONE(cenote_pool_step(scene.pool));
    EXPECT_EQ(number_at(number, slot, "i32 error", 4), 0);
    read_at(number, slot, place_of("text said"), said, sizeof said);
    EXPECT_TEXT_EQ(said, "");
    EXPECT(!unlink(path));
    DONE(cenote_free(block));
    close(number);
    scene_close(&scene);
}

SCENES_MAIN("board")
