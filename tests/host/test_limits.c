/* test_limits.c: options and where they come from; limits; how memory goes back by step, by time and on demand. */
#include "base/memory.h"
#include "tests/host/pinned.h"
#include "tests/patience.h"

#include <sys/resource.h>
#include <unistd.h>

static void open_conf(struct scene *scene, const char *conf)
{
    setenv("CENOTE_HOST_CONF", conf, 1);
    cenote_host_options options = pinned_options();
    unsetenv("CENOTE_HOST_CONF");
    pinned_open_devices(scene, &options, 1);
}

CASE(options_come_from_the_environment)
{
    cenote_host_options options;
    setenv("CENOTE_HOST_CONF", " limit : 64MiB , chunk_mib:8,node:0,, decay_ms:5 ", 1);
    DONE(cenote_host_options_default(&options));
    EXPECT(options.limit == 64 * MIB);
    EXPECT_EQ(options.chunk_mib, 8);
    EXPECT_EQ(options.node, 0);
    EXPECT_EQ(options.decay_ms, 5);
    setenv("CENOTE_HOST_CONF", "limit:50%,node:nearest", 1);
    DONE(cenote_host_options_default(&options));
    EXPECT(options.limit == 0.5);
    EXPECT_EQ(options.node, -1);
    setenv("CENOTE_HOST_CONF", "limit:memlock", 1);
    DONE(cenote_host_options_default(&options));
    EXPECT(options.limit == -1);
    unsetenv("CENOTE_HOST_CONF");
}

CASE(mistakes_in_options_are_named)
{
    static const char *const mistakes[][2] = {
        {"limt:1GiB", "limt"}, {"limit", "name:value"}, {"limit:lots", "lots"}, {"limit:1.5", "1.5"}, {"chunk_mib:1", "chunk_mib"},
        {"chunk_mib:-3", "-3"}, {"node:-1", "-1"}, {"limit:100", "100"}, {"huge_pages:3", "huge_pages"}, {"trim_every:1e3", "1e3"}, {":5", ":5"},
    };
    cenote_host_options options, before;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        DONE(cenote_host_options_default(&before));
        setenv("CENOTE_HOST_CONF", mistakes[i][0], 1);
        EXPECT_EQ(cenote_host_options_default(&options), CENOTE_BAD_OPTION);
        EXPECT(strstr(cenote_host_message(), mistakes[i][1]));
        EXPECT(!memcmp(&options, &before, sizeof options));
        unsetenv("CENOTE_HOST_CONF");
    }
    EXPECT_EQ(cenote_host_options_default(NULL), CENOTE_INVALID);
    options.unused = 1;
    EXPECT_EQ(cenote_host_open(&options), CENOTE_INVALID);
    EXPECT(strstr(cenote_host_options_help(), "chunk_mib"));
}

CASE(the_first_block_opens_with_the_defaults)
{
    struct scene scene;
    void *block = NULL;
    struct sim_shape shape = scene_card(64 * MIB);
    scene_open_card(&scene, &shape);
    setenv("CENOTE_HOST_CONF", "limit:4MiB", 1);
    EXPECT_EQ(cenote_host_alloc(0, 5 * MIB, &block), CENOTE_OUT_OF_HOST_MEMORY);
    unsetenv("CENOTE_HOST_CONF");
    EXPECT_EQ(cenote_host_open(NULL), CENOTE_BUSY);
    DONE(cenote_host_free(pinned_take(3 * MIB)));
    EXPECT_EQ(cenote_host_alloc(0, 5 * MIB, &block), CENOTE_OUT_OF_HOST_MEMORY);
    pinned_close(&scene);
}

/* hwloc takes milliseconds, and a program that has no memory asks for a block again and again. */
CASE(without_memory_for_books_no_machine_is_read)
{
    struct scene scene;
    cenote_host_options options = pinned_options();
    struct sim_shape shape = scene_card(64 * MIB);
    scene_open_card(&scene, &shape);
    options.topology = TOPOLOGIES "no-such-file.xml";
    memory_fail(2, true);
    EXPECT_EQ(cenote_host_open(&options), CENOTE_OUT_OF_HOST_MEMORY);
    memory_fail(0, false);
    EXPECT_EQ(cenote_host_open(&options), CENOTE_BAD_OPTION);
    scene_close(&scene);
}

