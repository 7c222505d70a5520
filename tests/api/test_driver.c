/*
 * test_driver.c: drivers that are missing, too old, without devices or without the calls that make pages move; and a process that forks.
 * The library loads the driver once per process, so each case runs in a child. The parent itself never touches the driver.
 * Not: calls that fail (test_shortage.c).
 */
#include "driver/driver.h"
#include "tests/api/scene.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define CARD (64 * MIB)

/* What the child returns; -1 if it did not end by itself. */
static int in_a_child(int (*run)(void))
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(run());
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return -1;
    return WEXITSTATUS(status);
}

/* The error is the same at every call, and its words contain `word`. Returns the error, 100 + it if something is wrong with the rest. */
static int error_of_first_calls(const char *word)
{
    cenote_pool *pool = NULL;
    int error = cenote_pool_create(0, NULL, &pool);
    bool fine = !pool && strstr(cenote_message(), word) && cenote_pool_default(0, &pool) == error && strstr(cenote_message(), word);
    if (!fine)
        fprintf(stderr, "error %d, message: %s\n", error, cenote_message());
    return fine ? error : 100 + error;
}

static int without_a_driver(void)
{
    setenv("CENOTE_DRIVER", "libno-such-driver.so.1", 1);
    return error_of_first_calls("libno-such-driver.so.1");
}

static int with_something_else(void)
{
    setenv("CENOTE_DRIVER", "libm.so.6", 1);
    int error = error_of_first_calls("driver");
    return error == CENOTE_NO_DRIVER || error == CENOTE_DRIVER_TOO_OLD ? 0 : error;
}

static int with_an_old_driver(void)
{
    sim_set_quiet(true);
    sim_hide("cuMemGetInfo");
    return error_of_first_calls("cuMemGetInfo");
}

static int without_devices(void)
{
    struct sim_shape shape = scene_card(CARD);
    shape.devices = 0;
    sim_reset(&shape);
    return error_of_first_calls("device");
}

CASE(clear_errors)
{
    EXPECT_EQ(in_a_child(without_a_driver), CENOTE_NO_DRIVER);
    EXPECT_EQ(in_a_child(with_something_else), 0);
    EXPECT_EQ(in_a_child(with_an_old_driver), CENOTE_DRIVER_TOO_OLD);
    EXPECT_EQ(in_a_child(without_devices), CENOTE_NO_DEVICE);
}

/* A failed load is tried again: the driver may have been installed, or the path mended, meanwhile. */
static int works_after_all(void)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_pool *pool;
    sim_reset(&shape);
    setenv("CENOTE_DRIVER", "libno-such-driver.so.1", 1);
    if (cenote_pool_create(0, NULL, &pool) != CENOTE_NO_DRIVER)
        return 1;
    unsetenv("CENOTE_DRIVER");
    return cenote_pool_create(0, NULL, &pool) ? 2 : cenote_pool_destroy(pool) ? 3 : 0;
}

CASE(a_failed_load_is_tried_again)
{
    EXPECT_EQ(in_a_child(works_after_all), 0);
}

/* ------------------------------------------------------------------------------------------------- drivers that can do less */

/* A program that needs memory on two streams and a use across them. 0: all of it went well. */
static int small_program(void)
{
    struct sim_books books;
    cenote_options options;
    cenote_pool *pool;
    void *block[2];
    CUstream stream[2];
    CUcontext context;
    int failures = cuInit(0) != 0;
    failures += cuDevicePrimaryCtxRetain(&context, 0) != 0;
    failures += cuCtxPushCurrent(context) != 0;
    failures += cenote_options_default(&options) != 0;
    failures += cenote_pool_create(0, &options, &pool) != 0;
    if (failures)
        return failures;
    for (int i = 0; i < 2; i++) {
        failures += cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING) != 0;
        failures += cenote_stream_set_immortal(pool, stream[i]) != 0;
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 2; i++) {
            failures += cenote_alloc(pool, (size_t)(round + 1) * 2 * MIB, stream[i], &block[i]) != 0;
            failures += sim_launch_fill(stream[i], device_address(block[i]), (uint64_t)round, MIB) != 0;
            failures += sim_launch_wait(stream[i], MSEC) != 0;
            failures += sim_launch_expect(stream[i], device_address(block[i]), (uint64_t)round, MIB) != 0;
        }
        failures += cenote_use(block[0], stream[1]) != 0;
        failures += cenote_free(block[0]) != 0;
        failures += cenote_free(block[1]) != 0;
    }
    failures += cenote_pool_trim(pool, 0, CENOTE_TRIM_WAIT) != 0;
    failures += scene_stats(pool).reserved.current != 0;
    failures += cenote_pool_check(pool) != 0;
    failures += cenote_pool_destroy(pool) != 0;
    for (int i = 0; i < 2; i++)
        failures += cuStreamDestroy(stream[i]) != 0;
    sim_books(&books);
    failures += books.handles + books.events + books.allocations + books.reservations != 0;
    return failures + (sim_mismatches() != 0) + (books.violations != 0);
}

