/*
 * test_forks.c: forks before cenote's first call, after it, and at any moment of other threads' work inside it. A child is told, waits for
 * no thread, and leaves by any road without harm to the parent.
 */
#include <cenote/share.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>

#include "tests/processes/process.h"

extern char **environ;

static struct scene scene;
static struct held  kept[4];

/* A whole life: pool, blocks, contents, and nothing left. */
static void live(void)
{
    struct scene own;
    scene_open(&own, CARD);
    struct held a, b;
    EXPECT(held_take(&a, own.pool, 5 * MIB, own.stream[A]));
    EXPECT(held_take(&b, own.pool, 300, own.stream[B]));
    held_give(&a);
    held_give(&b);
    scene_close(&own);
}

/* Options are read, tags pushed, and nothing has been asked of the driver: the first process that asks has it. */
ENDS_WITH(before_the_first_call_both_may_go_on, 0)
{
    cenote_options options;
    DONE(cenote_options_default(&options));
    DONE(cenote_tag_push("before"));
    EXPECT_EQ(status_of(live), 0);
    EXPECT_EQ(status_of(live), 0);
    live();
}

static void refused_everything(void)
{
    cenote_pool *pool;
    cenote_stats stats;
    cenote_block found;
    cenote_share share = {{0}};
    void *block;
    char text[64];
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, scene.stream[A], &block), CENOTE_FORKED);
    EXPECT(strstr(cenote_message(), "spawn"));
    EXPECT_EQ(cenote_free(kept[0].at), CENOTE_FORKED);
    EXPECT_EQ(cenote_use(kept[0].at, scene.stream[B]), CENOTE_FORKED);
    EXPECT_EQ(cenote_find(kept[0].at, &found), CENOTE_FORKED);
    EXPECT_EQ(cenote_export(kept[0].at, &share), CENOTE_FORKED);
    EXPECT_EQ(cenote_import(&share, sizeof share, 0, &block), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_trim(scene.pool, 0, 0), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_stats(scene.pool, &stats), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_check(scene.pool), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_create(0, NULL, &pool), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_default(0, &pool), CENOTE_FORKED);
    EXPECT_EQ(cenote_site_text(1, text, sizeof text), 0);
    EXPECT(cenote_pool_explain(scene.pool, 0, text, sizeof text) > 0);
}

/* A call that asks no pool anything is served, whichever thread was in the middle of it. */
static void served_words(void)
{
    char name[32];
    cenote_options options;
    DONE(cenote_options_default(&options));
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "child-%d-%d", (int)getpid(), i);
        DONE(cenote_tag_push(name));
    }
    for (int i = 0; i < 4; i++)
        DONE(cenote_tag_pop());
    DONE(cenote_phase_set(0));
    DONE(cenote_free(NULL));
}

static bool at_once;

static void the_child(void)
{
    alarm(patience(20));
    refused_everything();
    served_words();
    if (at_once)
        _exit(failures_said());
}

static cenote_options busy_options(void)
{
    cenote_options options = scene_options();
    options.decay_ms = 1;
    options.background = 1;
    options.sites = 4;
    options.record = 1000;
    return options;
}

static void open_family(void)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = busy_options();
    cenote_share share;
    shape.devices = 2;
    scene_open_with(&scene, &shape, &options);
    for (int i = 0; i < 4; i++)
        kept[i] = take_one(&scene, (size_t)(i + 1) * 1100 * KIB);
    DONE(cenote_export(kept[1].at, &share)); /* there is a thread that answers, too */
}

static void close_family(void)
{
    for (int i = 0; i < 4; i++)
        held_give(&kept[i]);
    scene_close(&scene);
}

/* The driver's books of the parent are what they were, whatever a child does at its end. */
static void fork_and_compare(void)
{
    struct sim_books before, after;
    cenote_stats stats = scene_stats(scene.pool);
    sim_books(&before);
    EXPECT_EQ(status_of(the_child), 0);
    sim_books(&after);
    EXPECT_EQ(after.used, before.used);
    EXPECT_EQ(after.mappings, before.mappings);
    EXPECT_EQ(after.handles, before.handles);
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.contexts, before.contexts);
    EXPECT_EQ(scene_stats(scene.pool).requested.current, stats.requested.current);
}

