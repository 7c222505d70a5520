// RMM with one of its memory resources: what it holds over what the program asks for, and what a pair of calls costs. cupy_pools.py is the same
// program in Python. Prints a line of JSON; bench/reach/pools.py starts it, and bench/reach/build_rmm builds it.
//
//     rmm_pools cuda|async|pool|arena [count]        count: only the calls that served.py counts
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <rmm/cuda_stream.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

namespace {

constexpr std::size_t mib = 1 << 20, most = 1536 * mib, alignment = 256;
constexpr std::size_t sizes[] = {512, 64 << 10, 2 << 20, 32 << 20};
constexpr int steps = 20000, pairs = 2000, rounds = 30;

std::size_t left()
{
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    return free;
}

std::uint64_t number()
{
    static std::uint64_t x = 1;
    x = x * 6364136223846793005u + 1442695040888963407u;
    return x >> 33;
}

template <class Pool> void count(Pool& pool, rmm::cuda_stream_view stream)
{
    std::vector<std::pair<std::size_t, void*>> kept;
    for (int step = 0; step < 50; step++) {
        std::size_t size = 65536 * (step % 17 + 1);
        kept.emplace_back(size, pool.allocate(stream, size, alignment));
        if (step % 3) {
            pool.deallocate(stream, kept[0].second, kept[0].first, alignment);
            kept.erase(kept.begin());
        }
    }
    for (auto [size, at] : kept)
        pool.deallocate(stream, at, size, alignment);
}

template <class Pool> void hold(Pool& pool, rmm::cuda_stream_view stream, std::size_t before)
{
    std::vector<std::pair<std::size_t, void*>> live;
    std::size_t now = 0, asked = 0, held = 0;
    auto drop = [&] {
        auto which = live.begin() + static_cast<std::ptrdiff_t>(number() % live.size());
        now -= which->first;
        pool.deallocate(stream, which->second, which->first, alignment);
        live.erase(which);
    };
    for (int step = 0; step < steps; step++) {
        std::size_t base = std::size_t{512} << number() % 17, size = base + number() % base;
        while (now + size > most || live.size() > 400)
            drop();
        live.emplace_back(size, pool.allocate(stream, size, alignment));
        now += size;
        asked = std::max(asked, now);
        if (step % 20 == 0)
            held = std::max(held, before - left());
        if (number() % 2)
            drop();
    }
    held = std::max(held, before - left());
    for (auto [size, at] : live)
        pool.deallocate(stream, at, size, alignment);
    std::printf("{\"requested\": %zu, \"reserved\": %zu, \"ns\": {", asked, held);
}

double now_ns()
{
    timespec at;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return static_cast<double>(at.tv_sec) * 1e9 + static_cast<double>(at.tv_nsec);
}

template <class Pool> double cost(Pool& pool, rmm::cuda_stream_view stream, std::size_t size)
{
    double least = 1e18;
    for (int round = 0; round < rounds; round++) {
        double before = now_ns();
        for (int i = 0; i < pairs; i++)
            pool.deallocate(stream, pool.allocate(stream, size, alignment), size, alignment);
        least = std::min(least, (now_ns() - before) / pairs);
    }
    return least;
}

template <class Pool> int run(Pool&& pool, bool only_count, std::size_t before)
{
    rmm::cuda_stream stream(rmm::cuda_stream::flags::non_blocking);
    if (only_count) {
        count(pool, stream.view());
        return 0;
    }
    hold(pool, stream.view(), before);
    for (std::size_t i = 0; i < std::size(sizes); i++)
        std::printf("%s\"%zu\": %.0f", i ? ", " : "", sizes[i], cost(pool, stream.view(), sizes[i]));
    std::printf("}}\n");
    return 0;
}

} // namespace

int main(int words, char** word)
{
    bool only_count = words > 2 && !std::strcmp(word[2], "count");
    const char* kind = words > 1 ? word[1] : "";
    cudaFree(nullptr);
    std::size_t before = left();
    rmm::mr::cuda_memory_resource cuda;
    if (!std::strcmp(kind, "cuda"))
        return run(cuda, only_count, before);
    if (!std::strcmp(kind, "async"))
        return run(rmm::mr::cuda_async_memory_resource(), only_count, before);
    if (!std::strcmp(kind, "pool"))
        return run(rmm::mr::pool_memory_resource(cuda, 64 * mib), only_count, before);
    if (!std::strcmp(kind, "arena"))
        return run(rmm::mr::arena_memory_resource(cuda, 4096 * mib), only_count, before);
    std::fprintf(stderr, "rmm_pools cuda|async|pool|arena [count]\n");
    return 2;
}