static struct sim_shape behind(void)
{
    struct sim_shape shape = scene_card(CARD);
    shape.lag = MSEC;
    return shape;
}

static int on_version_12_4(void)
{
    struct sim_shape shape = behind();
    shape.driver_version = 12040; /* no cuCtxRecordEvent */
    sim_reset(&shape);
    return small_program();
}

static int on_version_11_8(void)
{
    struct sim_shape shape = behind();
    shape.driver_version = 11080; /* no cuStreamGetId either */
    sim_reset(&shape);
    return small_program();
}

static int without_optional_calls(void)
{
    struct sim_shape shape = behind();
    sim_reset(&shape);
    sim_hide("cuMemCreate");
    sim_hide("cuMemPoolCreate");
    return small_program();
}

static int without_moving_pages(void)
{
    struct sim_shape shape = behind();
    sim_reset(&shape);
    sim_hide("cuMemMap");
    return small_program();
}

CASE(drivers_that_can_do_less)
{
    EXPECT_EQ(in_a_child(on_version_12_4), 0);
    EXPECT_EQ(in_a_child(on_version_11_8), 0);
    EXPECT_EQ(in_a_child(without_optional_calls), 0);
    EXPECT_EQ(in_a_child(without_moving_pages), 0);
}

/* ----------------------------------------------------------------------------------------------------------------- fork */

/* A child of a process that uses the library: it gets a clear error and the parent notices nothing. */
static int parent_and_child(void)
{
    struct sim_shape shape = behind();
    cenote_pool *pool;
    void *block, *more;
    int status;
    sim_reset(&shape);
    if (cenote_pool_create(0, NULL, &pool) || cenote_alloc(pool, 3 * MIB, NULL, &block))
        return 1;
    pid_t child = fork();
    if (child == 0) {
        bool fine = cenote_alloc(pool, 512, NULL, &more) == CENOTE_FORKED && cenote_message()[0];
        fine = fine && cenote_pool_create(0, NULL, &pool) == CENOTE_FORKED;
        _exit(fine ? 0 : 1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        return 2;
    if (cenote_alloc(pool, 30 * MIB, NULL, &more) || cenote_free(more) || cenote_free(block) || cenote_pool_check(pool))
        return 3;
    return cenote_pool_destroy(pool) ? 4 : 0;
}

CASE(forked_child)
{
    EXPECT_EQ(in_a_child(parent_and_child), 0);
}

/* The process ends with a live block and a pool: nothing happens, in whichever order things go down. */
static cenote_pool *left_over;

static void allocate_at_exit(void)
{
    void *block;
    int error = cenote_alloc(left_over, 20 * MIB, NULL, &block);
    if (error != CENOTE_OK && error != CENOTE_EXITING)
        _exit(9);
}

static int exits_with_live_blocks(void)
{
    struct sim_shape shape = behind();
    void *block;
    sim_reset(&shape);
    atexit(allocate_at_exit); /* runs after the library's own, which was registered later */
    if (cenote_pool_create(0, NULL, &left_over) || cenote_alloc(left_over, 3 * MIB, NULL, &block))
        return 1;
    fflush(stdout);
    exit(0);
}

CASE(exit_with_live_blocks)
{
    EXPECT_EQ(in_a_child(exits_with_live_blocks), 0);
}

/* What the driver is told of memory before it is created, and when it is. */
static const struct driver *below;
static CUmemAllocationProp asked_about, created;

static CUresult ask_granularity(size_t *bytes, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags flags)
{
    asked_about = *prop;
    return below->cuMemGetAllocationGranularity(bytes, prop, flags);
}

static CUresult create_page(CUmemGenericAllocationHandle *page, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
    created = *prop;
    return below->cuMemCreate(page, bytes, prop, flags);
}

static const struct driver *listen(const struct driver *inner)
{
    static struct driver table;
    below = inner;
    table = *inner;
    table.cuMemGetAllocationGranularity = ask_granularity;
    table.cuMemCreate = create_page;
    return &table;
}

static int asks_about_what_it_creates(void)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_pool *pool = NULL;
    void *block = NULL;
    driver_interpose(listen);
    sim_reset(&shape);
    if (cuInit(0) || cenote_pool_create(0, NULL, &pool) || cenote_alloc(pool, MIB, NULL, &block))
        return 1;
    return created.requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || memcmp(&asked_about, &created, sizeof created) != 0;
}

/* The granularity may depend on what the memory can do: shared, reached by other devices of the machine. */
CASE(abilities_are_asked_of_the_memory_that_is_created)
{
    EXPECT_EQ(in_a_child(asks_about_what_it_creates), 0);
}

SCENES_MAIN("api: driver")