ENDS_WITH(after_the_first_call, 0)
{
    FORKS_BESIDE_THREADS();
    open_family();
    at_once = false;
    fork_and_compare();
    at_once = true;
    fork_and_compare();
    close_family();
}

static void forks_again(void)
{
    the_child();
    EXPECT_EQ(status_of(the_child), 0);
}

ENDS_WITH(a_child_of_a_child, 0)
{
    FORKS_BESIDE_THREADS();
    open_family();
    EXPECT_EQ(status_of(forks_again), 0);
    close_family();
}

static int files[32];

static void still_has_its_files(void)
{
    for (int i = 0; i < 32; i++)
        EXPECT(files[i] >= 0 && fcntl(files[i], F_GETFD) >= 0);
}

/* The first free numbers: that of a descriptor of ours, closed at the fork, is among them. */
static void opens_files_and_forks(void)
{
    for (int i = 0; i < 32; i++)
        files[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(status_of(still_has_its_files), 0);
}

ENDS_WITH(a_child_of_a_child_has_its_files, 0)
{
    FORKS_BESIDE_THREADS();
    open_family();
    EXPECT_EQ(status_of(opens_files_and_forks), 0);
    close_family();
}

/* What becomes another program was a fork for a moment. */
ENDS_WITH(other_programs_are_started, 0)
{
    FORKS_BESIDE_THREADS();
    char *arguments[] = {"true", NULL};
    pid_t child = 0;
    int status = -1;
    open_family();
    EXPECT_EQ(system("true"), 0);
    EXPECT(!posix_spawnp(&child, "true", NULL, NULL, arguments, environ));
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    FILE *pipe = popen("echo forked", "r");
    char line[16] = "";
    EXPECT(pipe && fgets(line, sizeof line, pipe) && !strcmp(line, "forked\n") && !pclose(pipe));
    close_family();
}

/* ------------------------------------------------------------------------------------------------- while others are inside of cenote */

static atomic_bool over;

/* In and out of every lock: blocks, trims, pools that come and go, new names, sites, questions. */
static void *work(void *number)
{
    uintptr_t n = (uintptr_t)number;
    char name[32], text[256];
    cuCtxSetCurrent(scene.context);
    for (unsigned i = 0; !atomic_load(&over); i++) {
        void *block = NULL;
        cenote_pool *pool = NULL;
        cenote_options options = scene_options();
        snprintf(name, sizeof name, "t%u-%u", (unsigned)n, i % 2500);
        cenote_tag_push(name);
        if (!cenote_alloc(scene.pool, (1 + i % 63) * 200 * KIB, scene.stream[n % SCENE_STREAMS], &block)) {
            cenote_use(block, scene.stream[(n + 1) % SCENE_STREAMS]);
            cenote_free(block);
        }
        cenote_tag_pop();
        if (i % 8 == n)
            cenote_pool_trim(scene.pool, 0, 0);
        if (i % 16 == n && !cenote_pool_create(1, &options, &pool))
            cenote_pool_destroy(pool);
        if (i % 4 == n)
            cenote_pool_explain(scene.pool, MIB, text, sizeof text);
        cenote_site_text(1 + i % 20, text, sizeof text);
        sim_advance(MSEC / 10);
    }
    return NULL;
}

ENDS_WITH(while_others_are_inside, 0)
{
    FORKS_BESIDE_THREADS();
    pthread_t threads[3];
    open_family();
    for (uintptr_t i = 0; i < 3; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, work, (void *)i));
    for (int i = 0; i < 60; i++) {
        at_once = i % 2;
        usleep((useconds_t)(i * 37 % 900));
        EXPECT_EQ(status_of(the_child), 0);
    }
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    close_family();
}

