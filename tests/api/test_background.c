/*
 * test_background.c: the thread that gives back what has decayed: what it does, how it behaves among the program's threads, and what becomes
 * of it. Every case runs in a child, because a process has one such thread and keeps it; this process never loads the driver.
 * The pools' clock is the simulated one, and its time passes while the cases wait for the thread.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "driver/driver.h"
#include "tests/api/scene.h"
#include "tests/patience.h"

#define CARD     (256 * MIB)
#define DECAY    8                  /* ms: the thread looks every millisecond */

/* The exit status of a child that runs `body`; 128 and more: a signal. */
static int status_of(void (*body)(void))
{
    unsigned before = CU_get_number_of_failures();
    pid_t child = fork();
    if (!child) {
        alarm(patience(60));
        body();
        if (CU_get_number_of_failures() > before)
            CU_basic_show_failures(CU_get_failure_list());
        fflush(NULL);
        exit(CU_get_number_of_failures() > before ? 1 : 0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

#define IN_A_CHILD(name)                        \
    static void name##_in_a_child(void);        \
    CASE(name)                                  \
    {                                           \
        EXPECT_EQ(status_of(name##_in_a_child), 0); \
    }                                           \
    static void name##_in_a_child(void)

static cenote_options background_options(void)
{
    cenote_options options = scene_options();
    options.decay_ms = DECAY;
    options.background = 1;
    return options;
}

static void open_attended(struct scene *scene)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = background_options();
    scene_open_with(scene, &shape, &options);
    EXPECT_EQ(scene_stats(scene->pool).background, 1);
}

static uint64_t reserved(cenote_pool *pool)
{
    return scene_stats(pool).reserved.current;
}

static void take_and_give(cenote_pool *pool, size_t bytes, CUstream stream)
{
    struct held held;
    REQUIRE(held_take(&held, pool, bytes, stream));
    held_give(&held);
}

static void let_pass(int ms)
{
    for (int i = 0; i < ms; i++) {
        sim_advance(MSEC);
        usleep(1000);
    }
}

/* Time passes until so much is reserved. False: it never is. */
static bool becomes(cenote_pool *pool, uint64_t bytes)
{
    for (struct wait wait = {0}; reserved(pool) != bytes && wait_on(&wait);)
        sim_advance(MSEC);
    return reserved(pool) == bytes;
}

/* The thread is nice: on a busy machine its turn comes later. */
static void until_a_fault_fires(void)
{
    for (struct wait wait = {0}; !fault_fired() && wait_on(&wait);)
        sim_advance(MSEC);
}

/* The number of our thread in the system, 0: there is none. */
static pid_t find_thread(void)
{
    char path[64], name[32] = "";
    pid_t found = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && !found && (task = readdir(tasks));) {
        snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (file && fgets(name, sizeof name, file) && !strcmp(name, "cenote\n"))
            found = atoi(task->d_name);
        if (file)
            fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return found;
}

/* Also when the thread sleeps for minutes as the pool is made, because of another one. */
IN_A_CHILD(gives_back_while_the_program_does_nothing)
{
    struct scene scene;
    struct held held;
    cenote_options options = background_options(), drowsy = options;
    struct sim_shape shape = scene_card(CARD);
    drowsy.decay_ms = 3600000;
    scene_open_with(&scene, &shape, &drowsy);
    cenote_pool *first = scene.pool;
    EXPECT(wait_until_asleep(find_thread()));
    DONE(cenote_pool_create(0, &options, &scene.pool));
    REQUIRE(held_take(&held, scene.pool, 6 * MIB, scene.stream[A]));
    take_and_give(scene.pool, 100 * MIB, scene.stream[B]);
    EXPECT(becomes(scene.pool, 6 * MIB));
    for (struct wait wait = {0}; scene_stats(scene.pool).decayed < 100 * MIB && wait_on(&wait);)
        ; /* it is counted after the pages have gone */
    EXPECT_EQ(scene_stats(scene.pool).decayed, 100 * MIB);
    held_give(&held);
    EXPECT(becomes(scene.pool, 0));
    DONE(cenote_pool_destroy(first));
    scene_close(&scene);
}

IN_A_CHILD(only_pools_with_the_option_are_looked_after)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.decay_ms = DECAY;
    scene_open_card(&scene, &shape);
    DONE(cenote_pool_create(0, &options, &scene.pool));
    EXPECT_EQ(scene_stats(scene.pool).background, 0);
    scene_destroy_pool(&scene);
    options.background = 1;
    options.decay_ms = 0; /* nothing to do */
    DONE(cenote_pool_create(0, &options, &scene.pool));
    EXPECT_EQ(scene_stats(scene.pool).background, 0);
    EXPECT_EQ(find_thread(), 0);
    scene_destroy_pool(&scene);
    options.decay_ms = DECAY;
    DONE(cenote_pool_create(0, &options, &scene.pool));
    EXPECT_EQ(scene_stats(scene.pool).background, 1);
    scene_destroy_pool(&scene);
    options.background = 0;
    DONE(cenote_pool_create(0, &options, &scene.pool)); /* where the one before was */
    EXPECT_EQ(scene_stats(scene.pool).background, 0);
    scene_close(&scene);
}

/* Signals that are sent to the process come to the program's threads; those of the C library itself cannot be blocked. */
static bool blocks(pid_t thread, int signal)
{
    char path[64], line[128];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)thread);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "SigBlk: %llx", &mask);
    if (file)
        fclose(file);
    return mask >> (signal - 1) & 1;
}

