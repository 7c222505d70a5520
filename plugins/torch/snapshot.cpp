/*
 * snapshot.cpp: torch.cuda.memory_snapshot: the pieces of each pool (cenote_pool_pieces), with the stacks that history.cpp keeps. Below it, the
 * variants of allocation and free that write to the history.
 *
 * A segment is contiguous memory of one stream and one PyTorch pool; its blocks tile it. The sizes of a device's segments add up to the
 * figures of its statistics. Pages that are mapped nowhere are left out: they have no address.
 *
 * LOCKING: a History::Pause is held while pieces and history are read, so that no call is half done and the two agree.
 */
#include "adapter.h"
#include "outward.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace cenote_torch
{

/* The counters round the size of a block up to this unit. */
static size_t rounded(size_t bytes)
{
    return (bytes + 511) & ~size_t{511};
}

static BlockInfo block_info(const cenote_piece &piece)
{
    BlockInfo block;
    block.size = piece.size;
    block.requested_size = piece.requested;
    block.allocated = piece.state == CENOTE_PIECE_LIVE;
    block.active = piece.state != CENOTE_PIECE_FREE;
    return block;
}

/* Adjacent free pieces make one block. */
static void add(SegmentInfo &segment, const cenote_piece &piece)
{
    bool is_free = piece.state == CENOTE_PIECE_FREE;
    segment.total_size += piece.size;
    if (is_free && !segment.blocks.empty() && !segment.blocks.back().active) {
        segment.blocks.back().size += piece.size;
        return;
    }
    segment.blocks.push_back(block_info(piece));
    if (is_free)
        return;
    segment.active_size += rounded(piece.requested);
    if (piece.state == CENOTE_PIECE_PENDING)
        return;
    segment.allocated_size += rounded(piece.requested);
    segment.requested_size += piece.requested;
}

/* The segments of a device, in order of address; of one PyTorch pool unless `wanted` is {0, 0}. */
void Adapter::add_segments(std::vector<SegmentInfo> &segments, DeviceIndex device, MempoolId_t wanted)
{
    std::vector<cenote_piece> pieces = pieces_of(pool(device), nullptr);
    std::sort(pieces.begin(), pieces.end(), [](const auto &a, const auto &b) { return a.address < b.address; });
    size_t before = segments.size();
    uint64_t last = 0;
    const cenote_group *group = nullptr;
    MempoolId_t id{0, 0};
    for (const cenote_piece &piece : pieces) {
        if (!piece.segment)
            continue;
        if (piece.group != group)
            id = pool_of(piece.group);
        group = piece.group;
        if (wanted != MempoolId_t{0, 0} && id != wanted)
            continue;
        if (piece.segment != last) {
            last = piece.segment;
            SegmentInfo &segment = segments.emplace_back();
            segment.device = device;
            segment.address = piece.segment;
            segment.stream = piece.stream;
            segment.is_large = true;
            segment.is_expandable = !piece.came_whole && cenote_pool_provider(pool(device)) == CENOTE_VMM;
            segment.owner_private_pool_id = id;
        }
        add(segments.back(), piece);
    }
    history_.add_contexts(device, segments.data() + before, segments.size() - before);
}

/* Settings that only newer versions of PyTorch report. */
template <class Config, class Info> static void add_younger(Info &info)
{
    if constexpr (requires { info.max_round_threshold; }) {
        info.max_round_threshold = Config::pinned_max_round_threshold();
        info.max_cached_size = Config::pinned_max_cached_size();
    }
}

/* The settings as the user gave them. docs/pytorch.md says which of them cenote follows. */
static AllocatorConfigInfo settings()
{
    using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
    AllocatorConfigInfo info{};
    info.garbage_collection_threshold = Config::garbage_collection_threshold();
    info.max_split_size = Config::max_split_size();
    info.pinned_num_register_threads = CUDAAllocatorConfig::pinned_num_register_threads();
    info.expandable_segments = CUDAAllocatorConfig::expandable_segments();
    info.release_lock_on_malloc = CUDAAllocatorConfig::release_lock_on_cudamalloc();
    info.pinned_use_host_register = CUDAAllocatorConfig::pinned_use_cuda_host_register();
    info.graph_capture_record_stream_reuse = CUDAAllocatorConfig::graph_capture_record_stream_reuse();
    info.last_allocator_settings = c10::CachingAllocator::getAllocatorSettings();
    info.roundup_power2_divisions = Config::roundup_power2_divisions();
    add_younger<Config>(info);
    return info;
}

/* A block whose streams are done must not count as active. */
static void notice_finished(cenote_pool *pool)
{
    if (read_stats(pool).pending_blocks)
        cenote_pool_trim(pool, UINT64_MAX, 0);
}

/* What is free shows the request that lay there last, as under native, if a history knows it: cenote does not. */
static void add_last_requests(std::vector<SegmentInfo> &segments, DeviceIndex device, const std::vector<TraceEntry> &trace)
{
    std::unordered_map<size_t, size_t> last;
    for (const TraceEntry &entry : trace)
        if (entry.action_ == TraceEntry::ALLOC)
            last[entry.addr_] = entry.size_;
    for (SegmentInfo &segment : segments) {
        size_t at = segment.address;
        for (BlockInfo &block : segment.blocks) {
            auto found = segment.device == device && !block.active ? last.find(at) : last.end();
            if (found != last.end() && found->second <= block.size)
                block.requested_size = found->second;
            at += block.size;
        }
    }
}

SnapshotInfo Adapter::snapshot(MempoolId_t id, bool include_traces)
{
    SnapshotInfo info;
    for (size_t i = 0; i < pools_.size(); i++) {
        empty_deferred(static_cast<DeviceIndex>(i));
        notice_finished(pools_[i]);
    }
    {
        History::Pause pause(history_);
        for (size_t i = 0; i < pools_.size(); i++) {
            auto device = static_cast<DeviceIndex>(i);
            if (include_traces)
                info.device_traces.push_back(history_.entries(device));
            add_segments(info.segments, device, id);
            history_.snapshot_taken(device, read_stats(pool(device)).active.current);
        }
    }
    for (size_t i = 0; i < info.device_traces.size(); i++) {
        auto device = static_cast<DeviceIndex>(i);
        add_last_requests(info.segments, device, info.device_traces[i]);
        if (id == MempoolId_t{0, 0} && cenote_pool_provider(pool(device)) == CENOTE_VMM)
            fit_trace(info.device_traces[i], info.segments, device, read_stats(pool(device)).page_bytes);
    }
    history_.finish(info);
    info.config_metadata = settings();
    return info;
}

/* Tells the history the stream and pool of all mapped memory, for entries about memory that was mapped before the history began. */
void Adapter::add_spans_to_history()
{
    History::Pause pause(history_);
    for (size_t i = 0; i < pools_.size() && history_.sees_allocations(); i++) {
        std::vector<SegmentInfo> segments;
        add_segments(segments, static_cast<DeviceIndex>(i), {0, 0});
        history_.set_spans(static_cast<DeviceIndex>(i), segments);
    }
}

/* --- allocation and free while a history is recorded or a tracker is attached */

void Adapter::record_taken(Call &call, void *block)
{
    cenote_block known;
    if (!cenote_find(block, &known))
        history_.taken(call, known, pool_of(known.group));
}

/*
 * The history began while this block was being allocated. Record the allocation now: otherwise the history could have two frees at this address,
 * of an earlier block and of this one, with no allocation between.
 */
void *Adapter::record_late(void *block)
{
    Taken taken(block);
    Call call(history_, RecordContext::STATE);
    record_taken(call, block);
    return taken.keep();
}

void *Adapter::take_recorded(DeviceIndex device, size_t bytes, cudaStream_t stream)
{
    Call call(history_, RecordContext::STATE);
    call.takes = true;
    call.stream = stream;
    Taken taken(take_unrecorded(device, bytes, stream));
    record_taken(call, taken.get());
    return taken.keep();
}

int Adapter::take_at(DeviceIndex device, cenote_group *group, void *block, size_t bytes, cudaStream_t stream)
{
    std::optional<Call> call;
    if (C10_UNLIKELY(history_.sees_allocations()))
        call.emplace(history_, RecordContext::STATE);
    if (call) {
        call->takes = true;
        call->stream = stream;
        call->pool = pool_of(group);
    }
    cenote_request request = {};
    request.bytes = bytes;
    request.at = block;
    request.group = group;
    request.stream = stream;
    int error = cenote_alloc_with(pool(device), &request, &block);
    if (error || !history_.sees_allocations())
        return error;
    if (!call) {
        record_late(block);
        return error;
    }
    Taken taken(block);
    record_taken(*call, block);
    taken.keep();
    return error;
}

/* The block is freed even if the free cannot be recorded. An address that is no block of cenote's is left to delete_unrecorded. */
void Adapter::delete_recorded(void *block)
{
    std::optional<Call> call;
    auto record = [&] {
        call.emplace(history_, RecordContext::ALL);
        cenote_block known;
        if (!cenote_find(block, &known) && known.start == block)
            history_.freeing(*call, known, pool_of(known.group));
    };
    contain(record, [](const char *reason) { TORCH_WARN("a free is missing in the history: ", reason); });
    delete_unrecorded(block);
}

/* --- stacks and annotations of blocks */

std::shared_ptr<c10::GatheredContext> Adapter::getContextForPointer(const void *block)
{
    cenote_block known;
    if (cenote_find(block, &known) || known.start != block)
        return nullptr;
    return history_.context_of(static_cast<DeviceIndex>(cenote_pool_device(known.pool)), block);
}

void Adapter::annotateMemory(const void *block, const std::string &text)
{
    cenote_block known;
    if (history_.sees_allocations() && !cenote_find(block, &known) && known.start == block)
        history_.annotate(known, pool_of(known.group), text);
}

void Adapter::recordAnnotation(const std::vector<std::pair<std::string, std::string>> &text)
{
    if (history_.is_enabled())
        history_.add_annotation(c10::cuda::current_device(), text);
}

} // namespace cenote_torch
