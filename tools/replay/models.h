/* models.h: PyTorch's caching allocator playing a trace, without a driver; of the result they set reserved_peak, live_at_peak, ooms, driver_...,
 * failed and message. See torch.c. */
#ifndef CENOTE_TOOLS_REPLAY_MODELS_H
#define CENOTE_TOOLS_REPLAY_MODELS_H

#include "tools/replay/replay.h"

void play_native(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result);
void play_expandable(const struct trace *trace, const struct replay_plan *plan, struct replay_result *result);

#endif
