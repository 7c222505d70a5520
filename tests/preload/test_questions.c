/*
 * test_questions.c: what memory says of itself, and what stays the driver's: contexts of the program's own, managed and imported memory, pools.
 */
#include "tests/preload/card.h"

/* Attributes have 4 or 8 bytes. */
static uint64_t ask(CUpointer_attribute attribute, CUdeviceptr at)
{
    uint64_t answer = 0;
    DONE(cuPointerGetAttribute(&answer, attribute, at));
    return answer;
}

ON_CARD(an_address_range_is_the_block)
{
    CUdeviceptr at[3], start;
    size_t size, sizes[] = {1000, 3 * MIB + 7, 700 * KIB};
    for (int i = 0; i < 3; i++)
        DONE(cuMemAlloc(&at[i], sizes[i]));
    for (int i = 0; i < 3; i++) {
        DONE(cuMemGetAddressRange(&start, &size, at[i] + sizes[i] - 1));
        EXPECT_EQ(start, at[i]);
        EXPECT_EQ(size, sizes[i]);
        DONE(cuMemGetAddressRange(NULL, NULL, at[i]));
        EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at[i] + 900), at[i]);
        EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at[i] + 900), sizes[i]);
        DONE(cuMemFree(at[i]));
    }
}

/* Freed memory is none, as without cenote, also where its pages are mapped for others, or are kept until a capture has ended. */
static void ask_of_the_freed(const char *is_on)
{
    CUdeviceptr live, at[3], start;
    size_t size;
    CUgraph graph = NULL;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR};
    setenv("CENOTE_PRELOAD", is_on, 1);
    card_open(CAPACITY, 1);
    DONE(cuMemAlloc(&live, 1000));
    for (int i = 0; i < 3; i++)
        DONE(i == 1 ? cuMemAllocAsync(&at[i], 3000, card.stream[A]) : cuMemAlloc(&at[i], 3000));
    DONE(cuMemFree(at[0]));
    DONE(cuMemFreeAsync(at[1], card.stream[A]));
    DONE(cuStreamSynchronize(card.stream[A]));
    DONE(cuStreamBeginCapture(card.stream[B], CU_STREAM_CAPTURE_MODE_RELAXED));
    DONE(cuMemFree(at[2]));
    sim_set_quiet(true);
    for (int i = 0; i < 3; i++) {
        unsigned type = 77;
        uint64_t first = 77;
        void *where[] = {&type, &first};
        EXPECT_EQ(cuMemGetAddressRange(&start, &size, at[i] + 100), CUDA_ERROR_NOT_FOUND);
        EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at[i] + 100), CUDA_ERROR_INVALID_VALUE);
        DONE(cuPointerGetAttributes(2, which, where, at[i] + 100));
        EXPECT_EQ(type + first, 0);
        EXPECT_EQ(cuMemFree(at[i]), CUDA_ERROR_INVALID_VALUE);
    }
    DONE(cuMemGetAddressRange(&start, &size, live));
    DONE(cuStreamEndCapture(card.stream[B], &graph));
    DONE(cuGraphDestroy(graph));
    DONE(cuMemFree(live));
    scene_is_open = false;
    exit(failures_said());
}

ENDS_WITH(freed_memory_under_the_preload, 0) { ask_of_the_freed("on"); }
ENDS_WITH(freed_memory_without_it, 0) { ask_of_the_freed("off"); }

