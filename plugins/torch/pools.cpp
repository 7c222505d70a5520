/*
 * pools.cpp: PyTorch's memory pools (torch.cuda.MemPool, CUDA graphs) as groups of cenote's, and the pool of each allocation.
 *
 * A pool has an id and, on each device that uses it, a group with a count of uses. Which of them an allocation goes to is in routes.h.
 *
 *     createOrIncrefPool, beginAllocateToPool                    releasePool, as often
 *   --------------------------------------------> group in use ------------------------> destroyed; live blocks stay
 *
 * In a forked child, calls that end something (CUDA graphs and pools of the parent are destroyed) do nothing; calls that begin something throw.
 *
 * LOCKING: `pools_lock_` guards pools and routes.
 */
#include "adapter.h"

#include "install.h"
#include "outward.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cenote_torch
{

/* --- memory of another allocator: MemPool(allocator) */

/* Lives until its pool is released and the allocator has its last segment back; a segment counts from before it is asked for. */
struct Foreign {
    Foreign(std::shared_ptr<CUDAAllocator> from, DeviceIndex on) : allocator(std::move(from)), device(on) {}

    std::shared_ptr<CUDAAllocator> allocator;
    DeviceIndex device;
    std::atomic<size_t> holders{1}; /* its pool, and each segment */
};

static void drop(Foreign *foreign)
{
    if (foreign->holders.fetch_sub(1) == 1)
        delete foreign;
}

static void *take_segment(size_t bytes, cenote_stream stream, void *arg)
{
    auto *foreign = static_cast<Foreign *>(arg);
    void *memory = nullptr;
    Call::Outside outside;
    foreign->holders++;
    auto take = [&] {
        c10::cuda::CUDAGuard guard(foreign->device);
        memory = foreign->allocator->raw_alloc_with_stream(bytes, stream);
    };
    contain(take, [](const char *) {}); /* it has no more memory: cenote reports that to its caller */
    if (!memory)
        drop(foreign);
    return memory;
}

static void give_segment(void *memory, size_t, cenote_stream, void *arg)
{
    auto *foreign = static_cast<Foreign *>(arg);
    Call::Outside outside;
    auto give = [&] {
        c10::cuda::CUDAGuard guard(foreign->device);
        foreign->allocator->raw_delete(memory);
    };
    contain(give, [](const char *reason) { TORCH_WARN("the allocator of a MemPool failed to free a segment: ", reason); });
    drop(foreign);
}

/* --- pools */

std::vector<cenote_piece> pieces_of(cenote_pool *pool, cenote_group *group)
{
    std::vector<cenote_piece> pieces(1024);
    size_t count = 0;
    for (;;) {
        check(cenote_pool_pieces(pool, group, pieces.data(), pieces.size(), &count));
        bool whole = count <= pieces.size();
        pieces.resize(whole ? count : count + count / 8);
        if (whole)
            return pieces;
    }
}

/* Live blocks of the pool itself, or those that it lent to tensors outside the pool. */
static std::vector<cenote_piece> live_blocks(cenote_pool *pool, cenote_group *group, bool lent = false)
{
    std::vector<cenote_piece> live = pieces_of(pool, group);
    std::erase_if(live, [&](const cenote_piece &p) { return p.state != CENOTE_PIECE_LIVE || (p.lent != 0) != lent; });
    return live;
}

/*
 * Operators of vLLM, SGLang and FlashInfer that share the buffers of a CUDA graph with other processes by legacy CUDA IPC. The driver refuses that
 * for pages, and the program ends; so if one of them is loaded, graphs get memory of cudaMalloc.
 */
static const char *const sharing_operators[] = {"_C_custom_ar::register_graph_buffers", "sgl_kernel::register_graph_buffers",
                                                "flashinfer::register_graph_buffers"};

static const char *loaded_operator()
{
    for (const char *name : sharing_operators)
        if (c10::Dispatcher::singleton().findOp({name, ""}))
            return name;
    return nullptr;
}

/* Once in a process, and in the first of several ranks alone. */
static void say_plain(const char *name)
{
    static std::atomic<bool> said{false};
    const char *rank = getenv("LOCAL_RANK");
    if (!said.exchange(true) && (!rank || !strcmp(rank, "0")))
        fprintf(stderr, "cenote: CUDA graphs get memory of cudaMalloc, because %s is loaded, which shares it by CUDA IPC (CENOTE_CONF=graphs:pages "
                "prevents that)\n", name);
}

/* Whether a new pool needs memory that legacy CUDA IPC takes. A program asks for that by switching PyTorch's expandable segments off. */
static bool wants_plain()
{
    cenote_options options;
    check(cenote_options_default(&options));
    if (options.graphs != CENOTE_GRAPHS_AUTO)
        return options.graphs == CENOTE_GRAPHS_PLAIN;
    if (!CUDAAllocatorConfig::expandable_segments())
        return true;
    const char *name = loaded_operator();
    if (name)
        say_plain(name);
    return name != nullptr;
}

/* The pool on that device, made if it is new, with one more use. LOCKING: pools_lock_. */
PrivatePool &Adapter::enter_pool(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> allocator)
{
    PrivatePool &p = private_[{device, id}];
    if (!p.group) {
        cenote_source source = {&take_segment, &give_segment, nullptr};
        if (allocator)
            source.arg = p.foreign = new Foreign(std::move(allocator), device);
        std::string name = "pool " + std::to_string(id.first) + "," + std::to_string(id.second);
        p.flags = !p.foreign && wants_plain() ? CENOTE_GROUP_PLAIN : 0;
        int error = cenote_group_create(pool(device), name.c_str(), CENOTE_GROUP_PRIVATE | p.flags, p.foreign ? &source : nullptr, &p.group);
        if (error && p.foreign)
            drop(p.foreign);
        if (error)
            private_.erase({device, id});
        check(error);
        id_of_group_[p.group] = id;
    }
    p.uses++;
    return p;
}

void Adapter::createOrIncrefPool(DeviceIndex device, MempoolId_t id, std::shared_ptr<CUDAAllocator> allocator)
{
    Hold hold(pools_lock_);
    enter_pool(device, id, std::move(allocator));
}

/* In a child, and when the process ends, there is nothing to do. */
static bool is_over(int error)
{
    return error == CENOTE_FORKED || error == CENOTE_EXITING;
}

/* Bytes that the group holds outside its live and pending blocks. */
static uint64_t idle_bytes(cenote_pool *pool, cenote_group *group, uint64_t held)
{
    uint64_t live = 0;
    for (const cenote_piece &piece : pieces_of(pool, group))
        live += piece.state == CENOTE_PIECE_FREE ? 0 : piece.size;
    return held > live ? held - live : 0;
}

#define RELEASED_MAX 64 /* our choice: released pools remembered, of all devices */

/* One entry for each id: a program may use an id again. LOCKING: pools_lock_. */
void Adapter::remember(const Released &gone)
{
    for (Released &each : released_)
        if (each.device == gone.device && each.id == gone.id) {
            each.held = std::max(each.held, gone.held);
            each.idle += gone.idle;
            return;
        }
    if (released_.size() == RELEASED_MAX)
        released_.pop_front();
    released_.push_back(gone);
}

void Adapter::releasePool(DeviceIndex device, MempoolId_t id)
{
    if (is_child())
        return;
    Hold hold(pools_lock_);
    auto found = private_.find({device, id});
    TORCH_CHECK(found != private_.end(), "a pool of device ", static_cast<int>(device), " was released more often than it was used: release it ",
                "once for each use");
    PrivatePool &p = found->second;
    uint64_t held = 0;
    if (--p.uses || is_over(cenote_group_reserved(p.group, &held)))
        return;
    uint64_t idle = 0; /* a destructor of a graph or pool is running: do not throw */
    contain([&] { idle = idle_bytes(pool(device), p.group, held); }, [](const char *) {});
    if (cenote_group_destroy(p.group)) {
        TORCH_WARN(cenote_message());
        p.uses++;
        return;
    }
    if (p.foreign)
        drop(p.foreign);
    private_.erase(found);
    contain([&] { remember({device, id, held, idle}); }, [](const char *) {});
}

int Adapter::getPoolUseCount(DeviceIndex device, MempoolId_t id)
{
    if (is_child())
        return 1; /* ~MemPool checks for this value */
    Hold hold(pools_lock_);
    auto found = private_.find({device, id});
    return found == private_.end() ? 0 : found->second.uses;
}

void Adapter::change_pool(DeviceIndex device, MempoolId_t id, unsigned flag, bool on)
{
    if (!on && is_child())
        return;
    Hold hold(pools_lock_);
    auto found = private_.find({device, id});
    if (found == private_.end()) {
        TORCH_CHECK(!on, "there is no pool ", id.first, ",", id.second, " on device ", static_cast<int>(device), ": allocate in it first");
        return;
    }
    unsigned flags = on ? found->second.flags | flag : found->second.flags & ~flag;
    int error = cenote_group_set_flags(found->second.group, CENOTE_GROUP_PRIVATE | flags);
    TORCH_CHECK(!error || !on, message_of(error)); /* destructors switch flags off: do not throw */
    found->second.flags = flags;
}

/* Each block gets an allocation of the driver to itself: on pages there would be several, and a library that registers memory sees the first. */
void Adapter::setNoSplit(DeviceIndex device, MempoolId_t id)
{
    bool is_foreign;
    {
        Hold hold(pools_lock_);
        auto found = private_.find({device, id});
        is_foreign = found != private_.end() && found->second.foreign;
    }
    change_pool(device, id, is_foreign ? CENOTE_GROUP_WHOLE : CENOTE_GROUP_WHOLE | CENOTE_GROUP_PLAIN, true);
}

/* The id of the group's pool; {0, 0} for memory of no pool. */
MempoolId_t Adapter::pool_of(cenote_group *group)
{
    if (!group)
        return {0, 0};
    Hold hold(pools_lock_);
    auto found = id_of_group_.find(group);
    return found == id_of_group_.end() ? MempoolId_t{0, 0} : found->second;
}

/* The group of a pool in use; NULL for {0, 0} and for an id that is not in use. */
cenote_group *Adapter::group_of(DeviceIndex device, MempoolId_t id)
{
    Hold hold(pools_lock_);
    auto found = private_.find({device, id});
    return found == private_.end() ? nullptr : found->second.group;
}

/* Gives `idle` bytes of free pages back to the driver. If it cannot, or a capture is open, the rest goes when a figure of the device is read. */
void Adapter::give_back(DeviceIndex device, uint64_t idle)
{
    cenote_stats stats = {};
    if (!idle || cenote_pool_stats(pool(device), &stats))
        return;
    uint64_t target = stats.reserved.current > idle ? stats.reserved.current - idle : 0;
    int error = cenote_pool_trim(pool(device), target, CENOTE_TRIM_WAIT);
    if (is_over(error))
        return;
    if (error)
        TORCH_WARN(cenote_message()); /* do not throw: a destructor of the pool is running */
    Hold hold(pools_lock_);
    if ((error || routes_.is_captured_held(device)) && !cenote_pool_stats(pool(device), &stats) && stats.reserved.current > target)
        refused_[device] += std::min(idle, stats.reserved.current - target);
}

/* A released pool gives back its idle bytes. A pool in use gives back nothing: graphs may write to its memory. */
void Adapter::empty_pool(DeviceIndex device, MempoolId_t id)
{
    uint64_t idle = 0;
    {
        Hold hold(pools_lock_);
        for (Released &each : released_)
            if (each.device == device && each.id == id)
                idle = std::exchange(each.idle, 0);
    }
    give_back(device, idle);
}

/* Tries again to give back what give_back could not. */
void Adapter::empty_refused(DeviceIndex device)
{
    uint64_t idle = 0;
    {
        Hold hold(pools_lock_);
        auto refused = refused_.find(device);
        if (refused == refused_.end() || routes_.is_captured_held(device))
            return;
        idle = refused->second;
        refused_.erase(refused);
    }
    give_back(device, idle);
}

/* A private pool's pages never leave it: so the peak of a pool is what it holds now, or held when it was released. */
void Adapter::add_pool_stats(DeviceIndex device, DeviceStats &stats)
{
    Hold hold(pools_lock_);
    std::map<MempoolId_t, cenote_level> levels;
    for (const Released &each : released_)
        if (each.device == device)
            levels[each.id].peak = each.held;
    for (auto &[key, p] : private_)
        if (key.first == device)
            cenote_group_reserved(p.group, &levels[key.second].current);
    for (auto &[id, level] : levels) {
        level.peak = level.total_in = std::max(level.peak, level.current);
        level.total_out = level.total_in - level.current;
        put_pool_level(stats, id, level);
    }
}

void Adapter::resetPeakStats(DeviceIndex device)
{
    cenote_pool_reset_peaks(pool(device));
    Hold hold(pools_lock_);
    std::erase_if(released_, [&](const Released &each) { return each.device == device; });
}

/* --- routes */

bool is_capturing(cudaStream_t stream)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

/* The group that an allocation on this stream goes to, or NULL. */
cenote_group *Adapter::route(DeviceIndex device, cudaStream_t stream)
{
    Hold hold(pools_lock_);
    const Route *r = routes_.of_held(device, stream);
    Call *call = r ? Call::current() : nullptr;
    if (call) {
        call->pool = r->id;
        call->takes_segments = r->has_segments;
    }
    return r ? r->group : nullptr;
}

void Adapter::beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter)
{
    auto stream = c10::cuda::getCurrentCUDAStream(device).stream();
    Route r = {device, id, std::move(filter), stream};
    end_lost_captures();
    bool is_capture = is_capturing(stream) || !r.filter(stream);
    {
        Hold hold(pools_lock_);
        TORCH_CHECK(!routes_.has_held(device, id), "allocations go to pool ", id.first, ",", id.second, " already: it serves one ",
                    "capture or use_mem_pool at a time");
        const PrivatePool &p = enter_pool(device, id, nullptr);
        r.group = p.group;
        r.has_segments = p.foreign || p.flags & CENOTE_GROUP_PLAIN;
        routes_.add_held(r);
    }
    if (is_capture)
        routes_.announce(device, id, r.group, stream);
}

