/* climb.h: searches for the worst pattern, and shrinks its trace. See climb.c and shrink.c. */
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
    bool                    shows;         /* prints progress on stderr */

    struct pattern          worst;
    double                  waste;         /* of `worst`; 0: none found */
    uint64_t                patterns;      /* tried */
    double                  took;          /* seconds */
    struct trace            trace;         /* of the pattern tried last; after the search, of the worst */
    struct replay_result    result;        /* likewise */
};

/* False: the allocator failed at `trace`, other than by running out of memory; result.message says how. */
bool climb(struct search *search);

/* Takes blocks out of search->trace, as long as at least 95 % of the excess over the live peak stays. */
bool shrink(struct search *search);

double now_seconds(void);

#endif