/* What is for pages that a program has mapped itself the driver refuses for other memory, live or freed; the block is as it was. */
static void change_pages(const char *is_on)
{
    CUdeviceptr at[3];
    CUmemAccessDesc none = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};
    setenv("CENOTE_PRELOAD", is_on, 1);
    card_open(CAPACITY, 1);
    struct held held = plain_take(8 * MIB, card.stream[A]);
    at[0] = at_of(&held);
    DONE(cuMemAllocAsync(&at[1], 8 * MIB, card.stream[A]));
    DONE(cuMemAlloc(&at[2], 8 * MIB));
    DONE(cuMemFree(at[2]));
    DONE(cuStreamSynchronize(card.stream[A]));
    sim_set_quiet(true);
    for (int i = 0; i < 3; i++) {
        unsigned long long flags;
        CUmemGenericAllocationHandle handle;
        CUdeviceptr page = (at[i] + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
        EXPECT_EQ(cuMemUnmap(page, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(cuMemSetAccess(page, 2 * MIB, &none, 1), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(cuMemGetAccess(&flags, &none.location, page), CUDA_ERROR_INVALID_VALUE);
        EXPECT_EQ(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)page), CUDA_ERROR_INVALID_VALUE);
    }
    held_expect(&held, card.stream[A]);
    DONE(cuMemFree(at[0]));
    DONE(cuMemFreeAsync(at[1], card.stream[A]));
    struct held next = plain_take(8 * MIB, card.stream[B]); /* where the freed one lay, perhaps */
    held_expect(&next, card.stream[B]);
    DONE(cuMemFree(at_of(&next)));
    EXPECT_EQ(sim_mismatches(), 0);
    scene_is_open = false;
    exit(failures_said());
}

ENDS_WITH(pages_under_the_preload, 0) { change_pages("on"); }
ENDS_WITH(pages_without_it, 0) { change_pages("off"); }

/* Beside what the driver says of memory of cuMemAlloc with CENOTE_PRELOAD=off: the same for every attribute that a program may act on. */
struct answers {
    CUcontext context;
    unsigned type, handles, managed, mapped;
    int device;
    CUmemoryPool pool;
};

static struct answers answers_of(CUdeviceptr at)
{
    struct answers a = {0};
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                   CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_MAPPED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
    void *where[] = {&a.context, &a.type, &a.handles, &a.managed, &a.mapped, &a.device, &a.pool};
    DONE(cuPointerGetAttributes(7, which, where, at));
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_CONTEXT, at), (uintptr_t)a.context);
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at), (uintptr_t)a.pool);
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at), a.handles);
    return a;
}

static void ask_both(const char *is_on)
{
    CUdeviceptr plain, async;
    CUmemoryPool pool;
    CUmemGenericAllocationHandle handle;
    setenv("CENOTE_PRELOAD", is_on, 1);
    card_open(CAPACITY, 1);
    sim_set_quiet(true);
    DONE(cuDeviceGetDefaultMemPool(&pool, 0));
    DONE(cuMemAlloc(&plain, 3 * MIB));
    DONE(cuMemAllocAsync(&async, 3 * MIB, card.stream[A]));
    struct answers p = answers_of(plain), s = answers_of(async);
    EXPECT_EQ(p.context, card.context);
    EXPECT(s.context == NULL); /* memory of pools has none */
    for (int i = 0; i < 2; i++) {
        CUdeviceptr start = i ? async : plain;
        EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, start + MIB), start);
        EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, start + MIB), 3 * MIB);
        EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, start), ask(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, start + 2 * MIB));
    }
    EXPECT(ask(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, plain) != ask(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, async));
    EXPECT(p.type == CU_MEMORYTYPE_DEVICE && s.type == CU_MEMORYTYPE_DEVICE);
    EXPECT_EQ(p.handles + s.handles, 0);
    EXPECT_EQ(p.managed + s.managed, 0);
    EXPECT(p.mapped && s.mapped);
    EXPECT_EQ(p.device + s.device, 0);
    EXPECT(p.pool == NULL && s.pool == pool);
    EXPECT_EQ(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)plain), CUDA_ERROR_INVALID_VALUE);
    DONE(cuMemFree(plain));
    DONE(cuMemFreeAsync(async, card.stream[A]));
    scene_is_open = false;
}

ENDS_WITH(attributes_under_the_preload, 0) { ask_both("on"); }
ENDS_WITH(attributes_without_it, 0) { ask_both("off"); }

