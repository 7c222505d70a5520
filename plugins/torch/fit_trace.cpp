/*
 * fit_trace.cpp: makes the history of a device agree with its snapshot.
 *
 * Programs that draw a snapshot, such as PyTorch's memory_viz, begin at its segments and go back through the history, undoing each entry. They
 * assume that an address keeps its page until it is unmapped. But cenote leaves a page that moved mapped at its old address, too, and a
 * snapshot shows the page once, at its new address.
 *
 * So fit_trace adds an entry that unmaps each mapped address that the snapshot does not show, right after the last entry that needs it. The page
 * may have moved earlier or later; no block lives there in between. Trackers get no such entries: they need what the driver did.
 */
#include "adapter.h"

#include <algorithm>
#include <map>

namespace cenote_torch
{

/* Disjoint ranges of addresses, in order. */
class Ranges {
public:
    void add(size_t from, size_t to)
    {
        remove(from, to);
        ranges_[from] = to;
    }

    void remove(size_t from, size_t to)
    {
        auto r = ranges_.upper_bound(from);
        if (r != ranges_.begin())
            --r;
        while (r != ranges_.end() && r->first < to) {
            auto [begin, end] = *r;
            if (end <= from) {
                ++r;
                continue;
            }
            r = ranges_.erase(r);
            if (begin < from)
                ranges_[begin] = from;
            if (end > to)
                ranges_[to] = end;
        }
    }

    /* The parts of [from, to) that are in the set, or those that are not. */
    std::vector<std::pair<size_t, size_t>> parts(size_t from, size_t to, bool in) const
    {
        std::vector<std::pair<size_t, size_t>> found;
        auto r = ranges_.upper_bound(from);
        if (r != ranges_.begin())
            --r;
        for (; from < to && r != ranges_.end() && r->first < to; ++r) {
            if (r->second <= from)
                continue;
            if (!in && r->first > from)
                found.emplace_back(from, r->first);
            if (in)
                found.emplace_back(std::max(from, r->first), std::min(to, r->second));
            from = r->second;
        }
        if (!in && from < to)
            found.emplace_back(from, to);
        return found;
    }

private:
    std::map<size_t, size_t> ranges_;
};

static TraceEntry said_after(const TraceEntry &e, TraceEntry::Action action, size_t from, size_t to)
{
    return {action, e.device_, from, to - from, e.stream_, e.mempool_, e.time_.approx_t_, nullptr, "N/A", ""};
}

/* `page`: bytes of a page. The pages of a block are mapped and unmapped as a whole. */
void fit_trace(std::vector<TraceEntry> &trace, const std::vector<SegmentInfo> &segments, DeviceIndex device, size_t page)
{
    Ranges there;
    for (const SegmentInfo &segment : segments)
        if (segment.device == device)
            there.add(segment.address, segment.address + segment.total_size);
    std::vector<TraceEntry> fitting; /* the newest first */
    fitting.reserve(trace.size());
    for (auto e = trace.rbegin(); e != trace.rend(); ++e) {
        size_t from = e->addr_, to = from + e->size_;
        auto lose = [&] {
            for (auto [begin, end] : there.parts(from, to, false)) {
                size_t first = begin == from ? begin / page * page : begin, last = end == to ? (end + page - 1) / page * page : end;
                fitting.push_back(said_after(*e, TraceEntry::SEGMENT_UNMAP, first, last));
                there.add(first, last);
            }
        };
        switch (e->action_) {
        case TraceEntry::SEGMENT_MAP:
            lose();
            there.remove(from, to);
            break;
        case TraceEntry::SEGMENT_ALLOC:
            there.remove(from, to);
            break;
        case TraceEntry::SEGMENT_UNMAP:
            for (auto [begin, end] : there.parts(from, to, true))
                fitting.push_back(said_after(*e, TraceEntry::SEGMENT_MAP, begin, end));
            there.add(from, to);
            break;
        case TraceEntry::SEGMENT_FREE:
            there.add(from, to);
            break;
        case TraceEntry::ALLOC:
        case TraceEntry::FREE_REQUESTED:
        case TraceEntry::FREE_COMPLETED:
            lose();
            break;
        default:
            break;
        }
        fitting.push_back(std::move(*e));
    }
    trace.assign(std::make_move_iterator(fitting.rbegin()), std::make_move_iterator(fitting.rend()));
}

} // namespace cenote_torch
