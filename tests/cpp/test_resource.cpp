/*
 * test_resource.cpp: a pool and a group as memory resources of CCCL: any_resource, resource_ref and a container of CCCL draw from them. Contents
 * judge, on a card that is behind the host. tests/install/test_resource.sh compiles mr.hpp against each version of CCCL and RMM that is there.
 */
#include <cenote/mr.hpp>
#include <cuda/buffer>

#include "tests/cpp/card.hpp"

static_assert(cuda::mr::resource_with<cenote::resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::synchronous_resource_with<cenote::resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<cenote::resource, cuda::mr::host_accessible>);
static_assert(std::is_trivially_copyable_v<cenote::resource>);

using any = cuda::mr::any_resource<cuda::mr::device_accessible>;

CASE(any_resource_draws_from_the_pool)
{
    card card;
    cenote::pool pool(0, card::options());
    any resource = cenote::resource(pool), copy = resource;
    EXPECT(resource == copy);
    void *block = resource.allocate(cuda::stream_ref(card.a), 3 * MIB, 4096);
    EXPECT_EQ((uintptr_t)block % 4096, 0);
    EXPECT_EQ(cenote::find(block)->requested, 3 * MIB);
    EXPECT(cenote::find(block)->pool == pool.get());
    copy.deallocate(cuda::stream_ref(card.a), block, 3 * MIB, 4096);
    EXPECT_EQ(live(pool), 0);
    block = resource.allocate(cuda::stream_ref(card.a), 0, 256);
    EXPECT(!block);
    resource.deallocate(cuda::stream_ref(card.a), block, 0, 256);
}

CASE(equal_resources_have_one_pool_and_group)
{
    card card;
    cenote::pool pool(0, card::options()), other(0, card::options());
    cenote::group group(pool, "cccl");
    cenote::resource of_pool(pool), of_group(pool, group);
    EXPECT(of_pool == cenote::resource(pool));
    EXPECT(of_pool != cenote::resource(other));
    EXPECT(of_pool != of_group);
    EXPECT(of_group == cenote::resource(pool, group));
    void *block = of_group.allocate(cuda::stream_ref(card.a), MIB);
    EXPECT(cenote::find(block)->group == group.get());
    of_group.deallocate(cuda::stream_ref(card.a), block, MIB);
}

/* Given back on another stream than it was taken on, while that one still reads. */
CASE(the_stream_of_a_deallocation_is_waited_for)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::resource resource(pool);
    void *block = resource.allocate(cuda::stream_ref(card.a), 40 * MIB, 256);
    card::fill(card.a, block, 1, 40 * MIB);
    card::order(card.a, card.b);
    DONE(sim_launch_wait(card.b, 50000000));
    card::expect(card.b, block, 1, 40 * MIB);
    resource.deallocate(cuda::stream_ref(card.b), block, 40 * MIB, 256);
    void *next = resource.allocate(cuda::stream_ref(card.a), 50 * MIB, 256);
    card::fill(card.a, next, 2, 50 * MIB);
    card::expect(card.a, next, 2, 50 * MIB);
    resource.deallocate(cuda::stream_ref(card.a), next, 50 * MIB, 256);
}

/* Its memory has work on the default stream before it, and another stream, ordered behind nothing, uses it at once. */
CASE(synchronous_memory_is_ready_on_any_stream)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::resource resource(pool);
    void *block = resource.allocate(cuda::stream_ref(CUstream(nullptr)), 40 * MIB, 256);
    DONE(sim_launch_wait(nullptr, 50000000));
    card::fill(nullptr, block, 1, 40 * MIB);
    resource.deallocate(cuda::stream_ref(CUstream(nullptr)), block, 40 * MIB, 256);
    any erased = resource;
    void *next = erased.allocate_sync(40 * MIB, 256);
    card::fill(card.b, next, 2, 40 * MIB);
    DONE(sim_launch_wait(card.b, 100000000));
    card::expect(card.b, next, 2, 40 * MIB);
    DONE(cuStreamSynchronize(card.b));
    erased.deallocate_sync(next, 40 * MIB, 256);
    EXPECT_EQ(live(pool), 0);
}

