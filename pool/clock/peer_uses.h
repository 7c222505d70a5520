/* peer_uses.h: blocks that streams of other devices use; see peer_uses.c. */
#ifndef CENOTE_POOL_CLOCK_PEER_USES_H
#define CENOTE_POOL_CLOCK_PEER_USES_H

#include "pool/clock/clock.h"

void peer_uses_record(struct clock *c, struct use *u);
bool peer_uses_is_done(struct clock *c, uint32_t use);
bool peer_uses_wait_for(struct device *other, uint64_t generation);
CUresult peer_uses_end(const struct lane *lane, CUstream stream, bool whole, CUevent *end);
CUresult peer_uses_become_careful(struct clock *c);

#endif
