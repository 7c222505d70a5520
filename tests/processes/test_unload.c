/*
 * test_unload.c: dlclose of libcenote.so, as a program that loads it as a plug-in does: before anything was asked of it, with pools gone, with
 * pools live, with its threads at work; and loaded again, many times.
 */
#include <cenote/share.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>

#include "pool/life/life.h"
#include "tests/processes/process.h"

#define SETTLED (POOLS_KEPT + 3) /* from then on a pool takes over the structure of another */
#define ROUNDS (SETTLED + 60)
/* One a round would be more. The C library comes and goes with some, and a sanitizer with up to 15. */
#define MAPPINGS_MOST ((ROUNDS - SETTLED) * 3 / 4)

static char library_path[600];

static struct {
    int (*create)(int, const cenote_options *, cenote_pool **, size_t);
    int (*destroy)(cenote_pool *);
    int (*alloc)(cenote_pool *, size_t, cenote_stream, void **);
    int (*give)(void *);
    int (*use)(void *, cenote_stream);
    int (*trim)(cenote_pool *, uint64_t, unsigned);
    int (*share)(void *, cenote_share *);
    int (*check)(cenote_pool *);
    int (*version)(void);
    int (*tag)(const char *);
    const char *(*message)(void);
} its;

static void *load(void)
{
    static const struct {
        const char *name;
        void *where;
    } names[] = {
        {"cenote_pool_create", &its.create}, {"cenote_pool_destroy", &its.destroy}, {"cenote_alloc", &its.alloc}, {"cenote_free", &its.give},
        {"cenote_use", &its.use}, {"cenote_pool_trim", &its.trim}, {"cenote_export", &its.share}, {"cenote_pool_check", &its.check},
        {"cenote_version", &its.version}, {"cenote_tag_push", &its.tag}, {"cenote_message", &its.message},
    };
    build_folder(library_path);
    setenv("CENOTE_CONF", "page_mib:2,announced:1", 0); /* its streams come and go without a word */
    strcat(library_path, "libcenote.so");
    void *library = dlopen(library_path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *function = dlsym(library, names[i].name);
        REQUIRE(function);
        memcpy(names[i].where, &function, sizeof function);
    }
    return library;
}

static bool is_loaded(void)
{
    void *library = dlopen(library_path, RTLD_NOW | RTLD_NOLOAD);
    if (library)
        dlclose(library);
    return library != NULL;
}

static void open_card(struct scene *scene)
{
    char path[600];
    struct sim_shape shape = scene_card(CARD);
    build_folder(path);
    strcat(path, "sim/libcuda.so.1");
    setenv("CENOTE_DRIVER", path, 1);
    scene_open_card(scene, &shape);
}

