/*
 * test_explain_gaps.c: explanations where something cannot be asked: the driver fails, is lost, or goes; the management library has odd answers;
 * many threads fail at once.
 */
#include "tests/api/explain.h"

#include <pthread.h>

#include "driver/nvml.h"

/* ------------------------------------------------------------------------------------------------------------------ what cannot be asked */

static int refuse_to_begin(void)
{
    return 0;
}

static int find_device(const char *bus, void **device)
{
    EXPECT(bus[0] != 0);
    *device = NULL;
    return 0;
}

static int tell_memory(void *device, struct nvml_memory *memory)
{
    (void)device;
    *memory = (struct nvml_memory){CARD, 0, CARD};
    return 0;
}

static struct {
    int result;
    unsigned count;
    struct nvml_process list[20];
} listed;

static int list_computing(void *device, unsigned *count, struct nvml_process *list)
{
    (void)device;
    if (listed.result)
        return listed.result;
    memcpy(list, listed.list, sizeof listed.list);
    *count = listed.count;
    return 0;
}

/* The same as those that compute, as a desktop's are. */
static int list_drawing(void *device, unsigned *count, struct nvml_process *list)
{
    return list_computing(device, count, list);
}

static const char *put_into_words(int result)
{
    return result == 4 ? "Insufficient Permissions" : "Success";
}

static const struct nvml fake = {refuse_to_begin, find_device, tell_memory, list_computing, list_drawing, put_into_words};

CASE(management_library_with_other_answers)
{
    struct scene scene;
    struct held held;
    unsigned me = (unsigned)getpid();
    open_scene(&scene, NULL);
    REQUIRE(held_take(&held, scene.pool, 100 * MIB, scene.stream[A]));
    nvml_interpose(&fake);

    listed.result = 4; /* a divided device, no rights */
    explain_now(scene.pool);
    EXPECT(says("32.00 MiB  not told apart: contexts, other allocators, other processes. NVML does not tell: Insufficient Permissions; "));
    EXPECT(says("; 32.00 MiB was in use before cenote took anything"));
    EXPECT(keeps_quiet_of("this process has"));

    listed.result = 0; /* a container: ids of the host, and one of them is pid 1 here */
    listed.count = 2;
    listed.list[0] = (struct nvml_process){1, 132 * MIB, UINT32_MAX, UINT32_MAX};
    listed.list[1] = (struct nvml_process){me + 1000000, 300 * MIB, UINT32_MAX, UINT32_MAX};
    explain_now(scene.pool);
    EXPECT(says("ids of another namespace (container)"));
    EXPECT(says("132.00 MiB  of the list: process 1"));
    EXPECT(keeps_quiet_of("process 1 ("));
    EXPECT(keeps_quiet_of("kill"));

    listed.list[0] = (struct nvml_process){me, 132 * MIB, 7, 0}; /* MIG: another instance does not concern us */
    listed.list[1] = (struct nvml_process){me + 1000000, 300 * MIB, 8, 0};
    explain_now(scene.pool);
    EXPECT(says("this process has 132.00 MiB memory in use"));
    EXPECT(keeps_quiet_of("300.00 MiB"));

    listed.count = 20; /* more than are told one by one */
    for (unsigned i = 1; i < listed.count; i++)
        listed.list[i] = (struct nvml_process){me + 1000000 + i, i % 2 ? NVML_UNKNOWN : MIB, 7, 0};
    explain_now(scene.pool);
    EXPECT(says(" more"));

    listed.count = 3; /* amounts that are not told */
    listed.list[0].bytes = NVML_UNKNOWN;
    listed.list[1] = (struct nvml_process){me + 1000000, NVML_UNKNOWN, 7, 0};
    listed.list[2] = (struct nvml_process){me + 1000001, 5 * MIB, 7, 0};
    explain_now(scene.pool);
    EXPECT(says("     not known  process"));
    EXPECT(says(", which has ended: the driver has not let go yet"));
    EXPECT(says("5.00 MiB  process"));
    EXPECT(says("this process is not in NVML's list"));
    nvml_interpose(NULL);
    held_give(&held);
    scene_close(&scene);
}

/* Nothing is ours yet: the processes that are listed are others. */
CASE(strangers_beside_an_empty_pool)
{
    struct scene scene;
    open_scene(&scene, NULL);
    nvml_interpose(&fake);
    listed.result = 0;
    listed.count = 1;
    listed.list[0] = (struct nvml_process){(unsigned)getpid() + 1000000, 300 * MIB, 7, 0};
    explain_now(scene.pool);
    EXPECT(keeps_quiet_of("container"));
    EXPECT(says("300.00 MiB"));
    nvml_interpose(NULL);
    EXPECT(cenote_pool_explain(scene.pool, 0, NULL, 100) > 0);
    EXPECT_EQ(cenote_pool_set_user(scene.pool, "caf\xc3\xa9"), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_set_user(scene.pool, "del\x7f"), CENOTE_INVALID);
    scene_close(&scene);
}

/* A private group that was destroyed keeps its live blocks, and nothing of it is idle. */
CASE(a_group_that_is_gone_and_its_block_is_not)
{
    struct scene scene;
    cenote_group *group;
    void *block = NULL;
    open_scene(&scene, NULL);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 100 * MIB, 512, scene.stream[A], &block));
    DONE(cenote_group_destroy(group));
    explain_now(scene.pool);
    EXPECT(says("100.00 MiB in 1 block"));
    EXPECT(says("100.00 MiB allocated in groups"));
    EXPECT(says("0 bytes  unexplained"));
    DONE(cenote_free(block));
    scene_close(&scene);
}