void Adapter::end_lost_captures()
{
    routes_.end_lost_captures();
    close_received(nullptr);
}

void Adapter::endAllocateToPool(DeviceIndex device, MempoolId_t id)
{
    if (is_child())
        return;
    check(routes_.end(device, id));
    end_lost_captures();
}

/* --- checkpoints: the live blocks of a pool, to be allocated again at their addresses */

struct Checkpoint : AllocatorState {
    DeviceIndex device;
    MempoolId_t id;
    std::vector<cenote_piece> live;
};

cenote_group *Adapter::group_in_use(DeviceIndex device, MempoolId_t id)
{
    cenote_group *group = group_of(device, id);
    TORCH_CHECK(group, "there is no pool ", id.first, ",", id.second, " on device ", static_cast<int>(device), ": allocate in it first");
    return group;
}

std::shared_ptr<AllocatorState> Adapter::getCheckpointState(DeviceIndex device, MempoolId_t id)
{
    auto state = std::make_shared<Checkpoint>();
    state->device = device;
    state->id = id;
    state->live = live_blocks(pool(device), group_in_use(device, id));
    return state;
}

/* False if another thread has freed the block meanwhile. */
bool Adapter::delete_live(void *block)
{
    cenote_block known;
    if (cenote_find(block, &known) || known.start != block)
        return false;
    bool done = false;
    contain([&] { raw_delete(block), done = true; }, [](const char *) {});
    return done;
}