IN_A_CHILD(the_thread_is_nice_and_hears_no_signals)
{
    struct scene scene;
    int before = getpriority(PRIO_PROCESS, (id_t)getpid());
    open_attended(&scene);
    take_and_give(scene.pool, 20 * MIB, scene.stream[A]);
    EXPECT(becomes(scene.pool, 0));
    pid_t thread = find_thread();
    REQUIRE(thread);
    EXPECT_EQ(getpriority(PRIO_PROCESS, (id_t)thread), 10);
    EXPECT_EQ(getpriority(PRIO_PROCESS, (id_t)getpid()), before);
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGALRM, SIGPROF, SIGUSR1, SIGUSR2, SIGPIPE, SIGSEGV};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        EXPECT(blocks(thread, signals[i]) && !blocks(getpid(), signals[i]));
    scene_close(&scene);
}

/* -------------------------------------------------------------------------------------------------------------- near the device */

/* A machine with two processors in two packages: device 0 (bus 01) hangs on the second, device 1 (bus 02) on the first. */
#define TOPOLOGY "tests/api/two-processors.xml"

static cpu_set_t only(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    return set;
}

/* Makes the thread look after a pool of that device, and says whether it is on that processor alone then. */
static bool visits_from(int device, int processor)
{
    cenote_options options = background_options();
    cenote_pool *pool = NULL;
    cpu_set_t wanted = only(processor), found;
    void *block = NULL;
    DONE(cenote_pool_create(device, &options, &pool));
    DONE(cenote_alloc(pool, 20 * MIB, NULL, &block));
    DONE(cenote_free(block));
    EXPECT(becomes(pool, 0));
    CPU_ZERO(&found);
    EXPECT_EQ(sched_getaffinity(find_thread(), sizeof found, &found), 0);
    DONE(cenote_pool_destroy(pool));
    return CPU_EQUAL(&wanted, &found);
}

static void see_two_processors(struct scene *scene, bool this_machine)
{
    struct sim_shape shape = scene_card(CARD);
    shape.devices = 2;
    setenv("HWLOC_XMLFILE", TOPOLOGY, 1);
    setenv("HWLOC_THISSYSTEM", this_machine ? "1" : "0", 1);
    scene_open_card(scene, &shape);
}

static bool has_two_processors(void)
{
    cpu_set_t mine;
    CPU_ZERO(&mine);
    EXPECT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
    return CPU_ISSET(0, &mine) && CPU_ISSET(1, &mine);
}

IN_A_CHILD(it_is_near_the_device_it_looks_after)
{
    struct scene scene;
    if (!has_two_processors()) {
        fprintf(stderr, "(this process may not use processors 0 and 1: not tried) ");
        return;
    }
    see_two_processors(&scene, true);
    EXPECT(visits_from(0, 1));
    EXPECT(visits_from(1, 0));
    EXPECT(visits_from(0, 1));
    cpu_set_t mine;
    EXPECT(!sched_getaffinity(0, sizeof mine, &mine) && CPU_COUNT(&mine) >= 2); /* the program's own threads stay where they are */
    scene_close(&scene);
}

