/*
 * mr.hpp: a pool or a group of cenote as a memory resource of CCCL (cuda::mr) and of RMM. C++17, header only; CCCL comes with the CUDA Toolkit.
 *
 *     cenote::pool pool(0);
 *     cuda::mr::any_resource<cuda::mr::device_accessible> any = cenote::resource(pool);
 *     rmm::mr::set_current_device_resource(cenote::basic_resource<rmm::out_of_memory>(pool));
 *
 * A resource is a copyable pair of pointers and owns nothing: the pool, and the group if there is one, have to live longer than it and what was
 * allocated through it. Two are equal if they have the same pool and group: one gives back what the other has handed out.
 *
 * It is not the resource of a device: each program says where its memory comes from.
 *
 * STREAMS    allocate(stream, ...) is cenote_alloc. deallocate(stream, ...) is cenote_free_on: the last use is on `stream`, or comes before what
 *            `stream` has been given; the stream need not be that of the allocation. No other stream has to be named.
 *            allocate_sync waits until any stream may use the block; before deallocate_sync the program waits until none does.
 * ERRORS     allocate throws what cenote.hpp says, and `OutOfMemory`, made from the message, when memory runs out: adaptors of RMM look for
 *            rmm::out_of_memory. deallocate throws nothing: what cannot be given back stays live, as a block whose `stream` was destroyed.
 * ALIGNMENT  Any power of two up to the size of a page.
 * VERSIONS   CCCL 3.1 and later call allocate and allocate_sync; before that they were allocate_async and allocate. Both are there. Before CCCL 3.0
 *            <cuda/memory_resource> needs LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE. RMM before 26.02 has a base class,
 *            device_memory_resource; what takes its device_async_resource_ref takes this resource as well.
 */
#ifndef CENOTE_MR_HPP
#define CENOTE_MR_HPP

#include <cenote/cenote.hpp>

#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace cenote {

#ifndef __cpp_exceptions
inline namespace without_exceptions {
#endif

template <class OutOfMemory = out_of_memory> class basic_resource {
public:
    explicit basic_resource(pool_ref pool) noexcept : pool_(pool.get()) {}
    basic_resource(pool_ref pool, const group &group) noexcept : pool_(pool.get()), group_(group.get()) {} /* a group of this pool */

    [[nodiscard]] void *allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment)
    {
        return take(stream.get(), bytes, alignment);
    }
    void deallocate(::cuda::stream_ref stream, void *block, std::size_t, std::size_t = default_alignment) noexcept
    {
        (void)cenote_free_on(block, stream.get());
    }
    [[nodiscard]] void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment)
    {
        block taken(take(nullptr, bytes, alignment));
        wait_for_default_stream();
        return taken.release();
    }
    void deallocate_sync(void *block, std::size_t, std::size_t = default_alignment) noexcept { (void)cenote_free(block); }

    /* Their names before CCCL 3.1. */
    [[nodiscard]] void *allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream)
    {
        return take(stream.get(), bytes, alignment);
    }
    [[nodiscard]] void *allocate_async(std::size_t bytes, ::cuda::stream_ref stream) { return take(stream.get(), bytes, default_alignment); }
    void deallocate_async(void *block, std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) noexcept
    {
        deallocate(stream, block, bytes, alignment);
    }
    void deallocate_async(void *block, std::size_t bytes, ::cuda::stream_ref stream) noexcept { deallocate(stream, block, bytes); }
    [[nodiscard]] void *allocate(std::size_t bytes, std::size_t alignment = default_alignment) { return allocate_sync(bytes, alignment); }
    void deallocate(void *block, std::size_t bytes, std::size_t alignment = default_alignment) noexcept { deallocate_sync(block, bytes, alignment); }

    friend bool operator==(const basic_resource &a, const basic_resource &b) noexcept { return a.pool_ == b.pool_ && a.group_ == b.group_; }
    friend bool operator!=(const basic_resource &a, const basic_resource &b) noexcept { return !(a == b); }
    friend constexpr void get_property(const basic_resource &, ::cuda::mr::device_accessible) noexcept {}

#if CCCL_VERSION >= 3001000
    using default_queries = ::cuda::mr::properties_list<::cuda::mr::device_accessible>;
#endif

private:
    static constexpr std::size_t default_alignment = 256; /* what cudaMalloc promises */

    void *take(cenote_stream stream, std::size_t bytes, std::size_t alignment)
    {
        void *block = nullptr;
        cenote_request asked = request(bytes, alignment, stream);
        asked.group = group_;
        int code = cenote_alloc_with(pool_, &asked, &block);
#ifdef __cpp_exceptions
        if constexpr (!std::is_same_v<OutOfMemory, out_of_memory>)
            if (code == CENOTE_OUT_OF_MEMORY || code == CENOTE_OUT_OF_HOST_MEMORY || code == CENOTE_OUT_OF_ADDRESSES)
                throw OutOfMemory(std::string(cenote_message()));
#endif
        check(code);
        return block;
    }
    /* Of the pool's device, which need not be the current one. */
    void wait_for_default_stream()
    {
        int current = 0, own = cenote_pool_device(pool_);
        cudaError_t result = cudaGetDevice(&current);
        if (!result && current != own)
            result = cudaSetDevice(own);
        if (!result)
            result = cudaStreamSynchronize(nullptr);
        if (current != own)
            (void)cudaSetDevice(current);
        if (!result)
            return;
#ifdef __cpp_exceptions
        throw std::runtime_error(cudaGetErrorString(result));
#else
        std::fprintf(stderr, "cudaStreamSynchronize: %s\n", cudaGetErrorString(result));
        std::abort();
#endif
    }
    cenote_pool *pool_;
    cenote_group *group_ = nullptr;
};

using resource = basic_resource<>;

#ifndef __cpp_exceptions
}
#endif

} // namespace cenote
#endif