static bool overlap(const cenote_piece &a, const cenote_piece &b)
{
    return a.address < b.address + b.size && b.address < a.address + a.size;
}

bool Adapter::lends(DeviceIndex device, MempoolId_t id)
{
    Hold hold(pools_lock_);
    auto found = private_.find({device, id});
    return found != private_.end() && found->second.flags & CENOTE_GROUP_LEND;
}

/*
 * Frees all blocks of the pool, and allocates those of the checkpoint again at their addresses. Blocks that the pool has lent stay; meanwhile the
 * pool lends nothing.
 */
CheckpointDelta Adapter::setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> recorded)
{
    auto state = std::dynamic_pointer_cast<Checkpoint>(recorded);
    TORCH_CHECK(state && state->device == device, "this is no checkpoint of a pool on device ", static_cast<int>(device),
                ": pass what getCheckpointState returned for this device");
    cenote_group *group = group_in_use(device, state->id);
    CheckpointDelta delta;
    bool lent_before = lends(device, state->id);
    if (lent_before)
        change_pool(device, state->id, CENOTE_GROUP_LEND, false);
    auto lends_again = c10::make_scope_exit([&] {
        if (lent_before)
            contain([&] { change_pool(device, state->id, CENOTE_GROUP_LEND, true); }, [](const char *reason) { TORCH_WARN(reason); });
    });
    for (const cenote_piece &lent : live_blocks(pool(device), group, true)) /* before anything is freed */
        for (const cenote_piece &piece : state->live)
            TORCH_CHECK(!overlap(lent, piece), "a block of the checkpoint cannot be put back: pool ", state->id.first, ",", state->id.second,
                        " has lent its memory to a live tensor outside the pool. Delete that tensor, or do not set use_on_oom for the pool");
    for (const cenote_piece &piece : live_blocks(pool(device), group))
        if (delete_live(reinterpret_cast<void *>(piece.address)))
            delta.ptrs_freed.push_back(reinterpret_cast<void *>(piece.address));
    cenote_pool_trim(pool(device), UINT64_MAX, 0); /* completes frees whose other streams are done */
    for (const cenote_piece &piece : state->live) {
        void *block = reinterpret_cast<void *>(piece.address);
        int error = take_at(device, group, block, piece.requested, piece.stream);
        TORCH_CHECK(!error, "a block of the checkpoint cannot be put back: ", message_of(error));
        delta.dataptrs_allocd.push_back(owner_of(block, device));
    }
    return delta;
}

bool Adapter::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t id, const std::unordered_set<void *> &expected)
{
    std::vector<cenote_piece> live = live_blocks(pool(device), group_in_use(device, id));
    return live.size() == expected.size() && std::all_of(live.begin(), live.end(), [&](const cenote_piece &piece) {
               return expected.count(reinterpret_cast<void *>(piece.address)) != 0;
           });
}

c10::DataPtr Adapter::allocateWithAddress(size_t bytes, void *address)
{
    DeviceIndex device = c10::cuda::current_device();
    auto stream = c10::cuda::getCurrentCUDAStream(device).stream();
    TORCH_CHECK(bytes, "allocateWithAddress: the size is 0; a block at a given address needs a size");
    int error = take_at(device, routes_.any() ? route(device, stream) : nullptr, address, bytes, stream);
    if (error == CENOTE_OUT_OF_MEMORY)
        fail(error, device, bytes);
    check(error);
    return owner_of(address, device);
}

} // namespace cenote_torch

void *cenote_torch_group(int device, unsigned long long first, unsigned long long second)
{
    return cenote_torch::adapter()->group_of(static_cast<c10::DeviceIndex>(device), {first, second});
}