IN_A_CHILD(it_stays_where_the_process_may_be)
{
    struct scene scene;
    cpu_set_t first = only(0);
    if (!has_two_processors())
        return;
    EXPECT_EQ(sched_setaffinity(0, sizeof first, &first), 0);
    see_two_processors(&scene, true);
    EXPECT(visits_from(0, 0));
    EXPECT(visits_from(1, 0));
    scene_close(&scene);
}

IN_A_CHILD(another_machine_is_no_guide)
{
    struct scene scene;
    if (!has_two_processors())
        return;
    see_two_processors(&scene, false);
    EXPECT(!visits_from(0, 1));
    EXPECT(!visits_from(1, 0));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------- what can go wrong */

/* The first demand for memory after which the pool is there all the same is that of the thread. */
IN_A_CHILD(the_system_gives_no_thread)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = background_options();
    scene_open_card(&scene, &shape);
    int error = CENOTE_OUT_OF_HOST_MEMORY;
    for (uint64_t nth = 1; error && nth < 100; nth++) {
        memory_fail(nth, false);
        error = cenote_pool_create(0, &options, &scene.pool);
        EXPECT(!error || error == CENOTE_OUT_OF_HOST_MEMORY);
    }
    EXPECT_EQ(memory_failed(), 1);
    memory_fail(0, false);
    REQUIRE(!error);
    EXPECT_EQ(scene_stats(scene.pool).background, 0);
    EXPECT(strstr(cenote_message(), "no background thread"));
    EXPECT_EQ(find_thread(), 0);
    take_and_give(scene.pool, 20 * MIB, scene.stream[A]);
    for (int i = 0; i < 3 * DECAY; i++) {
        sim_advance(MSEC);
        DONE(cenote_pool_step(scene.pool));
    }
    EXPECT_EQ(reserved(scene.pool), 0);
    scene_destroy_pool(&scene);
    DONE(cenote_pool_create(0, &options, &scene.pool)); /* the next one has it */
    EXPECT_EQ(scene_stats(scene.pool).background, 1);
    take_and_give(scene.pool, 20 * MIB, scene.stream[A]);
    EXPECT(becomes(scene.pool, 0));
    scene_close(&scene);
}

IN_A_CHILD(no_memory_for_anything)
{
    struct scene scene;
    open_attended(&scene);
    take_and_give(scene.pool, 20 * MIB, scene.stream[A]);
    memory_fail(1, true);
    EXPECT(becomes(scene.pool, 0));
    memory_fail(0, false);
    scene_close(&scene);
}

/* A refusal keeps the page; when the driver is willing again it goes. */
IN_A_CHILD(the_driver_refuses)
{
    static const char *const calls[] = {"cuMemUnmap", "cuMemRelease", "cuEventQuery", "cuCtxRecordEvent", "cuCtxPushCurrent", NULL};
    struct scene scene;
    struct held held;
    open_attended(&scene);
    for (int i = 0; i < 6; i++) {
        REQUIRE(held_take(&held, scene.pool, 60 * MIB, scene.stream[A]));
        fault_arm(calls[i], 1, CUDA_ERROR_UNKNOWN, true);
        held_give(&held);
        let_pass(5 * DECAY);
        until_a_fault_fires();
        EXPECT(fault_fired() > 0);
        EXPECT_EQ(reserved(scene.pool), 60 * MIB);
        fault_disarm();
        DONE(cenote_pool_check(scene.pool));
        EXPECT(becomes(scene.pool, 0));
    }
    scene_close(&scene);
}

/* The thread may hear of it first; the program does at its next call. */
IN_A_CHILD(the_context_is_lost)
{
    struct scene scene;
    void *block;
    open_attended(&scene);
    take_and_give(scene.pool, 60 * MIB, scene.stream[A]);
    fault_arm("cuEventQuery", 1, CUDA_ERROR_LAUNCH_FAILED, true);
    let_pass(5 * DECAY);
    until_a_fault_fires();
    EXPECT_EQ(fault_fired(), 1); /* and then it leaves the driver alone */
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, scene.stream[A], &block), CENOTE_DEVICE_LOST);
    EXPECT_EQ(reserved(scene.pool), 60 * MIB);
    DONE(cenote_pool_destroy(scene.pool));
    fault_disarm();
    scene_is_open = false;
}

