/* test_books.c: the books of the simulated device: what they count, and that a reset clears them. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/simulated.h"

#define PAGE SIMULATED_PAGE

CASE(pages_are_counted_from_create_to_the_last_unmap)
{
    struct machine_range range = machine_map(3);
    struct sim_books books = simulated_books();
    EXPECT_EQ(books.used, 3 * PAGE);
    EXPECT_EQ(books.handles, 0);
    EXPECT_EQ(books.mappings, 3);
    EXPECT_EQ(books.reservations, 1);
    EXPECT_EQ(books.reserved, 3 * PAGE);
    machine_unmap(range);
    books = simulated_books();
    EXPECT_EQ(books.used, 0);
    EXPECT_EQ(books.used_peak, 3 * PAGE);
    EXPECT_EQ(books.mappings, 0);
    EXPECT_EQ(books.reservations, 0);
    EXPECT_EQ(books.reserved, 0);
}

CASE(everything_that_lives_is_counted)
{
    CUdeviceptr at, pooled;
    void *host;
    CUevent event;
    CUmemGenericAllocationHandle page = machine_create_page();
    CUstream stream = simulated_stream();
    REQUIRE_OK(cuMemAlloc(&at, 512));
    REQUIRE_OK(cuMemAllocAsync(&pooled, 512, stream));
    REQUIRE_OK(cuMemAllocHost(&host, 512));
    REQUIRE_OK(cuEventCreate(&event, 0));
    struct sim_books books = simulated_books();
    EXPECT_EQ(books.allocations, 3);
    EXPECT_EQ(books.handles, 1);
    EXPECT_EQ(books.streams, 1);
    EXPECT_EQ(books.events, 1);
    EXPECT_EQ(books.contexts, 1);
    EXPECT_OK(cuMemFreeAsync(pooled, stream));
    EXPECT_OK(cuDevicePrimaryCtxRelease(0)); /* takes all but the page along */
    books = simulated_books();
    EXPECT_EQ(books.allocations, 0);
    EXPECT_EQ(books.streams, 0);
    EXPECT_EQ(books.events, 0);
    EXPECT_EQ(books.contexts, 0);
    EXPECT_EQ(books.handles, 1);
    EXPECT_OK(cuMemRelease(page));
}

CASE(calls_are_counted_with_those_that_take_no_lock)
{
    unsigned long long id;
    uint64_t calls = simulated_books().calls;
    for (int i = 0; i < 10; i++)
        EXPECT_OK(cuStreamGetId(NULL, &id));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(simulated_books().calls - calls, 11);
}

static void *ask_ten_times(void *unused)
{
    unsigned long long id;
    for (int i = 0; i < 10; i++)
        cuStreamGetId(NULL, &id);
    return unused;
}

CASE(calls_of_a_thread_that_took_no_lock_are_counted_when_it_ends)
{
    pthread_t thread;
    uint64_t calls = simulated_books().calls;
    REQUIRE_EQ(pthread_create(&thread, NULL, ask_ten_times, NULL), 0);
    REQUIRE_EQ(pthread_join(thread, NULL), 0);
    EXPECT_EQ(simulated_books().calls - calls, 10);
}

CASE(cost_follows_handles_not_bytes)
{
    struct machine_range range = machine_map(8);
    uint64_t start = simulated_books().cost_ns;
    machine_allow(range.at, PAGE);
    uint64_t one = simulated_books().cost_ns - start;
    start = simulated_books().cost_ns;
    machine_allow(range.at, 8 * PAGE);
    EXPECT(one > 0);
    EXPECT_EQ(simulated_books().cost_ns - start, 8 * one);
}

/* Also of calls that cuda.h knows by another name than programs. */
CASE(allocations_have_their_cost)
{
    CUdeviceptr at;
    uint64_t start = simulated_books().cost_ns;
    EXPECT_OK(cuMemAlloc(&at, 100 << 20));
    uint64_t taken = simulated_books().cost_ns;
    EXPECT_EQ(taken - start, 230450);
    EXPECT_OK(cuMemFree(at));
    EXPECT_EQ(simulated_books().cost_ns - taken, 51200);
}

CASE(memory_of_others_is_not_free)
{
    size_t left, less, total;
    EXPECT_OK(cuMemGetInfo(&left, &total));
    sim_set_foreign(0, 100 << 20);
    EXPECT_OK(cuMemGetInfo(&less, &total));
    EXPECT_EQ(left - less, 100 << 20);
}

