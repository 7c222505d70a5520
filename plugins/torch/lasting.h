/*
 * lasting.h: streams that last as long as the program, which are those of PyTorch's pools. Knows no PyTorch: the adapter and the fallback
 * (plugins/pluggable) have ways of their own to take a stream.
 */
#pragma once

#include <cenote/cenote.h>

namespace cenote_torch {

/* What the options of the pools say, which CENOTE_CONF may have changed. */
static inline bool captures_are_announced()
{
    cenote_options options;
    return cenote_options_default(&options) || options.announced;
}

/*
 * Adds the streams of a pool, which hands them out in turn, so that whole rounds change nothing for the program. Another thread that takes a stream
 * meanwhile is the only one that gets it in this round, so the rounds go on until one brings nothing new.
 */
template <class Take, class Streams> void add_pool(Streams &streams, Take take)
{
    const auto first = take();
    streams.insert(first);
    for (bool is_new = true; is_new;) {
        is_new = false;
        for (auto next = take(); next != first; next = take())
            is_new |= streams.insert(next).second;
    }
}

} // namespace cenote_torch
