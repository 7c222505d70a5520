/*
 * routes.cpp: the routes of allocations to pools, and the captures that cenote was told of (routes.h).
 */
#include "routes.h"

#include <algorithm>
#include <iterator>

namespace cenote_torch
{

std::vector<Route>::iterator Routes::find(int device, PoolId id)
{
    return std::find_if(routes_.begin(), routes_.end(), [&](const Route &each) { return each.device == device && each.id == id; });
}

void Routes::add_held(Route route)
{
    routes_.push_back(std::move(route));
    any_ = true;
}

/* Without the lock: cenote_capture_begin waits for threads that are calling the driver. If the stream is captured already, CUDA refuses later. */
void Routes::announce(int device, PoolId id, cenote_group *group, cenote_stream stream)
{
    if (cenote_capture_begin(NULL, group, stream))
        return;
    Hold hold(lock_);
    auto there = find(device, id);
    if (there != routes_.end())
        there->announced = true;
    else /* another thread has ended the route meanwhile */
        cenote_capture_end(NULL, group, stream);
}

const Route *Routes::of_held(int device, cenote_stream stream) const
{
    auto takes = [&](const Route &each) { return each.device == device && each.filter(stream); };
    auto found = std::find_if(routes_.rbegin(), routes_.rend(), takes);
    return found == routes_.rend() ? nullptr : &*found;
}

bool Routes::is_captured_held(int device) const
{
    auto is_open = [&](const Route &each) { return each.device == device && each.announced; };
    return std::any_of(routes_.begin(), routes_.end(), is_open) || std::any_of(open_captures_.begin(), open_captures_.end(), is_open);
}

/*
 * Tells cenote of captures that are over. As long as cenote takes a capture for open, it neither waits for the device nor gives memory back.
 * - A capture without a route is over when its stream says so: with a conditional node, routes change in the middle of a capture.
 * - A capture with a route is over when it failed, and this torch did not end its route. Only routes of this thread are checked: another thread
 *   may have announced a capture that it has not begun yet.
 */
void Routes::end_lost_captures()
{
    std::vector<Route> lost;
    {
        Hold hold(lock_);
        auto is_lost = [](const Route &r) { return r.announced && r.thread == std::this_thread::get_id() && !is_capturing(r.stream); };
        std::copy_if(routes_.begin(), routes_.end(), std::back_inserter(lost), is_lost);
        for (const Route &r : lost)
            routes_.erase(find(r.device, r.id));
        any_ = !routes_.empty();
        auto over = std::partition(open_captures_.begin(), open_captures_.end(), [](const Route &r) { return is_capturing(r.stream); });
        std::move(over, open_captures_.end(), std::back_inserter(lost));
        open_captures_.erase(over, open_captures_.end());
    }
    for (const Route &r : lost)
        cenote_capture_end(NULL, r.group, r.stream);
}

int Routes::end(int device, PoolId id)
{
    Route ended;
    {
        Hold hold(lock_);
        auto r = find(device, id);
        if (r == routes_.end()) /* end_lost_captures has removed it */
            return CENOTE_OK;
        ended = std::move(*r);
        routes_.erase(r);
        any_ = !routes_.empty();
    }
    if (!ended.announced)
        return CENOTE_OK;
    if (!is_capturing(ended.stream))
        return cenote_capture_end(NULL, ended.group, ended.stream);
    Hold hold(lock_);
    open_captures_.push_back(std::move(ended));
    return CENOTE_OK;
}

} // namespace cenote_torch
