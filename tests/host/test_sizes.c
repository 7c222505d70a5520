/* test_sizes.c: programs of older and newer headers, with pinned memory: as tests/api/test_sizes.c. */
#include "tests/host/pinned.h"
#include "tests/sizes.h"

static char *block;

static int ask_default(void *at, size_t size)
{
    return (cenote_host_options_default)(at, size);
}

static int ask_open(void *at, size_t size)
{
    int error = (cenote_host_open)(at, size);
    return error ? error : cenote_host_close();
}

static int ask_find(void *at, size_t size)
{
    return (cenote_host_find)(block + 100, at, size);
}

static int ask_stats(void *at, size_t size)
{
    return (cenote_host_node_stats)(-1, at, size);
}

#define CALL(type_, ask_, ...) &(struct sized_call){.type = #type_, .known = sizeof(type_), .ask = ask_, __VA_ARGS__}

CASE(options)
{
    cenote_host_options options = {0};
    sizes_try_all(CALL(cenote_host_options, ask_default, .comes_out = true), &options);
    options = pinned_options();
    sizes_try_all(CALL(cenote_host_options, ask_open, .goes_in = true), &options);
}

/* What an older program cannot say is what the user says. */
CASE(options_that_are_missing)
{
    struct scene scene;
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_host_options options = pinned_options();
    void *kept = NULL;
    scene_open_card(&scene, &shape);
    setenv("CENOTE_HOST_CONF", "limit:4MiB", 1);
    DONE((cenote_host_open)(&options, offsetof(cenote_host_options, limit)));
    unsetenv("CENOTE_HOST_CONF");
    EXPECT_EQ(cenote_host_alloc(0, 8 * MIB, &kept), CENOTE_OUT_OF_HOST_MEMORY);
    pinned_close(&scene);
}

CASE(blocks_and_counters)
{
    struct scene scene;
    cenote_host_block found;
    cenote_host_stats stats;
    pinned_open(&scene);
    block = pinned_take(1 * MIB);
    sizes_try_all(CALL(cenote_host_block, ask_find, .comes_out = true), &found);
    sizes_try_all(CALL(cenote_host_stats, ask_stats, .comes_out = true), &stats);
    DONE(cenote_host_free(block));
    pinned_close(&scene);
}

SCENES_MAIN("sizes")
