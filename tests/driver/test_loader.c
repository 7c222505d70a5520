/*
 * test_loader.c: loading the driver, once and again after it failed, and what is left of it in a fork and at exit. On a simulated GPU.
 *
 * A process loads the driver once, so each story runs in a child; the parent loads nothing.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "cenote/cenote.h"
#include "driver/driver.h"
#include "sim/sim.h"
#include "tests/base/child.h"

/* What a child saw: at a call of driver_table, or of something else that its story says. */
struct sight {
    bool ok;           /* there was a table */
    int  error;
    int  number;       /* the driver's version */
    char message[512];
};

static void look(struct sight *sight)
{
    sight->error = CENOTE_OK;
    sight->ok = driver_table(&sight->error) != NULL;
    sight->number = driver_version();
    snprintf(sight->message, sizeof(sight->message), "%s", driver_load_message());
}

#define SIGHTS 3

/* Runs a story in a child; what it saw is valid until the next. */
static const struct sight *tell(void (*story)(void *))
{
    static struct sight *sights;
    if (!sights)
        sights = child_shared(SIGHTS * sizeof(*sights));
    memset(sights, 0, SIGHTS * sizeof(*sights));
    struct child_end end = child_run(story, sights);
    EXPECT_EQ(end.signal, 0);
    EXPECT_EQ(end.status, 0);
    return sights;
}

static void reshape(int devices, int driver_version)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    shape.devices = devices;
    shape.driver_version = driver_version;
    sim_reset(&shape);
}

static void load(void *sights)
{
    struct sight *sight = sights;
    look(sight);
    int error = CENOTE_OK;
    const struct driver *table = driver_table(&error);
    sight[1].ok = table && table == driver_table(&error) && table->cuMemMap && table->cuCtxRecordEvent;
    int devices = 0;
    sight[2].ok = table && table->cuDeviceGetCount(&devices) == CUDA_SUCCESS && devices == 1;
}

CASE(a_driver_is_loaded_once)
{
    const struct sight *saw = tell(load);
    EXPECT(saw[0].ok);
    EXPECT_EQ(saw[0].error, CENOTE_OK);
    EXPECT_EQ(saw[0].number, 13000);
    EXPECT(saw[1].ok);
    EXPECT(saw[2].ok);
}

static void load_what_is_not_there(void *sights)
{
    setenv("CENOTE_DRIVER", "/nowhere/libcuda.so.1", 1);
    look(sights);
}

static void load_what_is_no_driver(void *sights)
{
    setenv("CENOTE_DRIVER", "libm.so.6", 1);
    look(sights);
}

CASE(no_library)
{
    const struct sight *saw = tell(load_what_is_not_there);
    EXPECT(!saw->ok);
    EXPECT_EQ(saw->error, CENOTE_NO_DRIVER);
    EXPECT_EQ(saw->number, 0);
    EXPECT(strstr(saw->message, "/nowhere/libcuda.so.1") != NULL);
    EXPECT(strstr(saw->message, "CENOTE_DRIVER") != NULL);
}

CASE(a_library_that_is_no_driver)
{
    const struct sight *saw = tell(load_what_is_no_driver);
    EXPECT(!saw->ok);
    EXPECT_EQ(saw->error, CENOTE_DRIVER_TOO_OLD);
    EXPECT(strstr(saw->message, "cuInit") != NULL);
}

static void hide_a_required_call(void *sights)
{
    sim_hide("cuEventQuery");
    look(sights);
}

CASE(a_driver_that_lacks_a_required_call)
{
    const struct sight *saw = tell(hide_a_required_call);
    EXPECT(!saw->ok);
    EXPECT_EQ(saw->error, CENOTE_DRIVER_TOO_OLD);
    EXPECT(strstr(saw->message, "cuEventQuery") != NULL);
    EXPECT(strstr(saw->message, "13.0") != NULL);
}

static void hide_an_optional_call(void *sights)
{
    struct sight *sight = sights;
    sim_hide("cuMemMap");
    look(sight);
    int error = CENOTE_OK;
    const struct driver *table = driver_table(&error);
    sight[1].ok = table && !table->cuMemMap && table->cuMemUnmap;
}

CASE(a_driver_that_lacks_an_optional_call)
{
    const struct sight *saw = tell(hide_an_optional_call);
    EXPECT(saw[0].ok);
    EXPECT(saw[1].ok);
}

static void load_from_cuda_11_2(void *sights)
{
    struct sight *sight = sights;
    reshape(1, 11020);
    look(sight);
    int error = CENOTE_OK;
    const struct driver *table = driver_table(&error);
    sight[1].ok = table && table->cuMemMap && !table->cuStreamGetId && !table->cuCtxRecordEvent;
}

