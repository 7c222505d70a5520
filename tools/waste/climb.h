/* climb.h: the search for the worst pattern, and what of it is enough. See climb.c and shrink.c. */
#ifndef CENOTE_TOOLS_WASTE_CLIMB_H
#define CENOTE_TOOLS_WASTE_CLIMB_H

#include "tools/waste/judge.h"
#include "tools/waste/pattern.h"

struct search {
    const struct allocator *allocator;
    struct replay_plan      plan;
    struct bounds           bounds;
    uint64_t                seed;
    uint64_t                patterns_most; /* 0: by time alone */
    double                  seconds;
    bool                    shows;         /* how it goes, on stderr */

    struct pattern          worst;
    double                  waste;         /* of `worst`; 0: none found */
    uint64_t                patterns;      /* tried */
    double                  took;          /* seconds */
    struct trace            trace;         /* of the pattern tried last; after the search, of the worst */
    struct replay_result    result;        /* likewise */
};

/* False: the allocator failed at `trace`, other than by running out of memory; result.message says how. */
bool climb(struct search *search);

/* Takes blocks out of search->trace as long as the excess over the live peak stays at least 95 % of what it is. */
bool shrink(struct search *search);

double now_seconds(void);

#endif