/* The same with traces to be written at the end: a child writes none. */
ENDS_WITH(while_others_are_inside_and_traces_are_written, 0)
{
    setenv("CENOTE_TRACE", "/dev/null", 1);
    while_others_are_inside_in_a_child();
}

static atomic_uint names;

/* New names as fast as they can be had: in and out of one lock. */
static void *name_things(void *unused)
{
    char name[32];
    while (!atomic_load(&over)) {
        snprintf(name, sizeof name, "n%u", atomic_fetch_add(&names, 1));
        if (cenote_tag_push(name))
            break;
        cenote_tag_pop();
    }
    return unused;
}

static void name_one(void)
{
    alarm(patience(10));
    int error = cenote_tag_push("of the child");
    EXPECT(error == CENOTE_OK || error == CENOTE_OUT_OF_HOST_MEMORY); /* the others may have had the last */
    _exit(failures_said());
}

/* There is room for so many names only: that is over soon. */
static void a_short_while(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, name_things, NULL));
    for (int i = 0, ends = 0; i < 200 && !ends && atomic_load(&names) < CENOTE_TAGS_MAX / 2; i++)
        EXPECT_EQ(ends = status_of(name_one), 0);
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

CASE(while_others_name_things)
{
    FORKS_BESIDE_THREADS();
    for (int i = 0, ends = 0; i < 60 && !ends; i++)
        EXPECT_EQ(ends = status_of(a_short_while), 0);
}

/* The first call of other threads, which loads the driver: a child has it or is told, and hangs nowhere. */
static void *first_call(void *unused)
{
    cenote_pool *pool;
    cenote_pool_default(0, &pool);
    return unused;
}

static void child_of_a_start(void)
{
    cenote_pool *pool = NULL;
    void *block = NULL;
    alarm(patience(20));
    int error = cenote_pool_default(0, &pool);
    EXPECT(error == CENOTE_OK || error == CENOTE_FORKED);
    if (!error)
        DONE(cenote_alloc(pool, MIB, NULL, &block));
    DONE(cenote_free(block));
}

/* Questions of a process that has no driver yet, each in and out of a lock. */
static void ask_in_vain(void)
{
    cenote_block found;
    char text[64];
    int mine;
    EXPECT_EQ(cenote_free(&mine), CENOTE_NOT_OURS);
    EXPECT_EQ(cenote_find(&mine, &found), CENOTE_NOT_OURS);
    EXPECT_EQ(cenote_import_close(&mine), CENOTE_NOT_OURS);
    EXPECT_EQ(cenote_site_text(1, text, sizeof text), 0);
    DONE(cenote_on_moment(NULL, NULL));
}

static void *ask_for_ever(void *unused)
{
    while (!atomic_load(&over))
        ask_in_vain();
    return unused;
}

static void ask_once(void)
{
    alarm(patience(10));
    ask_in_vain();
    _exit(failures_said());
}

static void forks_while_others_ask(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, ask_for_ever, NULL));
    for (int i = 0, ends = 0; i < 300 && !ends; i++)
        EXPECT_EQ(ends = status_of(ask_once), 0);
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

CASE(while_others_ask_before_the_first_call)
{
    FORKS_BESIDE_THREADS();
    EXPECT_EQ(status_of(forks_while_others_ask), 0);
}

static unsigned pause_us;

static void start_and_fork(void)
{
    pthread_t thread;
    struct sim_shape shape = scene_card(CARD);
    sim_reset(&shape);
    REQUIRE(!pthread_create(&thread, NULL, first_call, NULL));
    if (pause_us)
        usleep(pause_us);
    EXPECT_EQ(status_of(child_of_a_start), 0);
    pthread_join(thread, NULL);
    child_of_a_start(); /* the parent has its pool */
}

CASE(while_another_thread_makes_the_first_call)
{
    FORKS_BESIDE_THREADS();
    for (unsigned i = 0; i < 40; i++) {
        pause_us = i * 7;
        EXPECT_EQ(status_of(start_and_fork), 0);
    }
}

PROCESSES_MAIN("forks")
