/*
 * history.h: what happened to memory, in time: for torch.cuda.memory._record_memory_history and for trace trackers. See history.cpp.
 */
#pragma once

#include <lock.h> /* beside this file */

#include <c10/cuda/CUDACachingAllocator.h>
#include <cenote/cenote.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace cenote_torch {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

void check(int error); /* of cenote's: throws it */

using Context = std::shared_ptr<c10::GatheredContext>; /* the stack of a call */

/* Entries in order, the newest `most` of them. */
class Ring {
public:
    void limit(size_t most, std::vector<Context> &dead);
    void put(TraceEntry entry, std::vector<Context> &dead);
    bool join(const TraceEntry &entry);
    std::vector<TraceEntry> in_order() const;

private:
    std::deque<TraceEntry> entries_;
    size_t oldest_ = 0;
    size_t most_ = 1;
};

/* Many calls are inside at a time, or one picture is drawn: so that none shows a call half done. */
class Gate {
public:
    void enter();
    void leave();
    void close();
    void open();
    void renew();

private:
    Lock lock_;
    std::condition_variable_any changed_;
    unsigned inside_ = 0, closed_ = 0;
};

class History;

/* A call of PyTorch's that changes memory while somebody records or follows it. On the stack; what it calls finds it by `current`. */
class Call {
public:
    Call(History &history, RecordContext when);
    ~Call();
    static Call *current();

    Context context;           /* who called */
    bool takes = false;        /* memory, of this stream and pool */
    void *stream = nullptr;
    MempoolId_t pool{0, 0};
    unsigned state;            /* of the history, while the call is inside */
    std::vector<Context> dead; /* what nobody remembers any more; destroyed when no lock is held */

    /* Where the program's own functions run: a picture may be drawn meanwhile. */
    class Outside {
    public:
        Outside();
        ~Outside();

    private:
        Call *left_;
    };

private:
    History &history_;
    Call *around_;
};

/* A live block and who took it, or one that waits for streams. */
struct Remembered {
    Context context;
    size_t requested;
    void *stream;
    MempoolId_t pool;
    bool waits;
};

/* Whose memory addresses are for: an arena has its own. */
struct AddressSpan {
    size_t end;
    void *stream;
    MempoolId_t pool;
};

/* What happens on one device. LOCKING: `lock` guards all but the first two; under it nothing is called but trackers. */
struct Timeline {
    History *history;
    DeviceIndex device;
    bool whole; /* memory comes as segments, not as pages */
    Lock lock;
    Ring ring;
    unsigned skipped = 0; /* a bit for each action that the ring leaves out */
    bool records = false, keeps_stacks = false;
    std::vector<AllocatorTraceTracker> trackers;
    std::unordered_map<size_t, Remembered> blocks;
    std::map<size_t, AddressSpan> lands; /* by where they begin; what was mapped since it is on, and what was there then */
    std::vector<Context> dead;

    void put(TraceEntry::Action action, size_t at, size_t size, void *stream, MempoolId_t pool, Context context);
    void tell(const TraceEntry &entry) const;
    void forget(std::unordered_map<size_t, Remembered>::iterator block);
    void settle(size_t at, size_t size, void *stream, MempoolId_t pool);
    AddressSpan land(size_t at) const;
    void changed(int change, size_t at, size_t size);
};

/* The words that PyTorch attaches to what a thread does: words.cpp. */
void push_compile_context(std::string words);
void pop_compile_context();
std::string compile_context();
void set_user_metadata(std::string words);
std::string user_metadata();

class History {
public:
    static constexpr unsigned RECORDS = 1, TRACKED = 2, REMEMBERS = 4;

    /* All that the way of an allocation and of a free ask while it is off. */
    bool sees_allocations() const { return state_.load(std::memory_order_relaxed) & (RECORDS | TRACKED); }
    bool sees_frees() const { return state_.load(std::memory_order_relaxed); }
    bool is_enabled() const { return state_.load(std::memory_order_relaxed) & RECORDS; }

    void add_device(cenote_pool *pool);
    void forked();
    void settle(DeviceIndex device, const std::vector<SegmentInfo> &segments);
    void record(bool enabled, CreateContextFn gather, size_t most, RecordContext when, bool clear, const std::vector<std::string> &skip);
    void track(AllocatorTraceTracker tracker);

    void taken(Call &call, const cenote_block &block, MempoolId_t pool);
    void freeing(Call &call, const cenote_block &block, MempoolId_t pool);
    void ran_out(DeviceIndex device, size_t bytes, size_t left);
    void annotate(const cenote_block &block, MempoolId_t pool, std::string words);
    void add_annotation(DeviceIndex device, const std::vector<std::pair<std::string, std::string>> &words);
    void snapshot_taken(DeviceIndex device, size_t active);

    /* A segment of a program's own, while it is in a pool. */
    void came_whole(void *segment);
    void went_whole(void *segment);
    bool is_whole(size_t segment);

    /* While one lives, no call is half done. */
    class Pause {
    public:
        explicit Pause(History &history);
        ~Pause();

    private:
        Gate *gate_;
    };
    Context context_of(DeviceIndex device, const void *block);
    void add_contexts(DeviceIndex device, SegmentInfo *segments, size_t count);
    std::vector<TraceEntry> entries(DeviceIndex device);
    void finish(SnapshotInfo &info);

private:
    friend class Call;
    friend struct Timeline;

    Context gather(RecordContext when) const;
    void watch_all(bool on);
    Timeline &timeline(const cenote_block &block);

    std::atomic<unsigned> state_{0};
    std::atomic<CreateContextFn> gather_{nullptr};
    std::atomic<RecordContext> when_{RecordContext::NEVER};
    std::atomic<size_t> remembered_{0}; /* blocks in all timelines */
    Gate gate_;

    Lock settings_; /* guards what follows; changed with the gate closed */
    std::vector<cenote_pool *> pools_;
    std::deque<Timeline> timelines_; /* by device; grows before a device is used */
    std::vector<AllocatorTraceTracker> trackers_;
    size_t most_ = 1;
    unsigned skipped_ = 0;
    std::optional<c10::ApproximateClockToUnixTimeConverter> clock_;

    Lock words_lock_; /* guards the rest */
    std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
    size_t most_annotations_ = 1;
    std::unordered_set<size_t> segments_;
};

} // namespace cenote_torch
