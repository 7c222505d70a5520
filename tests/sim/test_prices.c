/* test_prices.c: what calls cost: the lists of cost.def, files with prices, and files that are none. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/sim/simulated.h"

static uint64_t cost_of_an_allocation(const char *prices)
{
    struct sim_shape shape = simulated_shape();
    CUdeviceptr at;
    snprintf(shape.prices, sizeof(shape.prices), "%s", prices);
    simulated_begin_as(&shape);
    uint64_t start = simulated_books().cost_ns;
    EXPECT_OK(cuMemAlloc(&at, 1 << 20));
    uint64_t cost = simulated_books().cost_ns - start;
    EXPECT_OK(cuMemFree(at));
    return cost;
}

CASE(lists_have_names)
{
    EXPECT_TEXT_EQ(sim_price_list(0), "a100");
    EXPECT_TEXT_EQ(sim_price_list(1), "h100");
    EXPECT_TEXT_EQ(sim_price_list(2), "h200");
    EXPECT_TEXT_EQ(sim_price_list(3), "contended");
    EXPECT_TEXT_EQ(sim_price_list(4), "gh200");
    EXPECT(!sim_price_list(5) && !sim_price_list(-1));
    EXPECT_EQ(cost_of_an_allocation(""), 230450);
    EXPECT_EQ(cost_of_an_allocation("a100"), 230450);
    EXPECT_EQ(cost_of_an_allocation("h100"), 90000);
    EXPECT(cost_of_an_allocation("contended") > cost_of_an_allocation("h100"));
    EXPECT_EQ(sim_price("h100", "cuMemFree"), 90000);
    EXPECT_EQ(sim_price("h100", "cuLaunchKernel"), 0);
}

static void write_file(const char *path, const void *text, size_t length)
{
    FILE *file = fopen(path, "w");
    REQUIRE(file && fwrite(text, 1, length, file) == length && !fclose(file));
}

static char path[] = "/tmp/cenote-prices-XXXXXX";

static void begin_file(void)
{
    int file = mkstemp(strcpy(path, "/tmp/cenote-prices-XXXXXX"));
    REQUIRE(file >= 0);
    close(file);
}

CASE(a_file_replaces_prices_of_a100)
{
    static const char text[] = "# a card\n\n  cuMemAlloc\t7000 # fast\r\ncuMemFree_v2 0";
    begin_file();
    write_file(path, text, sizeof(text) - 1);
    EXPECT_EQ(cost_of_an_allocation(path), 7000);
    EXPECT_EQ(sim_price(path, "cuMemFree"), 0);
    EXPECT_EQ(sim_price(path, "cuMemCreate"), 193000);
    unlink(path);
}

/* The answer says where and why. */
static void expect_refused(const char *text, size_t length, const char *word)
{
    char why[256] = "";
    write_file(path, text, length);
    EXPECT(!sim_prices_are_fine(path, why, sizeof(why)));
    EXPECT(strstr(why, word));
    EXPECT_EQ(sim_price(path, "cuMemAlloc"), 0);
}

#define REFUSED(text, word) expect_refused(text, sizeof(text) - 1, word)

CASE(files_that_are_no_prices_are_refused)
{
    static char large[1 << 17];
    begin_file();
    REFUSED("cuMemAlloc\n", "line 1");
    REFUSED("cuMemAlloc 5\ncuMemFree ten\n", "line 2");
    REFUSED("cuMemAlloc -5\n", "whole number");
    REFUSED("cuMemAlloc 5.5\n", "whole number");
    REFUSED("cuMemAlloc 10000000001\n", "ten seconds");
    REFUSED("cuMemAlloc 99999999999999999999999\n", "ten seconds");
    REFUSED("cuMemAlloc 5 6\n", "whole number");
    REFUSED("cuMemAlloc 5\ncuMemAlloc_v2 5\n", "before");
    REFUSED("cuLaunch 5\n", "no call");
    REFUSED("", "names no price");
    REFUSED("# nothing\n", "names no price");
    REFUSED("cuMemAlloc 5\n\0cuMemFree 5\n", "no text");
    memset(large, ' ', sizeof(large));
    expect_refused(large, 300, "too long");
    expect_refused(large, sizeof(large), "more than");
    unlink(path);
}

CASE(what_is_no_plain_file_is_refused)
{
    char why[256];
    EXPECT(!sim_prices_are_fine("/tmp", why, sizeof(why)) && strstr(why, "plain file"));
    EXPECT(!sim_prices_are_fine("/dev/zero", why, sizeof(why)) && strstr(why, "plain file"));
    EXPECT(!sim_prices_are_fine("/no/such/file", why, sizeof(why)) && strstr(why, "No such file"));
    EXPECT(!sim_prices_are_fine("H100", why, sizeof(why)));
    begin_file();
    unlink(path);
    REQUIRE(!mkfifo(path, 0600));
    EXPECT(!sim_prices_are_fine(path, why, sizeof(why)) && strstr(why, "plain file")); /* and does not wait for what is written there */
    unlink(path);
    EXPECT(sim_prices_are_fine("", why, sizeof(why)) && sim_prices_are_fine("h100", why, sizeof(why)));
}

/* What one copy, and two of different streams, take by the clock of a device whose calls cost nothing else here. */
#define COPIED (64u << 20)

static CUdeviceptr on_device;
static void *on_host;

static void begin_copies(const char *prices, bool charged)
{
    struct sim_shape shape = simulated_shape();
    shape.charge_cost = charged;
    snprintf(shape.prices, sizeof(shape.prices), "%s", prices);
    simulated_begin_as(&shape);
    REQUIRE_OK(cuMemAlloc(&on_device, 2 * COPIED));
    REQUIRE_OK(cuMemAllocHost(&on_host, 2 * COPIED));
}

