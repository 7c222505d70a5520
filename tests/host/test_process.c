/* test_process.c: forks, and the end of the process. Every case runs in a child, because it ends it; this process never loads the driver. */
#include "tests/host/pinned.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/patience.h"

/* The exit status of a child that runs `body`; 128 and more: a signal. */
static int status_of(void (*body)(void))
{
    pid_t child = fork();
    if (!child) {
        alarm(patience(60));
        body();
        exit(CU_get_number_of_failures() ? 1 : 0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* A thread gives back what it kept when it ends, by a key of its own: another library's key is never taken for that. */
static void has_no_keys(void)
{
    struct scene scene;
    pthread_key_t key, last = 0;
    void *block;
    while (!pthread_key_create(&key, NULL))
        last = key;
    struct sim_shape shape = scene_card(64 * MIB);
    scene_open_card(&scene, &shape);
    EXPECT_EQ(cenote_host_alloc(0, 100, &block), CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT(strstr(cenote_host_message(), "keys"));
    pthread_key_delete(last);
    DONE(cenote_host_alloc(0, 100, &block));
    DONE(cenote_host_free(block));
    pinned_close(&scene);
}

CASE(a_process_has_no_keys_left)
{
    EXPECT_EQ(status_of(has_no_keys), 0);
}

static char *inherited;

/* A child of a process that uses the GPU can do nothing, and harms nothing. */
static void in_the_fork(void)
{
    void *block = NULL;
    cenote_host_block found;
    cenote_host_stats stats;
    EXPECT_EQ(cenote_host_alloc(0, 100, &block), CENOTE_FORKED);
    EXPECT(strstr(cenote_host_message(), "spawn"));
    EXPECT_EQ(cenote_host_free(inherited), CENOTE_FORKED);
    EXPECT_EQ(cenote_host_find(inherited, &found), CENOTE_FORKED);
    EXPECT_EQ(cenote_host_use(inherited, 0, NULL), CENOTE_FORKED);
    EXPECT_EQ(cenote_host_trim(0, 0), CENOTE_FORKED);
    EXPECT_EQ(cenote_host_node_stats(-1, &stats), CENOTE_FORKED);
    EXPECT_EQ(cenote_host_close(), CENOTE_FORKED);
    EXPECT_EQ(cenote_host_open(NULL), CENOTE_FORKED);
    DONE(cenote_host_step());
    EXPECT_EQ(cenote_host_report(NULL, 0), 0);
}

static void forks(void)
{
    struct scene scene;
    pinned_open(&scene);
    inherited = pinned_take(3000);
    memset(inherited, 3, 3000);
    EXPECT_EQ(status_of(in_the_fork), 0);
    EXPECT_EQ(inherited[2999], 3);
    DONE(cenote_host_free(inherited));
    pinned_close(&scene);
}

CASE(a_fork_is_refused)
{
    EXPECT_EQ(status_of(forks), 0);
}

/* Until memory is asked for, nothing of the driver has been touched. */
static void only_opened(void)
{
    DONE(cenote_host_open(NULL));
    EXPECT_EQ(status_of(forks), 1); /* open already */
    DONE(cenote_host_close());
    EXPECT_EQ(status_of(forks), 0);
}

CASE(a_process_that_has_only_opened_may_fork)
{
    EXPECT_EQ(status_of(only_opened), 0);
}

static atomic_bool enough;

static void *open_and_close(void *arg)
{
    while (!atomic_load(&enough)) {
        (void)!cenote_host_open(NULL);
        (void)!cenote_host_close();
    }
    return arg;
}

/* It may be open already, by the thread that is not there. */
static void opens(void)
{
    int error = cenote_host_open(NULL);
    EXPECT(!error || error == CENOTE_BUSY);
}

static void forks_while_it_is_opened(void)
{
    pthread_t other;
    REQUIRE_EQ(pthread_create(&other, NULL, open_and_close, NULL), 0);
    for (int i = 0; i < 100; i++)
        EXPECT_EQ(status_of(opens), 0);
    atomic_store(&enough, true);
    pthread_join(other, NULL);
}

CASE(a_process_may_fork_while_another_thread_opens)
{
    pinned_write_machine_down();
    FORKS_BESIDE_THREADS();
    EXPECT_EQ(status_of(forks_while_it_is_opened), 0);
}

static void *read_for_ever(void *arg)
{
    cenote_host_stats stats;
    while (!atomic_load(&enough))
        (void)!(cenote_host_node_stats(-1, &stats) || cenote_host_reset_peaks() || cenote_host_trim(0, 0));
    return arg;
}

static void reads_once(void)
{
    cenote_host_stats stats;
    alarm(patience(10));
    DONE(cenote_host_node_stats(-1, &stats));
    DONE(cenote_host_trim(0, 0));
}

static void forks_while_it_is_read(void)
{
    pthread_t other;
    atomic_store(&enough, false);
    DONE(cenote_host_open(NULL));
    REQUIRE_EQ(pthread_create(&other, NULL, read_for_ever, NULL), 0);
    for (int i = 0, ends = 0; i < 300 && !ends; i++)
        EXPECT_EQ(ends = status_of(reads_once), 0);
    atomic_store(&enough, true);
    pthread_join(other, NULL);
}

/* What is open goes on in a child, whatever another thread had in hand. */
CASE(a_process_may_fork_while_another_thread_reads)
{
    FORKS_BESIDE_THREADS();
    EXPECT_EQ(status_of(forks_while_it_is_read), 0);
}

struct worker { pthread_t thread; struct scene *scene; };

static void *work_for_ever(void *arg)
{
    struct worker *w = arg;
    cuCtxSetCurrent(w->scene->context);
    for (uint64_t i = 1; !atomic_load(&enough); i++) {
        void *block = NULL;
        bool fails = cenote_host_alloc(0, i % 7 ? 500 * i % 40000 + 1 : 3 * MIB, &block) || cenote_host_use(block, 0, w->scene->stream[A]) ||
                     cenote_host_free(block) || (i % 50 == 0 && cenote_host_trim(0, 0));
        EXPECT(!fails);
    }
    return NULL;
}

/* Whatever the threads had in hand that are not there. */
static void forks_beside_work(void)
{
    struct scene scene;
    struct worker worker[3];
    atomic_store(&enough, false);
    pinned_open(&scene);
    inherited = pinned_take(3000);
    for (int i = 0; i < 3; i++) {
        worker[i].scene = &scene;
        REQUIRE_EQ(pthread_create(&worker[i].thread, NULL, work_for_ever, &worker[i]), 0);
    }
    for (int i = 0, ends = 0; i < 60 && !ends; i++)
        EXPECT_EQ(ends = status_of(in_the_fork), 0);
    atomic_store(&enough, true);
    for (int i = 0; i < 3; i++)
        pthread_join(worker[i].thread, NULL);
    DONE(cenote_host_free(inherited));
    pinned_close(&scene);
}

CASE(a_process_may_fork_while_other_threads_work)
{
    FORKS_BESIDE_THREADS();
    EXPECT_EQ(status_of(forks_beside_work), 0);
}

static char *last;

/* Runs after the library has been told that the process exits, because it was there before. */
static void after_us(void)
{
    void *block;
    bool right = cenote_host_alloc(0, 100, &block) == CENOTE_EXITING && !cenote_host_free(last) && !cenote_host_step() && !cenote_host_trim(0, 1) &&
                 cenote_host_close() == CENOTE_EXITING;
    _exit(right ? 7 : 8);
}

static void exits(void)
{
    struct scene scene;
    atexit(after_us);
    pinned_open(&scene);
    last = pinned_take(100 * KIB);
    char *flying = pinned_take(100 * KIB);
    DONE(sim_launch_wait(scene.stream[A], 10 * MSEC));
    DONE(cenote_host_use(flying, 0, scene.stream[A]));
    DONE(cenote_host_free(flying));
    DONE(cenote_host_use(last, 0, scene.stream[A]));
}

CASE(a_process_exits_with_blocks_in_flight)
{
    EXPECT_EQ(status_of(exits), 7);
}

SUITE_MAIN("process")