static CUresult set_synchronizes(CUdeviceptr at, unsigned does)
{
    return cuPointerSetAttribute(&does, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
}

/* What a library that sends memory by a network card sets. For pages the driver has no such attribute, but one of the context. */
static void set_it(const char *is_on)
{
    CUdeviceptr one, two, async;
    unsigned flags = 0;
    setenv("CENOTE_PRELOAD", is_on, 1);
    card_open(CAPACITY, 1);
    sim_set_quiet(true);
    DONE(cuMemAlloc(&one, 3 * MIB));
    DONE(cuMemAlloc(&two, 1000));
    DONE(cuMemAllocAsync(&async, 3 * MIB, card.stream[A]));
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one), 0);
    DONE(set_synchronizes(one + MIB, 7));
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one), 1);
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, two), 0);
    DONE(cuCtxGetFlags(&flags));
    EXPECT_EQ((flags & CU_CTX_SYNC_MEMOPS) != 0, !strcmp(is_on, "on"));
    DONE(set_synchronizes(one, 0));
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one), 0);
    EXPECT_EQ(set_synchronizes(async, 1), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuPointerSetAttribute(&flags, CU_POINTER_ATTRIBUTE_BUFFER_ID, one), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one), CUDA_ERROR_INVALID_VALUE);
    DONE(set_synchronizes(one, 1));
    DONE(cuMemFree(one));
    EXPECT_EQ(set_synchronizes(one, 1), CUDA_ERROR_INVALID_VALUE);
    DONE(cuMemAlloc(&one, 3 * MIB));
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one), 0);
    DONE(cuMemFree(one));
    DONE(cuMemFree(two));
    DONE(cuMemFreeAsync(async, card.stream[A]));
    scene_is_open = false;
}

ENDS_WITH(an_attribute_set_under_the_preload, 0) { set_it("on"); }
ENDS_WITH(an_attribute_set_without_it, 0) { set_it("off"); }

/* The number of a block is its own, and another block at its address has another one. */
ON_CARD(buffers_are_told_apart)
{
    CUdeviceptr one, two, three;
    DONE(cuMemAlloc(&one, 1000));
    DONE(cuMemAlloc(&two, 1000));
    uint64_t first = ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, one), second = ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, two);
    EXPECT(first && second && first != second);
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, one + 999), first);
    DONE(cuMemFree(one));
    DONE(cuMemAlloc(&three, 1000));
    EXPECT_EQ(three, one);
    uint64_t third = ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, three);
    EXPECT(third != first && third != second);
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, two), second);
    DONE(cuMemFree(two));
    DONE(cuMemFree(three));
}

/*
 * With its context a block ends, and what is known of it: another one that gets its address has another number, and has not been asked to wait for
 * copies. `provider`: segments, as pages, may lie where others did.
 */
static void ask_again_after(CUresult (*end)(void), CUresult (*begin)(void), const char *provider)
{
    CUdeviceptr one, next = 0;
    unsigned does = 1;
    setenv("CENOTE_CONF", provider, 1);
    card_open(CAPACITY, 1);
    DONE(begin());
    DONE(cuMemAlloc(&one, 3 * MIB));
    uint64_t number = ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, one);
    DONE(cuPointerSetAttribute(&does, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one));
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, one), 1);
    DONE(end());
    DONE(begin());
    DONE(cuMemAlloc(&next, 3 * MIB));
    EXPECT_EQ(next, one);
    EXPECT(ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, next) != number);
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, next), 0);
    DONE(cuMemFree(next));
    scene_is_open = false;
}

static CUcontext brief;

static CUresult begin_primary(void)
{
    CUresult result = cuDevicePrimaryCtxRetain(&card.context, 0);
    return result ? result : cuCtxSetCurrent(card.context);
}

static CUresult reset_primary(void) { return cuDevicePrimaryCtxReset(0); }
static CUresult begin_own(void) { return cuCtxCreate(&brief, NULL, 0, 0); }
static CUresult end_own(void) { return cuCtxDestroy(brief); }

ENDS_WITH(a_number_ends_with_a_reset, 0) { ask_again_after(reset_primary, begin_primary, "provider:vmm"); }
ENDS_WITH(a_number_of_a_segment_ends_with_a_reset, 0) { ask_again_after(reset_primary, begin_primary, "provider:plain"); }
ENDS_WITH(a_number_ends_with_a_context_of_the_programs, 0) { ask_again_after(end_own, begin_own, "provider:vmm"); }

/* What the pool holds and no block uses counts as free. */
ON_CARD(memory_left)
{
    size_t before, during, after, total;
    CUdeviceptr at;
    DONE(cuMemGetInfo(&before, &total));
    EXPECT_EQ(total, CAPACITY);
    DONE(cuMemAlloc(&at, 40 * MIB));
    DONE(cuMemGetInfo(&during, NULL));
    EXPECT_EQ(before - during, 40 * MIB);
    DONE(cuMemFree(at));
    DONE(cuMemGetInfo(&after, &total));
    EXPECT_EQ(after, before);
    DONE(cuMemGetInfo(NULL, &total));
}