CASE(a_limit_holds)
{
    struct scene scene;
    void *block = NULL;
    open_conf(&scene, "limit:16MiB");
    char *half = pinned_take(9 * MIB);
    EXPECT_EQ(cenote_host_alloc(0, 9 * MIB, &block), CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT(strstr(cenote_host_message(), "limit"));
    EXPECT_EQ(block, NULL);
    EXPECT_EQ(pinned_stats().ooms, 1);
    char *rest = pinned_take(5 * MIB);
    EXPECT(pinned_stats().registered.current <= 16 * MIB);
    DONE(cenote_host_free(half));
    DONE(cenote_host_free(rest));
    char *all = pinned_take(16 * MIB); /* what is idle is given back for it */
    EXPECT_EQ(pinned_stats().registered.current, 16 * MIB);
    DONE(cenote_host_free(all));
    pinned_close(&scene);
}

CASE(the_limit_of_locked_memory)
{
    struct scene scene;
    struct rlimit limit = {4 * MIB, 4 * MIB}, before;
    void *block;
    getrlimit(RLIMIT_MEMLOCK, &before);
    limit.rlim_max = before.rlim_max;
    REQUIRE_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    open_conf(&scene, "limit:memlock");
    EXPECT_EQ(cenote_host_alloc(0, 5 * MIB, &block), CENOTE_OUT_OF_HOST_MEMORY);
    DONE(cenote_host_free(pinned_take(4 * MIB)));
    setrlimit(RLIMIT_MEMLOCK, &before);
    pinned_close(&scene);
}

/* A part of the memory, or of what may be locked, that comes to no bytes is a limit all the same: 0 stands for none. */
CASE(a_limit_of_almost_nothing)
{
    struct rlimit limit, before;
    getrlimit(RLIMIT_MEMLOCK, &before);
    limit = (struct rlimit){0, before.rlim_max};
    REQUIRE_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    for (int i = 0; i < 2; i++) {
        struct scene scene;
        void *block;
        cenote_host_options options = pinned_options();
        options.limit = i ? -1 : 1e-300;
        pinned_open_devices(&scene, &options, 1);
        EXPECT_EQ(cenote_host_alloc(0, 1, &block), CENOTE_OUT_OF_HOST_MEMORY);
        EXPECT(strstr(cenote_host_message(), "limit"));
        pinned_close(&scene);
    }
    setrlimit(RLIMIT_MEMLOCK, &before);
}

/* Books and addresses for chunks share what there is, and leave half of it to the program. */
CASE(a_process_has_few_addresses)
{
    struct rlimit limit, before;
    struct scene scene;
    struct sim_shape shape = scene_card(64 * MIB);
    unsigned long pages = 0;
    void *block = NULL;
    scene_open_card(&scene, &shape);
    FILE *file = fopen("/proc/self/statm", "r");
    REQUIRE(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    getrlimit(RLIMIT_AS, &before);
    limit = (struct rlimit){pages * 4096 + 2 * GIB, before.rlim_max};
    REQUIRE_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    DONE(cenote_host_alloc(0, 3 * MIB, &block));
    void *other = mmap(NULL, 512 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(other != MAP_FAILED);
    munmap(other, 512 * MIB);
    setrlimit(RLIMIT_AS, &before);
    DONE(cenote_host_free(block));
    pinned_close(&scene);
}

CASE(a_trim_keeps_what_it_is_told)
{
    struct scene scene;
    char *block[8];
    pinned_open(&scene);
    for (int i = 0; i < 8; i++)
        block[i] = pinned_take(4 * MIB);
    for (int i = 0; i < 8; i++)
        DONE(cenote_host_free(block[i]));
    DONE(cenote_host_trim(12 * MIB, 0));
    EXPECT(pinned_stats().registered.current <= 12 * MIB);
    EXPECT(pinned_stats().registered.current >= 8 * MIB);
    EXPECT(pinned_stats().trimmed >= 20 * MIB);
    EXPECT_EQ(cenote_host_trim(0, 8), CENOTE_INVALID);
    pinned_close(&scene);
}

CASE(steps_give_back_what_they_did_not_use)
{
    struct scene scene;
    open_conf(&scene, "trim_every:2");
    char *once = pinned_take(10 * MIB), *always = pinned_take(4 * MIB);
    DONE(cenote_host_free(once));
    for (int step = 0; step < 6; step++) {
        DONE(cenote_host_free(always));
        always = pinned_take(4 * MIB);
        DONE(cenote_host_step());
    }
    EXPECT_EQ(pinned_stats().registered.current, 4 * MIB);
    EXPECT_EQ(pinned_stats().registrations, 2);
    DONE(cenote_host_free(always));
    pinned_close(&scene);
}

CASE(time_gives_back_what_is_not_used)
{
    char conf[32];
    bool in_time = false;
    for (uint64_t ms = 20; !in_time; ms *= 4) { /* a machine that is too busy to look before the time is over gets more of it */
        struct scene scene;
        snprintf(conf, sizeof conf, "decay_ms:%d", (int)ms);
        open_conf(&scene, conf);
        uint64_t began = clock_ns();
        DONE(cenote_host_free(pinned_take(10 * MIB)));
        DONE(cenote_host_trim(UINT64_MAX, 0)); /* out of the thread's own cache; nothing goes */
        DONE(cenote_host_step());
        uint64_t registered = pinned_stats().registered.current;
        in_time = clock_ns() - began < ms * 1000000;
        EXPECT(!in_time || registered == 10 * MIB);
        struct wait wait = {0};
        do
            DONE(cenote_host_step());
        while (pinned_stats().registered.current && wait_on(&wait));
        EXPECT_EQ(pinned_stats().registered.current, 0);
        pinned_close(&scene);
    }
}

CASE(huge_pages_where_there_are_any)
{
    struct scene scene;
    for (int how = 1; how <= 2; how++) {
        open_conf(&scene, how == 1 ? "huge_pages:1" : "huge_pages:2");
        char *block = pinned_take(4 * MIB);
        memset(block, 1, 4 * MIB);
        EXPECT_EQ(block[4 * MIB - 1], 1);
        DONE(cenote_host_free(block));
        pinned_close(&scene);
    }
}

SCENES_MAIN("limits")