IN_A_CHILD(not_during_a_capture)
{
    struct scene scene;
    cenote_group *group;
    CUgraph graph = NULL;
    open_attended(&scene);
    for (int round = 0; round < 10; round++) {
        take_and_give(scene.pool, 20 * MIB, scene.stream[B]);
        DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
        DONE(cenote_capture_begin(scene.pool, group, scene.stream[A]));
        DONE(cuStreamBeginCapture(scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
        uint64_t before = reserved(scene.pool);
        let_pass(3 * DECAY);
        EXPECT_EQ(reserved(scene.pool), before);
        DONE(cuStreamEndCapture(scene.stream[A], &graph)); /* it was not disturbed */
        DONE(cenote_capture_end(scene.pool, group, scene.stream[A]));
        DONE(cuGraphDestroy(graph));
        DONE(cenote_group_destroy(group));
    }
    EXPECT(becomes(scene.pool, 0));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------- among the program's threads */

static struct scene crowd;
static atomic_bool over;

static void *come_and_go(void *arg)
{
    CUstream stream = crowd.stream[(uintptr_t)arg % SCENE_STREAMS];
    DONE(cuCtxPushCurrent(crowd.context));
    for (int i = 0; i < 400; i++) {
        void *block = NULL;
        DONE(cenote_alloc(crowd.pool, (size_t)(i % 9 + 1) * MIB, stream, &block));
        DONE(cenote_use(block, crowd.stream[i % SCENE_STREAMS]));
        DONE(cenote_free(block));
        if (i % 16 == 0)
            DONE(cenote_pool_step(crowd.pool));
        if (i % 100 == 0)
            DONE(cenote_pool_trim(crowd.pool, 0, CENOTE_TRIM_WAIT));
    }
    DONE(cuCtxPopCurrent(NULL));
    return NULL;
}

static void *pass_time(void *unused)
{
    while (!atomic_load(&over)) {
        sim_advance(MSEC);
        usleep(200);
    }
    return unused;
}

/* Pools come and go while it is busy with others. */
static void *make_pools(void *unused)
{
    cenote_options options = background_options();
    for (int i = 0; i < 60; i++) {
        cenote_pool *pool = NULL;
        void *block = NULL;
        DONE(cenote_pool_create(0, &options, &pool));
        DONE(cenote_alloc(pool, 9 * MIB, crowd.stream[A], &block));
        EXPECT_EQ(cenote_pool_destroy(pool), CENOTE_BUSY);
        EXPECT_EQ(scene_stats(pool).background, 1);
        DONE(cenote_free(block));
        usleep((useconds_t)(i % 4) * 1000);
        DONE(cenote_pool_destroy(pool));
    }
    return unused;
}

IN_A_CHILD(in_a_crowd)
{
    pthread_t threads[5];
    open_attended(&crowd);
    REQUIRE(!pthread_create(&threads[0], NULL, pass_time, NULL));
    REQUIRE(!pthread_create(&threads[1], NULL, make_pools, NULL));
    for (uintptr_t i = 2; i < 5; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, come_and_go, (void *)i));
    for (int i = 1; i < 5; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&over, true);
    pthread_join(threads[0], NULL);
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_check(crowd.pool));
    EXPECT(becomes(crowd.pool, 0));
    scene_close(&crowd);
}

/* ------------------------------------------------------------------------------------------------------------------- fork, exit, unload */

static struct scene family;

/* Exits by the ordinary road, handlers and all. */
static void the_fork(void)
{
    void *block;
    alarm(patience(10));
    EXPECT_EQ(find_thread(), 0);
    EXPECT_EQ(cenote_alloc(family.pool, MIB, family.stream[A], &block), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_step(family.pool), CENOTE_FORKED);
    EXPECT_EQ(cenote_pool_destroy(family.pool), CENOTE_FORKED);
    cenote_options options = background_options();
    EXPECT_EQ(cenote_pool_create(0, &options, &family.pool), CENOTE_FORKED);
}

/* At any moment of the thread's work, and the parent goes on. */
IN_A_CHILD(forks)
{
    FORKS_BESIDE_THREADS();
    open_attended(&family);
    for (int i = 0; i < 20; i++) {
        take_and_give(family.pool, 60 * MIB, family.stream[A]);
        sim_advance(DECAY * MSEC);
        usleep((useconds_t)i * 200);
        EXPECT_EQ(status_of(the_fork), 0);
    }
    EXPECT(becomes(family.pool, 0));
    scene_close(&family);
}

static uint64_t driver_calls(void)
{
    struct driver_tally tallies[DRIVER_CALLS];
    uint64_t calls = 0;
    driver_tallies(tallies);
    for (int call = 0; call < DRIVER_CALLS; call++)
        calls += tallies[call].calls;
    return calls;
}

#define GIVES_UP_NS (1000 * MSEC) /* EXIT_PATIENCE in pool/life/life.h: so long the end of the process waits for the thread, and no longer */
static uint64_t began_to_exit;
static int exit_after_us;

/* Runs after the library has been told that the process exits, because it was there before. 9: a busy machine had the library give up its wait. */
static void after_us(void)
{
    uint64_t before = driver_calls(), waited = clock_ns() - began_to_exit;
    for (int i = 0; i < 30; i++) {
        sim_advance(DECAY * MSEC);
        usleep(1000);
    }
    bool quiet = driver_calls() == before && find_thread();
    _exit(quiet ? 7 : waited >= GIVES_UP_NS ? 9 : 8);
}

/* Calls of the driver take their time, so that most exits come in the middle of a batch. */
static void exits(void)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = background_options();
    shape.spend_cost = true;
    atexit(after_us);
    scene_open_with(&scene, &shape, &options);
    take_and_give(scene.pool, 200 * MIB, scene.stream[A]);
    while (scene_stats(scene.pool).pages_released == 0) {
        sim_advance(MSEC);
        usleep(100);
    }
    usleep((useconds_t)exit_after_us);
    began_to_exit = clock_ns();
    exit(0);
}

