/*
 * history.cpp: the history of allocations and mappings. Each device has a timeline: a bounded ring of entries, the trackers that are called
 * for each entry when it is made, and the stacks that allocated the live blocks.
 *
 *              recordHistory, attachAllocatorTraceTracker
 *     off  ------------------------------------------------>  on: calls are Calls, pools are watched
 *          <------------------------------------------------
 *              recordHistory(off), unless a tracker is attached; blocks keep their stacks until they are freed
 *
 * While the history is off, a call costs one or two relaxed loads. Entries about one address are in order because the caller owns the block when
 * each is made: the entry of a free is made before the block goes back to cenote, that of an allocation after cenote returned the block.
 * Mappings, and the end of waits for streams, happen inside cenote: cenote_pool_watch reports them before another caller can get the memory.
 *
 * LOCKING: settings_, then the gate, then a timeline's lock; annotations_lock_ under none but settings_. Watch functions take a timeline's
 * lock and annotations_lock_ too, with cenote's locks held: so no cenote call is made under these two. To make or destroy a stack takes the
 * GIL, whose holder may be waiting for the gate: stacks are made before the gate is entered and destroyed after it is left.
 */
#include "history.h"

#include "outward.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>

namespace cenote_torch
{

/* --- the ring */

void Ring::limit(size_t most, std::vector<Context> &dead)
{
    std::rotate(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(oldest_), entries_.end());
    oldest_ = 0;
    most_ = most;
    for (; entries_.size() > most; entries_.pop_front())
        dead.push_back(std::move(entries_.front().context_));
}

void Ring::put(TraceEntry entry, std::vector<Context> &dead)
{
    if (entries_.size() < most_) {
        entries_.push_back(std::move(entry));
        return;
    }
    if (entries_.empty())
        return;
    dead.push_back(std::move(entries_[oldest_].context_));
    entries_[oldest_] = std::move(entry);
    oldest_ = (oldest_ + 1) % entries_.size();
}

/* Adjacent pages that are unmapped one after the other make one entry. */
bool Ring::join(const TraceEntry &entry)
{
    if (entries_.empty() || entry.action_ != TraceEntry::SEGMENT_UNMAP)
        return false;
    TraceEntry &newest = entries_[(oldest_ + entries_.size() - 1) % entries_.size()];
    if (newest.action_ != entry.action_ || newest.stream_ != entry.stream_ || newest.mempool_ != entry.mempool_ ||
        newest.context_ != entry.context_ || (newest.addr_ + newest.size_ != entry.addr_ && entry.addr_ + entry.size_ != newest.addr_))
        return false;
    newest.addr_ = std::min(newest.addr_, entry.addr_);
    newest.size_ += entry.size_;
    return true;
}

std::vector<TraceEntry> Ring::in_order() const
{
    auto oldest = entries_.begin() + static_cast<ptrdiff_t>(oldest_);
    std::vector<TraceEntry> all(oldest, entries_.end());
    all.insert(all.end(), entries_.begin(), oldest);
    return all;
}

/* --- the gate. A thread that is inside may make further calls: see Call. If a thread forks inside, its call ends in the child, too. */

void Gate::enter()
{
    if (is_child())
        return;
    std::unique_lock<Lock> hold(lock_);
    changed_.wait(hold, [this] { return !closed_; });
    inside_++;
}

void Gate::leave()
{
    if (is_child())
        return;
    Hold hold(lock_);
    if (!--inside_ && closed_)
        changed_.notify_all();
}

void Gate::close()
{
    std::unique_lock<Lock> hold(lock_);
    closed_++;
    changed_.wait(hold, [this] { return !inside_; });
}

void Gate::open()
{
    if (is_child())
        return;
    Hold hold(lock_);
    if (!--closed_)
        changed_.notify_all();
}

/* In a child: the threads that were inside or had closed the gate do not exist here. */
void Gate::renew()
{
    new (&changed_) std::condition_variable_any;
    inside_ = closed_ = 0;
}

History::Pause::Pause(History &history) : gate_(Call::current() ? nullptr : &history.gate_)
{
    if (gate_)
        gate_->close();
}

History::Pause::~Pause()
{
    if (gate_)
        gate_->open();
}

/* --- calls */

static thread_local Call *current_call;

Call *Call::current()
{
    return current_call;
}

Call::Call(History &history, RecordContext when) : context(history.gather(when)), history_(history), around_(current_call)
{
    if (!around_)
        history_.gate_.enter();
    state = history_.state_.load(std::memory_order_relaxed);
    current_call = this;
}

/* Stacks are destroyed with the members, after this. */
Call::~Call()
{
    current_call = around_;
    if (!around_) {
        history_.gate_.leave();
        return;
    }
    around_->dead.push_back(std::move(context));
    std::move(dead.begin(), dead.end(), std::back_inserter(around_->dead));
}

Call::Outside::Outside() : left_(current_call)
{
    if (!left_)
        return;
    current_call = nullptr;
    left_->history_.gate_.leave();
}

Call::Outside::~Outside()
{
    if (!left_)
        return;
    left_->history_.gate_.enter();
    left_->state = left_->history_.state_.load(std::memory_order_relaxed);
    current_call = left_;
}

Context History::gather(RecordContext when) const
{
    CreateContextFn function = gather_.load(std::memory_order_relaxed);
    Context found;
    if (function && when_.load(std::memory_order_relaxed) >= when)
        ask_python([&] { found = function(); });
    return found;
}

/* --- the timeline of a device */

/* LOCKING: `lock`. */
void Timeline::put(TraceEntry::Action action, size_t at, size_t size, void *stream, MempoolId_t pool, Context context)
{
    if (!records && trackers.empty())
        return;
    TraceEntry entry(action, device, at, size, stream, pool, c10::getApproximateTime(), keeps_stacks ? context : nullptr,
                     compile_context(), user_metadata());
    dead.push_back(std::move(context)); /* this reference may be the last one */
    tell(entry);
    if (records && !(skipped >> action & 1) && !ring.join(entry))
        ring.put(std::move(entry), dead);
    else
        dead.push_back(std::move(entry.context_));
}

/* An exception of a tracker ends here: the allocation or free goes on. LOCKING: `lock`. */
void Timeline::tell(const TraceEntry &entry) const
{
    for (const auto &tracker : trackers)
        contain([&] { tracker(entry); }, [](const char *reason) { TORCH_WARN("a tracker of allocations failed: ", reason); });
}

/* LOCKING: `lock`. */
void Timeline::forget(std::unordered_map<size_t, Remembered>::iterator block)
{
    dead.push_back(std::move(block->second.context));
    blocks.erase(block);
    if (history->remembered_.fetch_sub(1) == 1)
        history->state_.fetch_and(~History::REMEMBERS);
}

/* [at, at + size) is of this stream and pool from now on. LOCKING: `lock`. */
void Timeline::set_span(size_t at, size_t size, void *stream, MempoolId_t pool)
{
    auto old = spans.upper_bound(at);
    if (old != spans.begin() && std::prev(old)->second.end > at)
        --old;
    while (old != spans.end() && old->first < at + size) {
        auto [begin, span] = *old;
        old = spans.erase(old);
        if (begin < at)
            spans[begin] = AddressSpan{at, span.stream, span.pool};
        if (span.end > at + size)
            spans[at + size] = span;
    }
    auto next = spans.lower_bound(at);
    auto before = next == spans.begin() ? spans.end() : std::prev(next);
    if (before != spans.end() && before->second.end == at && before->second.stream == stream && before->second.pool == pool)
        before->second.end = at + size;
    else
        spans[at] = AddressSpan{at + size, stream, pool};
}

/* The span that `at` is in, or the next one below, which is most likely of the same arena. LOCKING: `lock`. */
AddressSpan Timeline::span_at(size_t at) const
{
    auto next = spans.upper_bound(at);
    return next == spans.begin() ? AddressSpan{0, nullptr, {0, 0}} : std::prev(next)->second;
}

/* From a watch function. */
void Timeline::changed(int change, size_t at, size_t size)
{
    Call *call = Call::current();
    Context context = call ? call->context : nullptr;
    if (change == CENOTE_MAPPED && call && call->takes)
        history->note_segment(at, call->takes_segments);
    bool segment = has_segments || history->is_segment(at);
    if (change == CENOTE_UNMAPPING)
        history->note_segment(at, false);
    Hold hold(lock);
    auto block = blocks.find(at);
    switch (change) {
    case CENOTE_MAPPED:
        if (call && call->takes)
            set_span(at, size, call->stream, call->pool);
        put(segment ? TraceEntry::SEGMENT_ALLOC : TraceEntry::SEGMENT_MAP, at, size, span_at(at).stream, span_at(at).pool, std::move(context));
        return;
    case CENOTE_UNMAPPING:
        put(segment ? TraceEntry::SEGMENT_FREE : TraceEntry::SEGMENT_UNMAP, at, size, span_at(at).stream, span_at(at).pool, std::move(context));
        return;
    default:
        if (block == blocks.end()) {
            put(TraceEntry::FREE_COMPLETED, at, size, nullptr, {0, 0}, std::move(context));
            return;
        }
        put(TraceEntry::FREE_COMPLETED, at, block->second.requested, block->second.stream, block->second.pool,
            context ? std::move(context) : block->second.context);
        forget(block);
    }
}

constexpr uint32_t CHANGES = CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED;

static void on_change(cenote_pool *, const cenote_notice *notice, void *timeline)
{
    contain([&] { static_cast<Timeline *>(timeline)->changed(notice->change, reinterpret_cast<size_t>(notice->address), notice->bytes); },
            [](const char *) {}); /* no host memory: the entry is lost, because nothing may be thrown through C */
}

/* --- settings */

/* If this throws, a second try uses the timeline that the first one made. */
void History::add_device(cenote_pool *pool)
{
    Hold hold(settings_);
    Timeline &added = pools_.size() < timelines_.size() ? timelines_.back() : timelines_.emplace_back();
    added.history = this;
    added.device = static_cast<DeviceIndex>(cenote_pool_device(pool));
    added.has_segments = cenote_pool_provider(pool) != CENOTE_VMM;
    added.trackers = trackers_;
    added.records = state_ & RECORDS;
    added.keeps_stacks = when_.load() >= RecordContext::ALLOC;
    added.skipped = skipped_;
    added.ring.limit(most_, added.dead);
    pools_.reserve(pools_.size() + 1);
    if (sees_allocations())
        check(cenote_pool_watch(pool, CHANGES, &on_change, &added));
    pools_.push_back(pool);
}

/* A child of a process that has used a GPU records nothing: the memory is the parent's. */
void History::forked()
{
    gate_.renew();
    if (is_child())
        state_ = 0;
}

void History::set_spans(DeviceIndex device, const std::vector<SegmentInfo> &segments)
{
    Timeline &line = timelines_[static_cast<size_t>(device)];
    Hold hold(line.lock);
    for (const SegmentInfo &each : segments)
        line.set_span(each.address, each.total_size, each.stream, each.owner_private_pool_id);
    for (const SegmentInfo &each : segments)
        if (!each.is_expandable)
            note_segment(each.address, true);
}

/* LOCKING: settings_. */
void History::watch_all(bool on)
{
    for (size_t i = 0; i < pools_.size(); i++)
        check(cenote_pool_watch(pools_[i], on ? CHANGES : 0, &on_change, &timelines_[i]));
}

/* Pools are no longer watched, so that no call comes when a waiting block becomes free. LOCKING: settings_; the gate is closed. */
static void forget_waiting(Timeline &each)
{
    for (auto block = each.blocks.begin(); block != each.blocks.end();) {
        auto next = std::next(block);
        if (block->second.waits)
            each.forget(block);
        block = next;
    }
}

void History::record(bool enabled, CreateContextFn gather, size_t most, RecordContext when, bool clear,
                     const std::vector<std::string> &skip)
{
    TORCH_CHECK(when == RecordContext::NEVER || gather, "recordHistory: to record stacks it needs a function that gathers one; pass it, or ",
                "RecordContext::NEVER");
    unsigned skipped = 0;
    for (const auto &action : skip)
        skipped |= 1u << c10::CachingDeviceAllocator::parseTraceEntryAction(action);
    std::vector<Context> dead; /* declared before the locks: destroyed after they are released */
    Hold hold(settings_);
    Pause pause(*this);
    if (!clock_)
        clock_.emplace();
    most_ = std::max<size_t>(most, 1);
    skipped_ = skipped;
    gather_ = enabled ? gather : nullptr;
    when_ = enabled ? when : RecordContext::NEVER;
    for (Timeline &each : timelines_) {
        Hold hold_timeline(each.lock);
        if (!enabled || clear)
            each.ring.limit(0, dead);
        each.ring.limit(most_, dead);
        each.records = enabled;
        each.keeps_stacks = when_.load() >= RecordContext::ALLOC;
        each.skipped = skipped_;
    }
    {
        Hold hold_words(annotations_lock_);
        most_annotations_ = most_;
        if (!enabled || clear)
            annotations_.clear();
    }
    bool on = enabled || !trackers_.empty();
    watch_all(on);
    for (Timeline &each : timelines_) {
        Hold hold_timeline(each.lock);
        if (!on)
            forget_waiting(each);
        std::move(each.dead.begin(), each.dead.end(), std::back_inserter(dead));
        each.dead.clear();
    }
    state_ = (enabled ? RECORDS : 0) | (trackers_.empty() ? 0 : TRACKED) | (remembered_ ? REMEMBERS : 0);
}

/* A tracker gets the entries made from now on; memory that is there already it finds in a snapshot. */
void History::track(AllocatorTraceTracker tracker)
{
    Hold hold(settings_);
    Pause pause(*this);
    if (!clock_)
        clock_.emplace();
    trackers_.push_back(tracker);
    for (Timeline &each : timelines_) {
        Hold hold_timeline(each.lock);
        each.trackers.push_back(tracker);
    }
    watch_all(true);
    state_ |= TRACKED;
}

/* --- entries */

Timeline &History::timeline(const cenote_block &block)
{
    return timelines_[static_cast<size_t>(cenote_pool_device(block.pool))];
}

/* LOCKING: the timeline's. */
static void collect(Timeline &from, Call &call)
{
    std::move(from.dead.begin(), from.dead.end(), std::back_inserter(call.dead));
    from.dead.clear();
}

void History::taken(Call &call, const cenote_block &block, MempoolId_t pool)
{
    Timeline &line = timeline(block);
    auto at = reinterpret_cast<size_t>(block.start);
    Hold hold(line.lock);
    line.put(TraceEntry::ALLOC, at, block.requested, block.stream, pool, call.context);
    if (call.context && call.state & RECORDS) {
        auto old = line.blocks.find(at);
        if (old != line.blocks.end())
            line.forget(old);
        line.blocks.emplace(at, Remembered{call.context, block.requested, block.stream, pool, false});
        remembered_++;
    }
    collect(line, call);
}

/* The block is about to go back to cenote. If other streams use it, it becomes free later, and cenote calls on_change then. */
void History::freeing(Call &call, const cenote_block &block, MempoolId_t pool)
{
    Timeline &line = timeline(block);
    auto at = reinterpret_cast<size_t>(block.start);
    Hold hold(line.lock);
    auto known = line.blocks.find(at);
    Context context = call.context ? call.context : known != line.blocks.end() ? known->second.context : nullptr;
    line.put(TraceEntry::FREE_REQUESTED, at, block.requested, block.stream, pool, context);
    if (block.used && call.state & (RECORDS | TRACKED)) {
        if (known == line.blocks.end()) {
            known = line.blocks.emplace(at, Remembered{nullptr, block.requested, block.stream, pool, false}).first;
            remembered_++;
        }
        known->second.waits = true;
    } else {
        line.put(TraceEntry::FREE_COMPLETED, at, block.requested, block.stream, pool, std::move(context));
        if (known != line.blocks.end())
            line.forget(known);
    }
    collect(line, call);
}

void History::ran_out(DeviceIndex device, size_t bytes, size_t left)
{
    Call *call = Call::current();
    if (!call)
        return;
    Timeline &line = timelines_[static_cast<size_t>(device)];
    Hold hold(line.lock);
    line.put(TraceEntry::OOM, left, bytes, call->stream, call->pool, call->context);
    collect(line, *call);
}

/* Only newer versions of PyTorch have annotations, and call this. */
template <class Entry> static typename Entry::Action annotation()
{
    if constexpr (requires { Entry::ANNOTATE; })
        return Entry::ANNOTATE;
    else
        return Entry::SNAPSHOT;
}

void History::annotate(const cenote_block &block, MempoolId_t pool, std::string text)
{
    Call call(*this, RecordContext::ALLOC);
    Timeline &line = timeline(block);
    std::string before = user_metadata();
    set_user_metadata(std::move(text));
    {
        Hold hold(line.lock);
        line.put(annotation<TraceEntry>(), reinterpret_cast<size_t>(block.start), block.requested, block.stream, pool, call.context);
        collect(line, call);
    }
    set_user_metadata(std::move(before));
}

void History::add_annotation(DeviceIndex device, const std::vector<std::pair<std::string, std::string>> &text)
{
    if (!is_enabled())
        return;
    Hold hold(annotations_lock_);
    auto &entry = annotations_.emplace_back(device, c10::getApproximateTime());
    for (const auto &[name, value] : text)
        entry.recordUserMetadata(name, value);
    while (annotations_.size() > most_annotations_)
        annotations_.pop_front();
}

void History::snapshot_taken(DeviceIndex device, size_t active)
{
    Timeline &line = timelines_[static_cast<size_t>(device)];
    Hold hold(line.lock);
    line.put(TraceEntry::SNAPSHOT, 0, active, nullptr, {0, 0}, nullptr);
}

/* --- segments beside pages: PyTorch has actions for segments besides those for mappings */

void History::note_segment(size_t at, bool is_there)
{
    Hold hold(annotations_lock_);
    if (is_there)
        segments_.insert(at);
    else
        segments_.erase(at);
}

bool History::is_segment(size_t segment)
{
    Hold hold(annotations_lock_);
    return segments_.count(segment);
}

/* --- for snapshots */

Context History::context_of(DeviceIndex device, const void *block)
{
    Timeline &line = timelines_[static_cast<size_t>(device)];
    Hold hold(line.lock);
    auto known = line.blocks.find(reinterpret_cast<size_t>(block));
    return known == line.blocks.end() ? nullptr : known->second.context;
}

void History::add_contexts(DeviceIndex device, SegmentInfo *segments, size_t count)
{
    Timeline &line = timelines_[static_cast<size_t>(device)];
    Hold hold(line.lock);
    for (size_t i = 0; i < count && !line.blocks.empty(); i++) {
        size_t at = segments[i].address;
        for (BlockInfo &block : segments[i].blocks) {
            auto known = block.active ? line.blocks.find(at) : line.blocks.end();
            if (known != line.blocks.end())
                block.context_when_allocated = known->second.context;
            at += block.size;
        }
    }
}

std::vector<TraceEntry> History::entries(DeviceIndex device)
{
    Timeline &line = timelines_[static_cast<size_t>(device)];
    Hold hold(line.lock);
    return line.ring.in_order();
}

/* Adds annotations, and converts times from clock ticks to microseconds. No lock is held. */
void History::finish(SnapshotInfo &info)
{
    {
        Hold hold(annotations_lock_);
        info.external_annotations.assign(annotations_.begin(), annotations_.end());
    }
    Hold hold(settings_);
    if (!clock_)
        return;
    auto since_epoch = clock_->makeConverter();
    for (auto &line : info.device_traces) {
        if (line.size() > most_)
            line.erase(line.begin(), line.end() - static_cast<ptrdiff_t>(most_));
        for (auto &entry : line)
            entry.time_.t_ = since_epoch(entry.time_.approx_t_) / 1000;
    }
    for (auto &entry : info.external_annotations)
        entry.time_.t_ = since_epoch(entry.time_.approx_t_) / 1000;
}

} // namespace cenote_torch
