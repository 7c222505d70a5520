/*
 * parts.cpp: a tensor that the program fills part by part (rows of a batch, the halves of a concatenation) becomes known part by part, and one into
 * which something unknown is written stays known elsewhere. A version that is not known as a whole says which of its bytes are not.
 *
 * Rule V15: a part is known only if all that could have written there since it was filled is computed. If it turns out that something of that
 * cannot be, the whole version is unknown, and so is what was made of it since.
 *
 * LOCKING: the tape's lock.
 */
#include "parts.h"

#include <algorithm>

namespace cenote_values
{

static constexpr size_t SPANS_MOST = 256; /* that are told apart. Chosen. */

/* In order, and apart from each other. */
static Spans in_order(Spans spans)
{
    std::sort(spans.begin(), spans.end(), [](const Span &one, const Span &other) { return one.from < other.from; });
    Spans made;
    for (const Span &s : spans)
        if (!made.empty() && s.from <= made.back().to)
            made.back().to = std::max(made.back().to, s.to);
        else
            made.push_back(s);
    return made;
}

/* The bytes of a view. False: too many spans. */
static bool spans_of(const Operand &view, Spans &out)
{
    std::vector<std::pair<int64_t, int64_t>> steps; /* stride and size, the smallest stride first */
    for (size_t d = 0; d < view.sizes.size(); d++) {
        if (!view.sizes[d])
            return true;
        if (view.sizes[d] > 1 && view.strides[d])
            steps.emplace_back(view.strides[d], view.sizes[d]);
    }
    std::sort(steps.begin(), steps.end());
    int64_t width = static_cast<int64_t>(c10::elementSize(view.type)), run = 1;
    size_t first = 0;
    for (; first < steps.size() && steps[first].first == run; first++)
        run *= steps[first].second;
    out.push_back({view.offset * width, (view.offset + run) * width});
    for (size_t i = first; i < steps.size(); i++) {
        size_t there = out.size();
        if (there * static_cast<size_t>(steps[i].second) > SPANS_MOST)
            return false;
        for (int64_t n = 1; n < steps[i].second; n++)
            for (size_t s = 0; s < there; s++)
                out.push_back({out[s].from + n * steps[i].first * width, out[s].to + n * steps[i].first * width});
    }
    out = in_order(std::move(out));
    return true;
}

static Spans without(const Spans &all, const Spans &taken)
{
    Spans left;
    for (Span s : all) {
        for (const Span &t : taken) {
            if (t.to <= s.from || t.from >= s.to)
                continue;
            if (t.from > s.from)
                left.push_back({s.from, t.from});
            s.from = std::min(t.to, s.to);
        }
        if (s.from < s.to)
            left.push_back(s);
    }
    return left;
}

bool knows(const Version &version, const Operand &view)
{
    if (version.is_known || version.unknown.empty())
        return version.is_known;
    Spans spans;
    if (!spans_of(view, spans))
        return false;
    for (const Span &s : spans)
        for (const Span &u : version.unknown)
            if (s.from < u.to && u.from < s.to)
                return false;
    return true;
}

bool fills_part(const Operator &what, const at::Tensor &part)
{
    Spans spans;
    return what.replaces && spans_of(operand_of(part, 0, -1, true), spans);
}

Spans spans_of_true(const at::Tensor &places, int64_t width)
{
    Spans made;
    const bool *at = places.const_data_ptr<bool>();
    for (int64_t i = 0, n = places.numel(); i < n; i++) {
        if (!at[i])
            continue;
        int64_t from = i;
        while (i < n && at[i])
            i++;
        made.push_back({from * width, i * width});
        if (made.size() > SPANS_MOST)
            return {};
    }
    return made;
}

/* `places`: what was written of the view, if an index says so. */
void know_after(Version &after, const Version &before, const Operand &written, bool is_known, const Spans *places)
{
    Spans spans, unknown = before.unknown;
    bool can = spans_of(written, spans);
    if (!before.is_known && unknown.empty())
        unknown.push_back({0, before.size});
    if (is_known && written.is_filled && can)
        unknown = without(unknown, places ? *places : spans);
    if (!is_known && can) {
        unknown.insert(unknown.end(), spans.begin(), spans.end());
        unknown = in_order(std::move(unknown));
    }
    after.is_known = unknown.empty() && (is_known || can);
    bool is_whole = unknown.size() > SPANS_MOST || (unknown.size() == 1 && unknown[0].to - unknown[0].from >= before.size);
    after.unknown = is_whole || !(is_known || can) ? Spans() : std::move(unknown);
}

void lose(Version &v)
{
    v.is_known = v.is_likely = false;
    v.is_lost = true;
    v.unknown.clear();
}

} // namespace cenote_values