CASE(exits_in_the_middle_of_it)
{
    for (exit_after_us = 0; exit_after_us < 1200; exit_after_us += 100) {
        int status = 9;
        for (int tries = 0; status == 9 && tries < 10; tries++)
            status = status_of(exits);
        EXPECT_EQ(status, 7);
    }
}

/* A process that ends does not wait for it, and it does not hold the process. */
IN_A_CHILD(ends_with_pools_open)
{
    struct scene scene;
    open_attended(&scene);
    take_and_give(scene.pool, 100 * MIB, scene.stream[A]);
    EXPECT_EQ(scene_stats(scene.pool).background, 1);
}

/* The library that the thread runs in was unloaded, as far as the program knows. */
IN_A_CHILD(the_library_is_unloaded)
{
    char program[512], path[600];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    REQUIRE(length > 0);
    program[length] = 0;
    *strrchr(program, '/') = 0;
    *strrchr(program, '/') = 0;
    snprintf(path, sizeof path, "%s/sim/libcuda.so.1", program);
    setenv("CENOTE_DRIVER", path, 1);
    setenv("CENOTE_SIM", "capacity:1GiB", 1);
    setenv("CENOTE_CONF", "decay_ms:8,background:1,page_mib:2", 1);
    snprintf(path, sizeof path, "%s/libcenote.so", program);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library);
    int (*create)(int, const cenote_options *, cenote_pool **, size_t);
    int (*alloc)(cenote_pool *, size_t, cenote_stream, void **);
    int (*release)(void *);
    int (*stats)(cenote_pool *, cenote_stats *, size_t);
    *(void **)&create = dlsym(library, "cenote_pool_create");
    *(void **)&alloc = dlsym(library, "cenote_alloc");
    *(void **)&release = dlsym(library, "cenote_free");
    *(void **)&stats = dlsym(library, "cenote_pool_stats");
    cenote_pool *pool;
    void *block;
    DONE(create(0, NULL, &pool, 0));
    DONE(alloc(pool, 20 * MIB, NULL, &block));
    DONE(release(block));
    dlclose(library);
    cenote_stats s;
    struct wait wait = {0};
    do
        DONE(stats(pool, &s, sizeof s));
    while (s.reserved.current && wait_on(&wait));
    EXPECT_EQ(s.background, 1);
    EXPECT_EQ(s.reserved.current, 0);
    EXPECT(find_thread());
}

SCENES_MAIN("background")
