/*
 * speed.cpp: the loops that speed.py measures: blocks of PyTorch's native allocator and of cenote, taken and given back by the same
 * code in the same process. Compiled like cenote's adapter, against the torch that is installed. Only loops: what is compared, how often
 * and with which verdict is said in speed.py.
 *
 * Times are CPU time of this thread. Nothing touches the memory. An exception of PyTorch's ends the program.
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

/* The one that tensors come from. Those that live keep the one they came from. */
EXPORT void speed_use(int which)
{
    c10::cuda::CUDACachingAllocator::allocator.store(allocators[which]);
}

/* ns of taking one block and giving it back. */
EXPORT double speed_pair(int which, size_t bytes, int turns)
{
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0).stream();
    double begin = now_ns();
    for (int i = 0; i < turns; i++)
        allocators[which]->raw_delete(allocators[which]->raw_alloc_with_stream(bytes, stream));
    return (now_ns() - begin) / turns;
}

/* Each turn gives back a random one of `count` live blocks and takes another, of a random size. The same turns for both, and in every round. */
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

/* A tensor of so many bytes from the allocator that speed_use named, made and dropped. */
EXPORT double speed_empty(size_t bytes, int turns)
{
    auto options = at::TensorOptions().device(at::kCUDA, 0).dtype(at::kByte);
    double begin = now_ns();
    for (int i = 0; i < turns; i++)
        at::empty({static_cast<int64_t>(bytes)}, options);
    return (now_ns() - begin) / turns;
}
