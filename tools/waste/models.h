/* models.h: other allocators playing a trace; of the result they set reserved_peak, live_at_peak, ooms, driver_... and failed. */
#ifndef CENOTE_TOOLS_WASTE_MODELS_H
#define CENOTE_TOOLS_WASTE_MODELS_H

#include "tools/replay/replay.h"

/* torch.c: models of PyTorch's caching allocator. They use no driver. */
void play_native(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result);
void play_expandable(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result);

/* async.c: the driver's own pool, called as PyTorch's cudaMallocAsync backend calls it. Needs a process of its own. */
void play_async(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result);

#endif
