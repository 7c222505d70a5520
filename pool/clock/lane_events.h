/*
 * lane_events.h: events on streams that end, one stream at a time: a stream that stalls holds back nothing but what
 * waits for it; see lane_events.c.
 */
#ifndef CENOTE_POOL_CLOCK_LANE_EVENTS_H
#define CENOTE_POOL_CLOCK_LANE_EVENTS_H

#include "pool/clock/clock.h"

void lane_events_end(struct clock *c, uint32_t lane, CUevent end);
void lane_events_close(struct clock *c);
CUresult lane_events_record(struct clock *c);
CUresult lane_events_query(struct clock *c);

#endif