static uint64_t expected(const char *prices, const char *way)
{
    return sim_price(prices, way) * (COPIED >> 20);
}

CASE(copies_take_as_long_as_the_link)
{
    for (int i = 0; i < 5; i++) {
        const char *list = sim_price_list(i);
        begin_copies(list, true);
        uint64_t cost = simulated_books().cost_ns, start = sim_now();
        EXPECT_OK(cuMemcpyHtoD(on_device, on_host, COPIED));
        EXPECT_EQ(sim_now() - start, expected(list, "pinned_to_device"));
        start = sim_now();
        EXPECT_OK(cuMemcpyDtoH(on_host, on_device, COPIED));
        EXPECT_EQ(sim_now() - start, expected(list, "pinned_to_host"));
        start = sim_now();
        EXPECT_OK(cuMemcpyDtoD(on_device, on_device + COPIED, COPIED));
        EXPECT_OK(cuCtxSynchronize());
        EXPECT_EQ(sim_now(), start);
        EXPECT_EQ(simulated_books().cost_ns, cost); /* the driver's time is what it was */
        EXPECT(expected(list, "pageable_to_host") > expected(list, "pinned_to_host"));
    }
    EXPECT(expected("gh200", "pinned_to_host") < expected("h200", "pinned_to_host"));
    EXPECT(expected("h200", "pinned_to_host") < expected("a100", "pinned_to_host"));
}

CASE(the_host_waits_for_copies_of_pageable_memory)
{
    begin_copies("h200", true);
    void *pageable = calloc(1, COPIED);
    CUstream stream = simulated_stream();
    uint64_t start = sim_now();
    EXPECT_OK(cuMemcpyHtoDAsync(on_device, pageable, COPIED, stream));
    EXPECT_EQ(sim_now() - start, expected("h200", "pageable_to_device"));
    start = sim_now();
    EXPECT_OK(cuMemcpyHtoDAsync(on_device, on_host, COPIED, stream));
    EXPECT_EQ(sim_now(), start);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    free(pageable);
}

CASE(copies_of_one_direction_share_an_engine)
{
    begin_copies("h200", true);
    CUstream one = simulated_stream(), two = simulated_stream();
    uint64_t start = sim_now(), there = expected("h200", "pinned_to_device"), back = expected("h200", "pinned_to_host");
    EXPECT_OK(cuMemcpyHtoDAsync(on_device, on_host, COPIED, one));
    EXPECT_OK(cuMemcpyDtoHAsync((char *)on_host + COPIED, on_device + COPIED, COPIED, two)); /* the other direction goes on beside it */
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(sim_now() - start, there > back ? there : back);
    start = sim_now();
    EXPECT_OK(cuMemcpyHtoDAsync(on_device, on_host, COPIED, one));
    EXPECT_OK(cuMemcpyHtoDAsync(on_device + COPIED, on_host, COPIED, two));
    EXPECT_OK(cuStreamSynchronize(one));
    EXPECT_EQ(sim_now() - start, there);
    EXPECT_OK(cuStreamSynchronize(two));
    EXPECT_EQ(sim_now() - start, 2 * there);
}

/* What lets it go on may come after another copy. */
CASE(a_copy_behind_a_word_does_not_hold_the_engine)
{
    begin_copies("h200", true);
    CUstream waits = simulated_stream(), other = simulated_stream();
    uint32_t *word = (void *)((char *)on_host + COPIED);
    *word = 0;
    EXPECT_OK(cuStreamWaitValue32(waits, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_EQ));
    EXPECT_OK(cuMemcpyHtoDAsync(on_device, on_host, COPIED, waits));
    EXPECT_OK(cuMemcpyHtoDAsync(on_device + COPIED, on_host, COPIED, other));
    EXPECT_OK(cuStreamWriteValue32(other, (CUdeviceptr)word, 1, 0));
    EXPECT_OK(cuStreamSynchronize(waits));
    EXPECT_EQ(*word, 1);
}

CASE(copies_take_no_time_where_calls_do_not)
{
    begin_copies("h200", false);
    uint64_t start = sim_now();
    EXPECT_OK(cuMemcpyHtoD(on_device, on_host, COPIED));
    EXPECT_EQ(sim_now(), start);
}

struct other {
    CUcontext context;
    uint64_t  cost;
};

static void *allocate(void *argument)
{
    struct other *other = argument;
    CUdeviceptr at;
    EXPECT_OK(cuCtxSetCurrent(other->context));
    uint64_t start = sim_cost_of_thread();
    EXPECT_OK(cuMemAlloc(&at, 1 << 20));
    EXPECT_OK(cuMemFree(at));
    other->cost = sim_cost_of_thread() - start;
    return NULL;
}

CASE(a_thread_has_the_cost_of_its_own_calls)
{
    pthread_t thread;
    struct other other = {0};
    REQUIRE_OK(cuCtxGetCurrent(&other.context));
    uint64_t ours = sim_cost_of_thread(), all = simulated_books().cost_ns;
    REQUIRE(!pthread_create(&thread, NULL, allocate, &other));
    REQUIRE(!pthread_join(thread, NULL));
    EXPECT_EQ(sim_cost_of_thread(), ours);
    EXPECT(other.cost >= 230450 + 51200);
    EXPECT_EQ(simulated_books().cost_ns - all, other.cost);
}

SUITE_MAIN_AROUND("simulated device: prices", simulated_begin, NULL)