CASE(a_reset_forgets_everything)
{
    (void)machine_map(2);
    EXPECT_EQ(cuMemRelease(1), CUDA_ERROR_INVALID_VALUE);
    simulated_begin();
    struct sim_books books = simulated_books();
    EXPECT_EQ(books.used, 0);
    EXPECT_EQ(books.mappings, 0);
    EXPECT_EQ(books.violations, 0);
    EXPECT_TEXT_EQ(sim_last_violation(), "");
}

CASE(contents_do_not_outlive_their_memory)
{
    struct machine_range range = machine_map(1);
    EXPECT_OK(sim_launch_fill(NULL, range.at, 7, PAGE));
    machine_unmap(range);
    range = machine_map(1);
    EXPECT_OK(sim_launch_expect(NULL, range.at, 0, PAGE));
    EXPECT_EQ(sim_mismatches(), 0);
    machine_unmap(range);
}

CASE(contents_beyond_the_budget_are_unknown_not_wrong)
{
    struct sim_shape shape = simulated_shape();
    shape.data = 1 << 20;
    simulated_begin_as(&shape);
    struct machine_range range = machine_map(2);
    EXPECT_OK(sim_launch_fill(NULL, range.at, 7, 2 * PAGE));
    EXPECT_OK(sim_launch_expect(NULL, range.at, 7, 2 * PAGE));
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT_OK(sim_launch_expect(NULL, range.at, 8, 2 * PAGE));
    EXPECT_EQ(sim_mismatches(), (1 << 20) / 8);
}

/* Its first half was dropped. When there is room again, the second half alone gets no place: beside it the first would seem to be zero. */
CASE(a_leaf_of_which_a_part_was_dropped_stays_unknown_until_all_of_it_is_written)
{
    struct sim_shape shape = simulated_shape();
    const size_t leaf = 64 << 10, half = leaf / 2;
    shape.data = PAGE;
    simulated_begin_as(&shape);
    struct machine_range full = machine_map(1), other = machine_map(1);
    EXPECT_OK(sim_launch_fill(NULL, full.at, 7, PAGE));
    EXPECT_OK(sim_launch_fill(NULL, other.at, 8, half));
    machine_unmap(full);
    EXPECT_OK(sim_launch_fill(NULL, other.at + half, 8, half));
    EXPECT_OK(sim_launch_expect(NULL, other.at, 8, leaf));
    EXPECT_EQ(sim_mismatches(), 0);
    EXPECT_OK(sim_launch_fill(NULL, other.at, 8, leaf));
    EXPECT_OK(sim_launch_expect(NULL, other.at, 9, leaf));
    EXPECT_EQ(sim_mismatches(), leaf / 8);
    machine_unmap(other);
    other = machine_map(1); /* memory that is new is not lost */
    EXPECT_OK(sim_launch_fill(NULL, other.at, 8, half));
    EXPECT_OK(sim_launch_expect(NULL, other.at, 9, half));
    EXPECT_EQ(sim_mismatches(), (leaf + half) / 8);
    machine_unmap(other);
}

CASE(a_copy_of_what_was_not_kept_is_not_known)
{
    struct sim_shape shape = simulated_shape();
    const size_t leaf = 64 << 10;
    shape.data = leaf;
    simulated_begin_as(&shape);
    struct machine_range range = machine_map(1);
    CUdeviceptr kept = range.at, lost = kept + leaf, zero = lost + leaf;
    EXPECT_OK(sim_launch_fill(NULL, kept, 7, leaf));
    EXPECT_OK(sim_launch_fill(NULL, lost, 7, leaf));
    EXPECT_OK(sim_launch_expect(NULL, zero, 7, leaf)); /* it was never written, and is known */
    EXPECT_EQ(sim_mismatches(), leaf / 8);
    EXPECT_OK(cuMemcpyDtoD(zero, lost, leaf));
    EXPECT_OK(cuMemcpyDtoD(kept, lost, leaf));
    EXPECT_OK(sim_launch_expect(NULL, kept, 9, 3 * leaf));
    EXPECT_EQ(sim_mismatches(), leaf / 8);
    machine_unmap(range);
}

/* The text that `act` brings to stderr. */
static void listen(void (*act)(CUdeviceptr at), CUdeviceptr at, char *said, size_t room)
{
    int ends[2], kept = dup(2);
    REQUIRE(kept >= 0 && !pipe2(ends, O_CLOEXEC | O_NONBLOCK));
    fflush(NULL);
    dup2(ends[1], 2);
    sim_set_quiet(false);
    act(at);
    sim_set_quiet(true);
    dup2(kept, 2);
    ssize_t got = read(ends[0], said, room - 1);
    said[got > 0 ? got : 0] = 0;
    close(kept);
    close(ends[0]);
    close(ends[1]);
}