CASE(an_older_driver_lacks_what_came_later)
{
    const struct sight *saw = tell(load_from_cuda_11_2);
    EXPECT(saw[0].ok);
    EXPECT_EQ(saw[0].number, 11020);
    EXPECT(saw[1].ok);
}

static void load_from_cuda_10_2(void *sights)
{
    reshape(1, 10020);
    look(sights);
}

CASE(a_driver_too_old)
{
    const struct sight *saw = tell(load_from_cuda_10_2);
    EXPECT_EQ(saw->error, CENOTE_DRIVER_TOO_OLD);
    EXPECT(strstr(saw->message, "version 10.2") != NULL);
    EXPECT(strstr(saw->message, "cuDevicePrimaryCtxRelease of CUDA 11.0") != NULL);
}

/* The driver with one function of ours in it. */
static struct driver hooked;
static const struct driver *unhooked;

static const struct driver *hook(const struct driver *inner)
{
    unhooked = inner;
    hooked = *inner;
    return &hooked;
}

static CUresult count_no_devices(int *count)
{
    *count = 0;
    return CUDA_SUCCESS;
}

static const struct driver *hook_device_count(const struct driver *inner)
{
    hook(inner);
    hooked.cuDeviceGetCount = count_no_devices;
    return &hooked;
}

static void load_without_devices(void *sights)
{
    struct sight *sight = sights;
    reshape(0, 13000);
    look(&sight[0]);
    reshape(1, 13000);
    driver_interpose(hook_device_count);
    look(&sight[1]);
}

/* A driver may say so in cuInit, or start and count none. */
CASE(no_devices)
{
    const struct sight *saw = tell(load_without_devices);
    for (int i = 0; i < 2; i++) {
        EXPECT(!saw[i].ok);
        EXPECT_EQ(saw[i].error, CENOTE_NO_DEVICE);
        EXPECT(strstr(saw[i].message, "CUDA_VISIBLE_DEVICES") != NULL);
    }
}

static void fail_in_each_way_then_load(void *sights)
{
    struct sight *sight = sights;
    fault_arm("cuInit", 1, CUDA_ERROR_STUB_LIBRARY, false);
    look(&sight[0]);
    fault_arm("cuDeviceGetCount", 1, CUDA_ERROR_UNKNOWN, false);
    look(&sight[1]);
    look(&sight[2]);
}

CASE(a_failed_load_is_tried_again)
{
    const struct sight *saw = tell(fail_in_each_way_then_load);
    EXPECT_EQ(saw[0].error, CENOTE_NO_DRIVER);
    EXPECT(strstr(saw[0].message, "CUDA_ERROR_STUB_LIBRARY") != NULL);
    EXPECT_EQ(saw[1].error, CENOTE_NO_DEVICE);
    EXPECT(strstr(saw[1].message, "CUDA_ERROR_UNKNOWN") != NULL);
    EXPECT(saw[2].ok);
}

/* Faults reach tables that were handed out before the first was armed. */
static void fault_a_loaded_driver(void *sights)
{
    struct sight *sight = sights;
    struct driver_tally tallies[DRIVER_CALLS];
    size_t unused_free, unused_total;
    int error = CENOTE_OK;
    const struct driver *table = driver_table(&error);
    CUcontext context;
    table->cuDevicePrimaryCtxRetain(&context, 0);
    table->cuCtxPushCurrent(context);
    sight[0].error = (int)table->cuMemGetInfo(&unused_free, &unused_total);
    fault_arm("cuMemGetInfo", 1, CUDA_ERROR_LAUNCH_FAILED, false);
    sight[1].error = (int)table->cuMemGetInfo(&unused_free, &unused_total);
    sight[2].error = (int)table->cuMemGetInfo(&unused_free, &unused_total);
    driver_tallies(tallies);
    sight[0].number = (int)tallies[CALL_cuMemGetInfo].calls;
    sight[1].number = (int)tallies[CALL_cuMemGetInfo].failed;
}

CASE(faults_reach_a_loaded_driver)
{
    const struct sight *saw = tell(fault_a_loaded_driver);
    EXPECT_EQ(saw[0].error, CUDA_SUCCESS);
    EXPECT_EQ(saw[1].error, CUDA_ERROR_LAUNCH_FAILED);
    EXPECT_EQ(saw[2].error, CUDA_SUCCESS);
    EXPECT_EQ(saw[0].number, 3); /* calls tallied */
    EXPECT_EQ(saw[1].number, 1); /* of these, failed */
}

static atomic_int inits;

static CUresult init_slowly(unsigned flags)
{
    atomic_fetch_add(&inits, 1);
    usleep(20000); /* long enough for the other threads to come */
    return unhooked->cuInit(flags);
}

static const struct driver *hook_init(const struct driver *inner)
{
    hook(inner);
    hooked.cuInit = init_slowly;
    return &hooked;
}