CASE(each_call_fails_while_it_explains)
{
    struct scene scene;
    struct held held;
    uint64_t nth = 0, fired;
    open_scene(&scene, NULL);
    REQUIRE(held_take(&held, scene.pool, 100 * MIB, scene.stream[A]));
    do {
        nth++;
        fault_arm(NULL, nth, CUDA_ERROR_UNKNOWN, nth % 2);
        explain_now(scene.pool);
        fired = fault_fired();
        fault_disarm();
        EXPECT(says("100.00 MiB in 1 block"));
    } while (fired && nth < 100);
    EXPECT(nth > 3 && nth < 100);
    CUcontext now;
    DONE(cuCtxGetCurrent(&now)); /* a call that gives a context back may have failed */
    while (now != scene.context) {
        DONE(cuCtxPopCurrent(&now));
        DONE(cuCtxGetCurrent(&now));
    }
    held_give(&held);
    scene_close(&scene);
}

CASE(no_pool)
{
    struct scene scene;
    cenote_pool *pool;
    EXPECT(cenote_pool_explain(NULL, 0, text, sizeof text) > 0);
    EXPECT(says("is NULL"));
    EXPECT(cenote_pool_explain(NULL, 0, NULL, 100) > 0);
    open_scene(&scene, NULL);
    DONE(cenote_pool_create(0, NULL, &pool));
    DONE(cenote_pool_destroy(pool));
    EXPECT(cenote_pool_explain(pool, 0, text, sizeof text) > 0);
    EXPECT(says("destroyed"));
    EXPECT(cenote_pool_explain(scene.pool, 0, NULL, 0) > 100);
    EXPECT(cenote_pool_explain(scene.pool, 0, NULL, 100) > 100);
    char one = 'x';
    EXPECT(cenote_pool_explain(scene.pool, 0, &one, 1) > 100);
    EXPECT_EQ(one, 0);
    scene_close(&scene);
}

CASE(a_fork_says_so)
{
    struct scene scene;
    open_scene(&scene, NULL);
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        bool said = cenote_pool_explain(scene.pool, 0, text, sizeof text) > 0 && strstr(text, "is a fork") != NULL;
        _exit(said ? 0 : 1);
    }
    int status = 1;
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    scene_close(&scene);
}

static cenote_pool *at_exit;

static void explain_at_exit(void)
{
    bool said = cenote_pool_explain(at_exit, 0, text, sizeof text) > 0 && strstr(text, "the process is exiting") &&
                strstr(text, "100.00 MiB in 1 block");
    _exit(said ? 0 : 1);
}

CASE(a_process_that_exits_says_what_it_knows)
{
    fflush(NULL);
    pid_t child = fork(); /* of a process that has not used the driver yet, where this case runs alone */
    REQUIRE(child >= 0);
    if (!child) {
        char program[256];
        ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
        program[length > 0 ? length : 0] = 0;
        setenv("CENOTE_SIM", "capacity:1GiB", 1);
        execl(program, program, "--exit", (char *)NULL);
        _exit(2);
    }
    int status = 1;
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

static int exit_with_a_pool(void)
{
    void *block;
    atexit(explain_at_exit); /* runs after the library's own handler, which is registered later */
    return cenote_pool_default(0, &at_exit) || cenote_alloc(at_exit, 100 * MIB, NULL, &block);
}

CASE(a_lost_context)
{
    struct scene scene;
    void *block, *more;
    open_scene(&scene, NULL);
    DONE(cenote_alloc(scene.pool, 100 * MIB, scene.stream[A], &block));
    sim_set_quiet(true);
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cenote_alloc(scene.pool, 500 * MIB, scene.stream[A], &more), CENOTE_DEVICE_LOST);
    explain_now(scene.pool);
    EXPECT(says("the context is lost"));
    EXPECT(says("100.00 MiB in 1 block"));
    DONE(cenote_free(block));
    cenote_pool_destroy(scene.pool);
    sim_reset(NULL);
    sim_set_quiet(false);
    scene_is_open = false;
}

/* ------------------------------------------------------------------------------------------------------------------ many threads */

static void *fail_and_keep(void *arg)
{
    struct scene *scene = arg;
    void *block;
    char kept[4096];
    uint64_t bad = 0;
    for (int i = 0; i < 20; i++) {
        bad += cenote_alloc(scene->pool, CARD + MIB, NULL, &block) != CENOTE_OUT_OF_MEMORY;
        bad += strstr(cenote_message(), "larger than the whole GPU") == NULL;
    }
    snprintf(kept, sizeof kept, "%s", cenote_message());
    for (int i = 0; i < 20; i++)
        cenote_pool_explain(scene->pool, 0, kept, sizeof kept);
    return (void *)(uintptr_t)bad;
}

/* More threads than there is room for whole explanations: the others get the beginning. Threads that end leave their room to others. */
CASE(many_threads_fail_at_the_same_time)
{
    struct scene scene;
    pthread_t threads[24];
    open_scene(&scene, NULL);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 24; i++)
            REQUIRE_EQ(pthread_create(&threads[i], NULL, fail_and_keep, &scene), 0);
        for (int i = 0; i < 24; i++) {
            void *bad;
            pthread_join(threads[i], &bad);
            EXPECT(bad == NULL);
        }
    }
    run_out(scene.pool, CARD + MIB, NULL);
    EXPECT(says("In use on GPU 0")); /* all of it: the sheets are free again */
    EXPECT(says("unexplained"));
    scene_close(&scene);
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--exit"))
        return exit_with_a_pool();
    return test_run("api: explanations with gaps", argc > 1 ? argv[1] : "", NULL, scene_after);
}
