/* curve.h: what an allocator holds after each record of a trace. See curve.c. */
#ifndef CENOTE_TOOLS_REPLAY_CURVE_H
#define CENOTE_TOOLS_REPLAY_CURVE_H

#include "tools/replay/replay.h"

/* False: the file cannot be written, and errno says why; nothing is there then if the allocator failed, which is in `result`. */
bool curve_write(const char *path, const struct trace *trace, const struct replay_plan *plan, struct replay_result *result);

#endif
