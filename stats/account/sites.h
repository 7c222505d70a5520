/* sites.h: where in the program a block was allocated. See sites.c. */
#ifndef CENOTE_STATS_ACCOUNT_SITES_H
#define CENOTE_STATS_ACCOUNT_SITES_H

#include <stdint.h>

#define SITE_FRAMES_MAX 16u

/* The site of the call that returns to `caller`, with up to `frames` functions around it, where a mark has it; 0: no room, or not known. */
__attribute__((cold, noinline)) uint64_t site_mark(const void *caller, uint32_t frames);

#endif