/* The same on a device that is not the current one. */
CASE(synchronous_memory_of_another_device)
{
    card card(2);
    CUcontext there;
    CUstream stream;
    int current = -1;
    DONE(cuDevicePrimaryCtxRetain(&there, 1));
    DONE(cuCtxPushCurrent(there));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    {
        cenote::pool pool(1, card::options());
        cenote::resource resource(pool);
        void *block = resource.allocate(cuda::stream_ref(CUstream(nullptr)), 40 * MIB);
        DONE(sim_launch_wait(nullptr, 50000000));
        card::fill(nullptr, block, 1, 40 * MIB);
        resource.deallocate(cuda::stream_ref(CUstream(nullptr)), block, 40 * MIB);
        DONE(cuCtxPopCurrent(nullptr));
        void *next = resource.allocate_sync(40 * MIB);
        DONE(cudaGetDevice(&current));
        EXPECT_EQ(current, 0);
        DONE(cuCtxPushCurrent(there));
        card::fill(stream, next, 2, 40 * MIB);
        DONE(sim_launch_wait(stream, 100000000));
        card::expect(stream, next, 2, 40 * MIB);
        DONE(cuCtxSynchronize());
        resource.deallocate_sync(next, 40 * MIB);
    }
    DONE(cuStreamDestroy(stream));
    DONE(cuCtxPopCurrent(nullptr));
    DONE(cuDevicePrimaryCtxRelease(1));
}

CASE(a_container_of_cccl)
{
    card card;
    cenote::pool pool(0, card::options());
    {
        auto buffer = cuda::make_buffer<uint64_t, cuda::mr::device_accessible>(cuda::stream_ref(card.a), cenote::resource(pool), MIB, cuda::no_init);
        EXPECT_EQ(buffer.size(), MIB);
        EXPECT_EQ(cenote::find(buffer.data())->requested, 8 * MIB);
        card::fill(card.a, buffer.data(), 7, 8 * MIB);
        auto moved = std::move(buffer);
        EXPECT_EQ(live(pool), 1);
        card::expect(card.a, moved.data(), 7, 8 * MIB);
    }
    EXPECT_EQ(live(pool), 0);
    void *next = cenote::resource(pool).allocate(cuda::stream_ref(card.a), 40 * MIB);
    card::fill(card.a, next, 8, 40 * MIB);
    cenote::block(next).free();
}

struct their_out_of_memory : std::bad_alloc {
    explicit their_out_of_memory(const std::string &said) : text(said) {}
    std::string text;
};

CASE(out_of_memory_is_the_exception_that_was_asked_for)
{
    card card;
    cenote::pool pool(0, card::options());
    any own = cenote::resource(pool), theirs = cenote::basic_resource<their_out_of_memory>(pool);
    int caught = 0;
    try {
        (void)own.allocate(cuda::stream_ref(card.a), 900 * MIB, 256);
    } catch (const cenote::out_of_memory &) {
        caught++;
    }
    try {
        (void)theirs.allocate(cuda::stream_ref(card.a), 900 * MIB, 256);
    } catch (const their_out_of_memory &said) {
        EXPECT_TEXT_EQ(said.text.c_str(), cenote_message());
        caught++;
    }
    try {
        (void)theirs.allocate(cuda::stream_ref(card.a), MIB, 24);
    } catch (const cenote::misuse &) {
        caught++;
    }
    EXPECT_EQ(caught, 3);
    int never = 0;
    own.deallocate(cuda::stream_ref(card.a), &never, 4, 4); /* a mistake: nothing happens, and nothing is thrown */
    EXPECT_EQ(live(pool), 0);
}

SUITE_MAIN("mr.hpp")