/* In every context of the device; and no more than the pool's limit allows. */
ON_CARD(memory_left_in_another_context)
{
    size_t left, total;
    CUcontext own;
    struct held block = plain_take(40 * MIB, card.stream[A]);
    DONE(cuMemFree(at_of(&block)));
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    DONE(cuMemGetInfo(&left, &total));
    EXPECT_EQ(left, total);
    DONE(cuCtxDestroy(own));
}

ENDS_WITH(memory_left_under_a_limit, 0)
{
    size_t left, total;
    setenv("CENOTE_CONF", "limit:64MiB", 1);
    card_open(CAPACITY, 1);
    struct held block = plain_take(40 * MIB, card.stream[A]);
    DONE(cuMemGetInfo(&left, &total));
    EXPECT_EQ(left, 24 * MIB);
    DONE(cuMemFree(at_of(&block)));
    DONE(cuMemGetInfo(&left, &total));
    EXPECT_EQ(left, 64 * MIB);
    EXPECT_EQ(total, CAPACITY);
    card_close();
}

/* --- the driver's own */

ON_CARD(a_context_of_the_program)
{
    CUcontext own, popped;
    CUdeviceptr in_own = 0, in_primary = 0, async = 0;
    CUstream stream;
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cuMemAlloc(&in_own, 3 * MIB));
    DONE(cuMemAllocAsync(&async, 3 * MIB, stream));
    EXPECT(is_ours(in_own) && is_ours(async));
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_CONTEXT, in_own), (uint64_t)(uintptr_t)own);
    DONE(cuCtxPopCurrent(&popped));
    DONE(cuMemAlloc(&in_primary, 3 * MIB));
    EXPECT(is_ours(in_primary));
    EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_CONTEXT, in_primary), (uint64_t)(uintptr_t)card.context);
    DONE(cuCtxPushCurrent(own)); /* memory of either is freed under either */
    DONE(cuMemFree(in_primary));
    EXPECT(!is_ours(in_primary));
    DONE(cuMemFreeAsync(async, stream));
    DONE(cuStreamDestroy(stream));
    DONE(cuMemFree(in_own));
    EXPECT(!is_ours(in_own) && !is_ours(async));
    DONE(cuCtxDestroy(own));
    EXPECT_EQ(driver_allocations(), 0);
}

/* A stream of the program's own context, named while the primary one is current: its memory is of that context. */
ON_CARD(a_stream_of_another_context)
{
    CUcontext own, popped;
    CUdeviceptr async = 0;
    CUstream stream;
    DONE(cuCtxCreate(&own, NULL, 0, 0));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(&popped));
    DONE(cuMemAllocAsync(&async, 3 * MIB, stream));
    EXPECT(async && is_ours(async));
    DONE(cuMemFreeAsync(async, stream));
    DONE(cuStreamSynchronize(stream));
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxDestroy(own));
}

ON_CARD(memory_that_is_not_device_memory)
{
    CUdeviceptr managed;
    void *host, *pinned;
    DONE(cuMemAllocManaged(&managed, 3 * MIB, CU_MEM_ATTACH_GLOBAL));
    DONE(cuMemAllocHost(&host, 1000));
    DONE(cuMemHostAlloc(&pinned, 1000, 0));
    EXPECT(!is_ours(managed));
    EXPECT(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
    EXPECT_EQ(driver_allocations(), 3);
    DONE(cuMemFree(managed));
    DONE(cuMemFreeHost(host));
    DONE(cuMemFreeHost(pinned));
    EXPECT_EQ(driver_allocations(), 0);
}

/* Pages that the program maps itself are its own, as is what it asks of them. */
ON_CARD(memory_that_the_program_maps)
{
    CUdeviceptr at;
    CUmemGenericAllocationHandle page, again;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DONE(cuMemCreate(&page, 2 * MIB, &prop, 0));
    DONE(cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
    DONE(cuMemMap(at, 2 * MIB, 0, page, 0));
    DONE(cuMemSetAccess(at, 2 * MIB, &access, 1));
    unsigned long long flags = 0;
    DONE(cuMemGetAccess(&flags, &access.location, at));
    EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    DONE(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at));
    EXPECT_EQ(again, page);
    DONE(cuMemRelease(again));
    DONE(cuMemUnmap(at, 2 * MIB));
    DONE(cuMemRelease(page));
    DONE(cuMemAddressFree(at, 2 * MIB));
}

PRELOAD_MAIN("questions")