static void *look_from_a_thread(void *table)
{
    int error = CENOTE_OK;
    *(const struct driver **)table = driver_table(&error);
    return NULL;
}

static void load_from_many_threads(void *sights)
{
    struct sight *sight = sights;
    const struct driver *tables[8] = {0};
    pthread_t threads[8];
    driver_interpose(hook_init);
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, look_from_a_thread, &tables[i]);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    sight->ok = true;
    for (int i = 0; i < 8; i++)
        sight->ok &= tables[i] && tables[i] == tables[0];
    sight->number = atomic_load(&inits);
}

CASE(one_thread_loads_for_all)
{
    const struct sight *saw = tell(load_from_many_threads);
    EXPECT(saw->ok);
    EXPECT_EQ(saw->number, 1);
}

static void look_at_fork(void *sights)
{
    struct sight *sight = sights;
    look(sight);
    sight->number = driver_is_forked();
}

static void load_and_fork(void *sights)
{
    struct sight *sight = sights;
    look(&sight[0]);
    child_run(look_at_fork, &sight[1]);
    look(&sight[2]);
    sight[2].number = driver_is_forked();
}

CASE(a_fork_has_no_driver)
{
    const struct sight *saw = tell(load_and_fork);
    EXPECT(saw[0].ok);
    EXPECT(!saw[1].ok);
    EXPECT_EQ(saw[1].error, CENOTE_FORKED);
    EXPECT_EQ(saw[1].number, true);
    EXPECT(saw[2].ok); /* the parent goes on */
    EXPECT_EQ(saw[2].number, false);
}

static void start_without_us_and_fork(void *sights)
{
    struct sight *sight = sights;
    REQUIRE_EQ(cuInit(0), CUDA_SUCCESS);
    child_run(look_at_fork, &sight[0]);
    look(&sight[1]);
}

/* It is not told to install another driver. */
CASE(a_fork_of_a_program_that_started_the_driver_itself)
{
    const struct sight *saw = tell(start_without_us_and_fork);
    EXPECT(!saw[0].ok);
    EXPECT_EQ(saw[0].error, CENOTE_FORKED);
    EXPECT(strstr(saw[0].message, "a fork of one that uses CUDA"));
    EXPECT(saw[1].ok);
}

static struct sight *at_init;

static CUresult init_with_a_fork(unsigned flags)
{
    child_run(look_at_fork, at_init);
    return unhooked->cuInit(flags);
}

static const struct driver *hook_init_that_forks(const struct driver *inner)
{
    hook(inner);
    hooked.cuInit = init_with_a_fork;
    return &hooked;
}

static void fork_while_loading(void *sights)
{
    struct sight *sight = sights;
    at_init = &sight[1];
    driver_interpose(hook_init_that_forks);
    look(&sight[0]);
}

/* Drivers fork to run nvidia-modprobe, and other threads may fork for reasons of their own. */
CASE(a_fork_while_the_driver_starts)
{
    const struct sight *saw = tell(fork_while_loading);
    EXPECT(saw[0].ok);
    EXPECT(!saw[1].ok);
    EXPECT_EQ(saw[1].error, CENOTE_FORKED);
    EXPECT_EQ(saw[1].number, true);
}

static void fail_and_fork(void *sights)
{
    struct sight *sight = sights;
    fault_arm("cuInit", 1, CUDA_ERROR_NO_DEVICE, false);
    look(&sight[0]);
    child_run(look_at_fork, &sight[1]);
}

/* Nothing was loaded, so there is nothing that the fork could break. */
CASE(a_fork_after_a_failed_load_may_load)
{
    const struct sight *saw = tell(fail_and_fork);
    EXPECT_EQ(saw[0].error, CENOTE_NO_DEVICE);
    EXPECT(saw[1].ok);
    EXPECT_EQ(saw[1].number, false);
}

static struct sight *at_exit;

/* Set up before the driver was loaded, so it runs when the loader's handler has run. */
static void look_at_exit(void)
{
    look(&at_exit[1]);
    at_exit[1].number = driver_is_exiting();
}

static void load_and_exit(void *sights)
{
    at_exit = sights;
    atexit(look_at_exit);
    look(&at_exit[0]);
    at_exit[0].number = driver_is_exiting();
    exit(0);
}

CASE(at_exit_the_driver_is_left_alone)
{
    const struct sight *saw = tell(load_and_exit);
    EXPECT(saw[0].ok);
    EXPECT_EQ(saw[0].number, false);
    EXPECT(!saw[1].ok);
    EXPECT_EQ(saw[1].error, CENOTE_EXITING);
    EXPECT_EQ(saw[1].number, true);
}

SUITE_MAIN("driver loader")
