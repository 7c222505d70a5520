/*
 * tensor_cache.cpp: a cache of tensors on two streams, with cenote.hpp. One stream loads tensors, the other computes with them. The cache keeps what
 * it has loaded for as long as there is memory: when an allocation finds none, what was used longest ago goes, and is loaded again when it is needed.
 *
 * No kernel runs, so that no GPU is needed: a fill stands for loading, a copy for computing, and each result is compared with what was loaded.
 *
 *     CENOTE_SIM=capacity:1GiB,lag:300000 build/bin/example-cpp
 */
#include <cenote/cenote.hpp>
#include <cuda.h>

#include <cstdio>
#include <list>
#include <stdexcept>
#include <vector>

constexpr std::size_t MIB = 1 << 20;
constexpr int TENSORS = 40, REQUESTS = 400;

static void driver(CUresult result)
{
    if (result)
        throw std::runtime_error("the driver refused a call");
}

struct stream {
    stream() { driver(cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING)); }
    ~stream() { cuStreamDestroy(handle); }
    stream(const stream &) = delete;
    operator CUstream() const { return handle; }
    CUstream handle;
};

/* What `after` is given from now on comes after what `before` has been given. */
static void order(CUstream before, CUstream after)
{
    CUevent event;
    driver(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    driver(cuEventRecord(event, before));
    driver(cuStreamWaitEvent(after, event, 0));
    driver(cuEventDestroy(event));
}

static CUdeviceptr device(const cenote::block &block) { return reinterpret_cast<CUdeviceptr>(block.get()); }

class cache {
public:
    /* The pool calls make_room when memory runs out, before it throws. */
    cache(cenote::pool_ref from, CUstream loads_on, CUstream used_on) : pool(from), load(loads_on), compute(used_on) { pool.on_shortage(make_room); }
    ~cache() { pool.off_shortage(make_room); }

    static std::size_t bytes_of(int name) { return (3 + name % 11) * MIB; }

    /* Valid on the compute stream until the next call. */
    const cenote::block &get(int name)
    {
        for (auto at = held.begin(); at != held.end(); ++at)
            if (at->name == name) {
                held.splice(held.begin(), held, at);
                return at->memory;
            }
        cenote::block memory = pool.alloc(bytes_of(name), load);
        driver(cuMemsetD32Async(device(memory), name + 1, bytes_of(name) / 4, load));
        order(load, compute);
        memory.use(compute); /* the code that frees it need not know what reads it */
        held.push_front({name, std::move(memory)});
        loads++;
        return held.front().memory;
    }
    int loads = 0, evictions = 0;

private:
    struct tensor { int name; cenote::block memory; };
    cenote::pool_ref pool;
    CUstream load, compute;
    std::list<tensor> held; /* that of the last use first */

    struct room {
        cache &owner;
        bool operator()(std::size_t bytes)
        {
            std::size_t freed = 0;
            for (; !owner.held.empty() && freed < bytes; owner.evictions++) {
                freed += bytes_of(owner.held.back().name);
                owner.held.pop_back(); /* the device may still read it: cenote waits, if it has to */
            }
            return freed > 0;
        }
    } make_room{*this};
};

int main()
try {
    CUcontext context;
    driver(cuInit(0));
    driver(cuDevicePrimaryCtxRetain(&context, 0));
    driver(cuCtxSetCurrent(context));
    stream load, compute;
    cenote::pool pool(0, cenote::options("limit:128MiB")); /* before whatever holds its blocks */
    cache tensors(pool, load, compute);
    unsigned random = 1, wrong = 0;
    for (int i = 0; i < REQUESTS; i++) {
        random = random * 1103515245 + 12345;
        int name = static_cast<int>(random >> 16) % TENSORS;
        std::size_t bytes = cache::bytes_of(name);
        cenote::block result = pool.alloc(bytes, compute); /* this may evict, too: so it comes before get */
        std::vector<int> there(bytes / 4);
        driver(cuMemcpyDtoDAsync(device(result), device(tensors.get(name)), bytes, compute));
        driver(cuMemcpyDtoHAsync(there.data(), device(result), bytes, compute));
        driver(cuStreamSynchronize(compute));
        wrong += there.front() != name + 1 || there.back() != name + 1;
    }
    std::printf("%d requests, %d loads, %d evictions, %u wrong\n", REQUESTS, tensors.loads, tensors.evictions, wrong);
    return wrong != 0;
} catch (const std::exception &said) { /* cenote::error is one: what() says what went wrong, and what to do */
    std::fprintf(stderr, "%s\n", said.what());
    return 1;
}
