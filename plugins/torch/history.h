/*
 * history.h: the history of allocations and mappings, for torch.cuda.memory._record_memory_history and for trace trackers. See history.cpp.
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

void check(int error); /* throws if `error`, the result of a call of cenote's, is not CENOTE_OK */

using Context = std::shared_ptr<c10::GatheredContext>; /* the stack of a call */

/* The newest `most` entries, in order. */
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

/* Any number of calls may be inside, or the gate is closed: while it is closed, a snapshot sees no call half done. */
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

/* A call of PyTorch's that changes memory while a history is recorded or a tracker is attached. It is on the stack; functions below it find it
 * by Call::current(). */
class Call {
public:
    Call(History &history, RecordContext when);
    ~Call();
    static Call *current();

    Context context;           /* the stack of the caller */
    bool takes = false;        /* an allocation: memory that is mapped for it is of this stream and pool */
    void *stream = nullptr;
    MempoolId_t pool{0, 0};
    bool takes_segments = false; /* that memory does not come as pages */
    unsigned state;            /* History::state_ when the call entered the gate */
    std::vector<Context> dead; /* stacks that no entry refers to any more; destroyed when no lock is held */

    /* Leaves the gate while a function of the program runs: a snapshot may be taken meanwhile. */
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

/* A block whose allocating stack is kept: it is live, or it is freed and waits for streams. */
struct Remembered {
    Context context;
    size_t requested;
    void *stream;
    MempoolId_t pool;
    bool waits;
};

/* Addresses of one arena: memory mapped there is of this stream and pool. */
struct AddressSpan {
    size_t end;
    void *stream;
    MempoolId_t pool;
};

/* The history of one device. LOCKING: `lock` guards all but the first three members; trackers are called under it, and nothing else is. */
struct Timeline {
    History *history;
    DeviceIndex device;
    bool has_segments; /* the driver gives whole segments, not pages */
    Lock lock;
    Ring ring;
    unsigned skipped = 0; /* a bit for each action that the ring leaves out */
    bool records = false, keeps_stacks = false;
    std::vector<AllocatorTraceTracker> trackers;
    std::unordered_map<size_t, Remembered> blocks;
    std::map<size_t, AddressSpan> spans; /* by first address; spans mapped when the history began, and since then */
    std::vector<Context> dead;

    void put(TraceEntry::Action action, size_t at, size_t size, void *stream, MempoolId_t pool, Context context);
    void tell(const TraceEntry &entry) const;
    void forget(std::unordered_map<size_t, Remembered>::iterator block);
    void set_span(size_t at, size_t size, void *stream, MempoolId_t pool);
    AddressSpan span_at(size_t at) const;
    void changed(int change, size_t at, size_t size);
};

/* The text that PyTorch attaches to all entries of a thread: thread_text.cpp. */
void push_compile_context(std::string text);
void pop_compile_context();
std::string compile_context();
void set_user_metadata(std::string text);
std::string user_metadata();

class History {
public:
    static constexpr unsigned RECORDS = 1, TRACKED = 2, REMEMBERS = 4;

    /* While the history is off, allocations and frees ask nothing else of it. */
    bool sees_allocations() const { return state_.load(std::memory_order_relaxed) & (RECORDS | TRACKED); }
    bool sees_frees() const { return state_.load(std::memory_order_relaxed); }
    bool is_enabled() const { return state_.load(std::memory_order_relaxed) & RECORDS; }

    void add_device(cenote_pool *pool);
    void forked();
    void set_spans(DeviceIndex device, const std::vector<SegmentInfo> &segments);
    void record(bool enabled, CreateContextFn gather, size_t most, RecordContext when, bool clear, const std::vector<std::string> &skip);
    void track(AllocatorTraceTracker tracker);

    void taken(Call &call, const cenote_block &block, MempoolId_t pool);
    void freeing(Call &call, const cenote_block &block, MempoolId_t pool);
    void ran_out(DeviceIndex device, size_t bytes, size_t left);
    void annotate(const cenote_block &block, MempoolId_t pool, std::string text);
    void add_annotation(DeviceIndex device, const std::vector<std::pair<std::string, std::string>> &text);
    void snapshot_taken(DeviceIndex device, size_t active);

    /* Whether memory that comes to an address, or leaves it, is a segment: in pools that have pages elsewhere. */
    void note_segment(size_t at, bool is_there);
    bool is_segment(size_t segment);

    /* While a Pause lives, no call is half done. */
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

    Lock settings_; /* guards the members from here to clock_; they change with the gate closed */
    std::vector<cenote_pool *> pools_;
    std::deque<Timeline> timelines_; /* by device; grows before a device is used */
    std::vector<AllocatorTraceTracker> trackers_;
    size_t most_ = 1;
    unsigned skipped_ = 0;
    std::optional<c10::ApproximateClockToUnixTimeConverter> clock_;

    Lock annotations_lock_; /* guards the members below */
    std::deque<c10::CachingDeviceAllocator::AnnotationEntry> annotations_;
    size_t most_annotations_ = 1;
    std::unordered_set<size_t> segments_;
};

} // namespace cenote_torch