static unsigned count_entries(const char *path)
{
    DIR *folder = opendir(path);
    unsigned count = 0;
    REQUIRE(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

static unsigned count_lines(const char *path)
{
    FILE *file = fopen(path, "r");
    unsigned count = 0;
    REQUIRE(file);
    for (int c; (c = fgetc(file)) != EOF;)
        count += c == '\n';
    fclose(file);
    return count;
}

struct weight {
    unsigned threads, files, mappings;
};

static struct weight weight_now(void)
{
    return (struct weight){count_entries("/proc/self/task"), count_entries("/proc/self/fd"), count_lines("/proc/self/maps")};
}

static void expect_no_more(struct weight before)
{
    struct weight after = weight_now();
    EXPECT(after.threads <= before.threads);
    EXPECT(after.files <= before.files);
    EXPECT(after.mappings < before.mappings + MAPPINGS_MOST);
    if (after.mappings >= before.mappings + MAPPINGS_MOST)
        printf("%u mappings, then %u\n", before.mappings, after.mappings);
}

/* What asks nothing of the driver leaves nothing: the library really goes. */
ENDS_WITH(before_anything_was_asked, 0)
{
    struct weight before = {0};
    for (int i = 0; i < ROUNDS; i++) {
        void *library = load();
        EXPECT_EQ(its.version(), CENOTE_VERSION);
        EXPECT(its.give(&library) != CENOTE_OK && its.message()[0]);
        dlclose(library);
        EXPECT(!is_loaded());
        if (i == SETTLED)
            before = weight_now();
    }
    expect_no_more(before);
}

/* A fork has no handlers left in memory that is not there any more. */
ENDS_WITH(a_fork_after_it_is_gone, 0)
{
    void *library = load();
    DONE(its.tag("a"));
    dlclose(library);
    EXPECT(!is_loaded());
    EXPECT_EQ(system("true"), 0);
}

static cenote_pool *new_pool(void)
{
    cenote_pool *pool = NULL;
    DONE(its.create(0, NULL, &pool, 0));
    REQUIRE(pool);
    return pool;
}

static void come_and_go(cenote_pool *pool, CUstream stream)
{
    void *block = NULL;
    DONE(its.alloc(pool, 5 * MIB, stream, &block));
    DONE(sim_launch_fill(stream, device_address(block), 7, 5 * MIB));
    DONE(its.give(block));
}

/* From the first pool on it stays, and the next load finds it as it was: nothing is there twice, and nothing grows. */
ENDS_WITH(with_its_pools_gone, 0)
{
    struct scene scene;
    struct weight before = {0};
    open_card(&scene);
    for (int i = 0; i < ROUNDS; i++) {
        void *library = load();
        cenote_pool *pool = new_pool();
        come_and_go(pool, scene.stream[A]);
        DONE(its.destroy(pool));
        dlclose(library);
        EXPECT(is_loaded());
        if (i == SETTLED)
            before = weight_now();
    }
    expect_no_more(before);
    scene_close(&scene);
}

/* Blocks in use, a fence outstanding, blocks that wait for a stream: they are there after it, and can be given back. */
ENDS_WITH(with_live_pools, 0)
{
    struct scene scene;
    struct held held;
    void *block = NULL;
    open_card(&scene);
    void *library = load();
    cenote_pool *pool = new_pool();
    DONE(its.alloc(pool, 20 * MIB, scene.stream[A], &block));
    held = held_of(block, 20 * MIB, scene.stream[A]);
    DONE(sim_launch_wait(scene.stream[A], 10 * MSEC));
    come_and_go(pool, scene.stream[A]);
    DONE(its.alloc(pool, MIB, scene.stream[A], &block));
    DONE(its.use(block, scene.stream[B]));
    DONE(sim_launch_wait(scene.stream[B], 10 * MSEC));
    DONE(its.give(block));
    DONE(its.trim(pool, 0, 0));
    dlclose(library);

    library = load();
    DONE(its.check(pool));
    held_expect(&held, scene.stream[A]);
    DONE(its.give(held.at));
    come_and_go(pool, scene.stream[B]);
    DONE(its.destroy(pool));
    dlclose(library);
    scene_close(&scene);
}

/* Its threads run on: the one that answers importers, and the one that gives back what has decayed. */
ENDS_WITH(with_its_threads_at_work, 0)
{
    struct scene scene;
    cenote_share share;
    void *block = NULL;
    struct weight before = {0};
    setenv("CENOTE_CONF", "page_mib:2,announced:1,decay_ms:1,background:1", 1);
    open_card(&scene);
    for (int i = 0; i < ROUNDS; i++) {
        void *library = load();
        cenote_pool *pool = new_pool();
        come_and_go(pool, scene.stream[A]);
        DONE(its.alloc(pool, MIB, scene.stream[A], &block));
        DONE(its.share(block, &share));
        dlclose(library);
        usleep(2000); /* they run code of it */
        library = load();
        DONE(its.give(block));
        DONE(its.destroy(pool));
        dlclose(library);
        if (i == SETTLED)
            before = weight_now();
    }
    expect_no_more(before);
    EXPECT(before.threads >= 2 + 3); /* "." and "..", main and two of ours */
    scene_close(&scene);
}

/* At exit its handlers run, although it was closed. */
ENDS_WITH(closed_and_then_the_process_ends, 0)
{
    struct scene scene;
    void *block = NULL;
    open_card(&scene);
    void *library = load();
    cenote_pool *pool = new_pool();
    DONE(its.alloc(pool, MIB, scene.stream[A], &block));
    dlclose(library);
}

PROCESSES_MAIN("unloading")
