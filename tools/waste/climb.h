/* climb.h: searches for the worst pattern. See climb.c. */
#ifndef CENOTE_TOOLS_WASTE_CLIMB_H
#define CENOTE_TOOLS_WASTE_CLIMB_H

#include "tools/replay/replay.h"
#include "tools/waste/pattern.h"

struct search {
    struct replay_plan   plan;
    struct bounds        bounds;
    uint64_t             seed;
    uint64_t             patterns_most;

    struct pattern       worst;
    double               waste;         /* of `worst`: peak reserved divided by peak requested; 0: none found */
    uint64_t             patterns;      /* tried */
    struct trace         trace;         /* of the pattern tried last; after the search, of the worst */
    struct replay_result result;        /* of the pattern tried last */
};

/* False: the allocator failed at `trace`, other than by running out of memory; result.message says how. */
bool climb(struct search *search);

#endif
