/*
 * routes.h: which pool an allocation goes to, and which captures are open. The adapter and libcenote_pluggable.so share it: it knows cenote, and
 * nothing of torch.
 *
 * A route sends allocations of a device to a pool if its filter accepts the stream; of several such routes the latest one counts. A capture is
 * announced to cenote when its route begins. It is known by its filter: that of a capture rejects the stream until the capture has begun, that of
 * torch.cuda.use_mem_pool accepts it at once.
 *
 * LOCKING: the caller's lock, which guards its pools, too. Methods with "held" in their names want it held; the others take it, and announce
 * captures without it. Filters run under it: they ask the driver about a stream, and nothing else.
 */
#pragma once

#include <lock.h> /* beside this file */

#include <cenote/cenote.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace cenote_torch {

using PoolId = std::pair<unsigned long long, unsigned long long>; /* PyTorch's MempoolId_t */
using Filter = std::function<bool(cenote_stream)>;

struct Route {
    int device;
    PoolId id;
    Filter filter;
    cenote_stream stream; /* the current stream when the route began */
    cenote_group *group = nullptr;
    bool has_segments = false; /* the memory of the group does not come as pages */
    bool announced = false;    /* to cenote, as a capture on `stream` */
    std::thread::id thread = std::this_thread::get_id();
};

/* A capture that has failed counts as open until it is ended. The driver's own word, by whichever library the plug-in has at hand. */
bool is_capturing(cenote_stream stream);

class Routes {
public:
    explicit Routes(Lock &lock) : lock_(lock) {}

    bool any() const { return any_.load(std::memory_order_relaxed); }
    bool has_held(int device, PoolId id) { return find(device, id) != routes_.end(); }
    void add_held(Route route);
    void announce(int device, PoolId id, cenote_group *group, cenote_stream stream); /* the route is a capture's */
    const Route *of_held(int device, cenote_stream stream) const;                    /* NULL: no route takes it */
    bool is_captured_held(int device) const;
    int end(int device, PoolId id); /* the error of cenote_capture_end */
    void end_lost_captures();
    void forget() { any_ = false; } /* in a child, which may not use the parent's memory */

private:
    std::vector<Route>::iterator find(int device, PoolId id);

    Lock &lock_;
    std::atomic<bool> any_{false};
    std::vector<Route> routes_;
    std::vector<Route> open_captures_; /* captures that were still open when their route ended */
};

} // namespace cenote_torch