static void read_back(CUdeviceptr from)
{
    static char bytes[PAGE];
    EXPECT_OK(cuMemcpyDtoH(bytes, from, PAGE));
}

static void ask_for_arrays(CUdeviceptr at)
{
    CUarray array;
    CUtexObject texture;
    CUsurfObject surface;
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 16, .Height = 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(cuArrayCreate(&array, &shape), CUDA_ERROR_NOT_SUPPORTED);
        EXPECT_EQ(cuMemcpyDtoA(NULL, 0, at, 1), CUDA_ERROR_NOT_SUPPORTED);
        EXPECT_EQ(cuTexObjectCreate(&texture, NULL, NULL, NULL), CUDA_ERROR_NOT_SUPPORTED);
        EXPECT_EQ(cuSurfObjectCreate(&surface, NULL), CUDA_ERROR_NOT_SUPPORTED);
    }
}

CASE(calls_that_are_not_simulated_are_refused_and_named_once)
{
    char said[500];
    listen(ask_for_arrays, 0, said, sizeof said);
    EXPECT_EQ(strcmp(said, "simulated GPU: cuArrayCreate: the simulated GPU has no arrays: not supported\n"
                           "simulated GPU: cuMemcpyDtoA: the simulated GPU has no arrays: not supported\n"
                           "simulated GPU: cuTexObjectCreate: the simulated GPU has no texture objects: not supported\n"
                           "simulated GPU: cuSurfObjectCreate: the simulated GPU has no surface objects: not supported\n"), 0);
}

CASE(contents_that_were_not_kept_are_told_of_when_they_are_read)
{
    char said[300];
    struct sim_shape shape = simulated_shape();
    shape.data = PAGE;
    simulated_begin_as(&shape);
    struct machine_range range = machine_map(3);
    EXPECT_OK(sim_launch_fill(NULL, range.at, 7, PAGE));
    listen(read_back, range.at + 2 * PAGE, said, sizeof said);
    EXPECT(!*said); /* never written, and nothing was dropped */
    EXPECT_OK(sim_launch_fill(NULL, range.at + PAGE, 7, PAGE));
    listen(read_back, range.at, said, sizeof said);
    EXPECT(!*said);
    listen(read_back, range.at + PAGE, said, sizeof said);
    EXPECT(strstr(said, "was not kept, and is zero") != NULL);
    listen(read_back, range.at + PAGE, said, sizeof said);
    EXPECT(!*said);
}

CASE(stream_ids_stay_unique_over_resets)
{
    unsigned long long before = 0, after = 0;
    EXPECT_OK(cuStreamGetId(simulated_stream(), &before));
    simulated_begin();
    EXPECT_OK(cuStreamGetId(simulated_stream(), &after));
    EXPECT(after > before);
}

#ifndef __SANITIZE_THREAD__ /* it keeps memory of its own beside all that is touched */
/* Pages of this process, in memory of the host. */
static uint64_t resident(void)
{
    unsigned long all = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    REQUIRE(file != NULL);
    EXPECT_EQ(fscanf(file, "%lu %lu", &all, &pages), 2);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

CASE(contents_that_are_gone_take_no_memory_of_the_host)
{
    const uint64_t bytes = 64 << 20, some = 8 << 20;
    CUdeviceptr at;
    uint64_t before = resident();
    for (int i = 0; i < 3; i++) {
        REQUIRE_OK(cuMemAlloc(&at, bytes));
        EXPECT_OK(cuMemsetD8(at, 1, bytes));
        EXPECT_OK(cuCtxSynchronize());
        EXPECT(resident() > before + bytes - some);
        EXPECT_OK(i == 1 ? cuMemsetD8(at, 0, bytes) : cuMemFree(at));
        EXPECT_OK(cuCtxSynchronize());
        EXPECT(resident() < before + some);
        if (i == 1)
            EXPECT_OK(cuMemFree(at));
    }
    REQUIRE_OK(cuMemAlloc(&at, bytes)); /* and what is written there next is what is read */
    EXPECT_OK(cuMemsetD8(at, 9, bytes / 2));
    EXPECT_OK(sim_launch_expect(NULL, at, 0x0909090909090909, bytes / 2));
    EXPECT_OK(sim_launch_expect(NULL, at + bytes / 2, 0, bytes / 2));
    EXPECT_OK(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);
}
#endif

SUITE_MAIN_AROUND("simulated device: books", simulated_begin, NULL)
