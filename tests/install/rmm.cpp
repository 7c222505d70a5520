/*
 * rmm.cpp: mr.hpp against the headers of RMM: cenote is an upstream of RMM's adaptors, and the one that retries hears of memory that runs out. Of
 * RMM only what is in its headers runs, and its exceptions: librmm.so has a CUDA runtime inside, which does not know a simulated driver.
 */
#include <rmm/mr/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>

#include <cenote/mr.hpp>

using resource = cenote::basic_resource<rmm::out_of_memory>;
using any = cuda::mr::any_resource<cuda::mr::device_accessible>;
static_assert(cuda::mr::resource_with<resource, cuda::mr::device_accessible>);
static_assert(std::is_constructible_v<rmm::device_async_resource_ref, resource &>);
static_assert(std::is_constructible_v<rmm::device_resource_ref, resource &>);
static_assert(std::is_constructible_v<any, resource>);
static_assert(std::is_constructible_v<rmm::mr::pool_memory_resource, resource, std::size_t>);
static_assert(std::is_constructible_v<rmm::mr::statistics_resource_adaptor, resource>);

int main()
{
    cenote::pool pool(0);
    cenote::block cache = pool.alloc(std::size_t(300) << 20, nullptr);
    auto evict = [](std::size_t, void *arg) {
        cenote::block &held = *static_cast<cenote::block *>(arg);
        return held ? (held = cenote::block(), true) : false;
    };
    rmm::mr::failure_callback_resource_adaptor<> retries(resource(pool), evict, &cache);
    rmm::device_async_resource_ref ref(retries);
    cuda::stream_ref stream{cudaStream_t(nullptr)};
    void *block = ref.allocate(stream, std::size_t(400) << 20, 256); /* the card has room for one of them */
    if (cache || !cenote::find(block))
        return 1;
    ref.deallocate(stream, block, std::size_t(400) << 20, 256);
    try {
        (void)ref.allocate(stream, std::size_t(1) << 40, 256);
        return 2;
    } catch (const rmm::out_of_memory &) {
        return 0;
    }
}
