/*
 * speed.cpp: the loops that speed.py measures. The same code in the same process allocates and frees blocks of PyTorch's native allocator and of
 * cenote. Compiled as cenote's adapter is, against the installed torch. speed.py says what is compared, how often, and with which limits.
 *
 * Times are CPU time of this thread. The loops do not touch the memory. An exception of PyTorch ends the program.
 */
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <cstdint>
#include <ctime>
#include <vector>

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

namespace
{

CUDAAllocator *allocators[2]; /* the native one, cenote */
std::vector<void *> live[2];

double now_ns()
{
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

/* As bench_random and bench_random_size of bench/common.c. */
uint64_t random_number(uint64_t &state)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545f4914f6cdd1dull;
}

size_t random_size(uint64_t &state, size_t least, size_t most)
{
    double unit = static_cast<double>(random_number(state) >> 11) * 0x1p-53;
    return static_cast<size_t>(static_cast<double>(least) * std::exp2(unit * std::log2(static_cast<double>(most) / static_cast<double>(least))));
}

struct Turn {
    size_t place, bytes;
};

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

/* The allocator that PyTorch has now is the native one (0) or cenote (1). */
EXPORT void speed_know(int which)
{
    allocators[which] = c10::cuda::CUDACachingAllocator::get();
}

EXPORT void speed_begin(int which)
{
    allocators[which]->init(1);
}

/* Sets the allocator of new tensors. Live tensors keep theirs. */
EXPORT void speed_use(int which)
{
    c10::cuda::CUDACachingAllocator::allocator.store(allocators[which]);
}

/* ns of one allocation and its free. */
EXPORT double speed_pair(int which, size_t bytes, int turns)
{
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0).stream();
    double begin = now_ns();
    for (int i = 0; i < turns; i++)
        allocators[which]->raw_delete(allocators[which]->raw_alloc_with_stream(bytes, stream));
    return (now_ns() - begin) / turns;
}

/* Each turn frees a random one of `count` live blocks and allocates one of a random size. Both allocators do the same turns, in every round. */
EXPORT double speed_churn(int which, size_t count, size_t least, size_t most, int turns)
{
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0).stream();
    CUDAAllocator *a = allocators[which];
    std::vector<void *> &blocks = live[which];
    std::vector<Turn> plan(static_cast<size_t>(turns));
    uint64_t state = 88172645463325252ull;
    for (Turn &turn : plan)
        turn = {random_number(state) % count, random_size(state, least, most)};
    while (blocks.size() < count)
        blocks.push_back(a->raw_alloc_with_stream(random_size(state, least, most), stream));
    double begin = now_ns();
    for (const Turn &turn : plan) {
        a->raw_delete(blocks[turn.place]);
        blocks[turn.place] = a->raw_alloc_with_stream(turn.bytes, stream);
    }
    return (now_ns() - begin) / turns;
}

EXPORT void speed_give_back(int which)
{
    for (void *block : live[which])
        allocators[which]->raw_delete(block);
    live[which].clear();
}

/* Makes and drops a tensor of so many bytes from the allocator that speed_use named. */
EXPORT double speed_empty(size_t bytes, int turns)
{
    auto options = at::TensorOptions().device(at::kCUDA, 0).dtype(at::kByte);
    double begin = now_ns();
    for (int i = 0; i < turns; i++)
        at::empty({static_cast<int64_t>(bytes)}, options);
    return (now_ns() - begin) / turns;
}
