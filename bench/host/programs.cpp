/*
 * programs.cpp: three programs' pinned memory, on three allocators in one process: PyTorch's own pinned memory (at::getHostAllocator),
 * plain cudaHostAlloc, and cenote's libcenote_host.so. Compiled by run.py against the installed torch; knows nothing of Python.
 *
 *     loader      a DataLoader with pinning: batches of images and of token sequences of varying size, eight ahead of the one in use
 *     offload     optimizer states of a model in host memory, and gradients on their way through staging buffers
 *     staging     checkpoints: every tensor of a model goes through pinned memory, within a window of 2 GiB
 */
#include <ATen/core/CachingHostAllocator.h>
#include <cenote/host.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

namespace {

double now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* A peer is an allocator: it allocates, frees, and knows the most that it held. */
struct Torch {
    static constexpr const char *name = "torch";
    using block = at::DataPtr;
    at::HostAllocator *from = at::getHostAllocator(at::kCUDA);
    block take(size_t bytes) { return from->allocate(bytes); }
    void give(block &held) { held.clear(); }
    void begin() { from->empty_cache(); from->reset_peak_stats(); }
    double held() { return (double)from->get_stats().allocated_bytes.peak; }
};

struct Plain {
    static constexpr const char *name = "cudaHostAlloc";
    struct block { void *at; size_t bytes; };
    double current = 0, peak = 0;
    block take(size_t bytes)
    {
        block held{nullptr, (bytes + 4095) / 4096 * 4096};
        TORCH_CHECK(cudaHostAlloc(&held.at, bytes, 0) == cudaSuccess);
        current += (double)held.bytes;
        peak = std::max(peak, current);
        return held;
    }
    void give(block &held) { cudaFreeHost(held.at); current -= (double)held.bytes; }
    void begin() { peak = current; }
    double held() { return peak; }
};

struct Cenote {
    static constexpr const char *name = "cenote";
    using block = void *;
    decltype(&cenote_host_alloc) alloc;
    decltype(&cenote_host_free) free;
    decltype(&cenote_host_trim) trim;
    decltype(&cenote_host_reset_peaks) reset;
    decltype(&cenote_host_node_stats) stats;
    decltype(&cenote_host_message) message;
    Cenote(void *library)
    {
        alloc = (decltype(alloc))dlsym(library, "cenote_host_alloc");
        free = (decltype(free))dlsym(library, "cenote_host_free");
        trim = (decltype(trim))dlsym(library, "cenote_host_trim");
        reset = (decltype(reset))dlsym(library, "cenote_host_reset_peaks");
        stats = (decltype(stats))dlsym(library, "cenote_host_node_stats");
        message = (decltype(message))dlsym(library, "cenote_host_message");
    }
    block take(size_t bytes)
    {
        void *at;
        TORCH_CHECK(!alloc(0, bytes, &at), message());
        return at;
    }
    void give(block &held) { free(held); }
    void begin() { trim(0, 0); reset(); }
    double held()
    {
        cenote_host_stats s;
        stats(-1, &s, sizeof s);
        return (double)s.registered.peak;
    }
};

/* The calls of a program to any peer. Counts them, and the most that was requested. */
template <class Peer> struct Asked {
    Peer &peer;
    struct Held { typename Peer::block block; size_t bytes; };
    size_t current = 0, peak = 0, calls = 0;
    Held take(size_t bytes)
    {
        Held held{peer.take(bytes), bytes};
        calls++;
        peak = std::max(peak, current += bytes);
        return held;
    }
    void give(Held &held)
    {
        peer.give(held.block);
        current -= held.bytes;
    }
};

template <class Peer> void loader(Asked<Peer> &asked, int batches)
{
    std::mt19937_64 random(1);
    std::deque<std::vector<typename Asked<Peer>::Held>> ahead;
    for (int i = 0; i < batches + 8; i++) {
        if (i < batches) {
            size_t side = 160 + random() % 5 * 32, length = 128 + random() % 897, rows = 64;
            std::vector<typename Asked<Peer>::Held> batch;
            batch.push_back(asked.take(rows * 3 * side * side * 4));
            for (int tensor = 0; tensor < 3; tensor++)
                batch.push_back(asked.take(rows * length * 8));
            batch.push_back(asked.take(rows * 8));
            ahead.push_back(std::move(batch));
        }
        if (ahead.size() > 8 || i >= batches) {
            for (auto &held : ahead.front())
                asked.give(held);
            ahead.pop_front();
        }
    }
}

/* The number of elements of each parameter of a transformer. */
std::vector<size_t> parameters(int layers, size_t width, size_t hidden, size_t words, bool biases)
{
    std::vector<size_t> sizes{words * width, biases ? 1024 * width : width};
    for (int layer = 0; layer < layers; layer++) {
        for (size_t matrix : {3 * width * width, width * width, width * hidden, hidden * width})
            sizes.push_back(matrix);
        for (size_t vector : {width, width})
            sizes.push_back(vector);
        if (biases)
            for (size_t vector : {3 * width, width, hidden, width, width, width})
                sizes.push_back(vector);
    }
    return sizes;
}

template <class Peer> void offload(Asked<Peer> &asked, int steps)
{
    std::vector<typename Asked<Peer>::Held> states;
    std::vector<size_t> sizes = parameters(24, 1024, 4096, 50257, true);
    for (size_t size : sizes)
        for (int state = 0; state < 3; state++)
            states.push_back(asked.take(size * 4));
    for (int step = 0; step < steps; step++) {
        std::deque<typename Asked<Peer>::Held> ring;
        for (size_t i = sizes.size(); i-- > 0;) {
            ring.push_back(asked.take(sizes[i] * 2));
            if (ring.size() > 4) {
                asked.give(ring.front());
                ring.pop_front();
            }
        }
        for (auto &held : ring)
            asked.give(held);
    }
    for (auto &held : states)
        asked.give(held);
}

template <class Peer> void staging(Asked<Peer> &asked, int checkpoints)
{
    std::vector<size_t> sizes = parameters(32, 4096, 11008, 32000, false);
    for (int checkpoint = 0; checkpoint < checkpoints; checkpoint++) {
        std::deque<typename Asked<Peer>::Held> window;
        for (size_t size : sizes) {
            while (!window.empty() && asked.current + size * 2 > (2ull << 30)) {
                asked.give(window.front());
                window.pop_front();
            }
            window.push_back(asked.take(size * 2));
        }
        for (auto &held : window)
            asked.give(held);
    }
}

template <class Peer> void pairs(Peer &peer, size_t bytes, int count, double *ns)
{
    double begun = now();
    for (int i = 0; i < count; i++) {
        auto held = peer.take(bytes);
        peer.give(held);
    }
    *ns = (now() - begun) / count * 1e9;
}

template <class Peer> void measure(Peer peer, const char *program, size_t bytes, int count, double *result)
{
    Asked<Peer> asked{peer};
    if (!strcmp(program, "pair"))
        return pairs(peer, bytes, count, result);
    peer.begin();
    double begun = now();
    if (!strcmp(program, "loader"))
        loader(asked, count);
    else if (!strcmp(program, "offload"))
        offload(asked, count);
    else
        staging(asked, count);
    result[0] = (double)asked.peak;
    result[1] = peer.held();
    result[2] = (now() - begun) / (double)asked.calls * 1e9;
}

} // namespace

extern "C" __attribute__((visibility("default"))) int bench_host(const char *peer, const char *library, const char *program, size_t bytes, int count,
                                                                 double *result, char *why, size_t room)
{
    try {
        void *host = dlopen(library, RTLD_NOW);
        if (!host)
            return snprintf(why, room, "%s", dlerror()), 1;
        if (!strcmp(peer, "torch"))
            measure(Torch(), program, bytes, count, result);
        else if (!strcmp(peer, "cudaHostAlloc"))
            measure(Plain(), program, bytes, count, result);
        else
            measure(Cenote(host), program, bytes, count, result);
        return 0;
    } catch (const std::exception &error) {
        return snprintf(why, room, "%s", error.what()), 1;
    }
}
