/*
 * nvtx_library.h: what libcenote_nvtx.so has, and libcenote.so looks up in it. See nvtx.c.
 */
#ifndef CENOTE_STATS_REPORT_NVTX_LIBRARY_H
#define CENOTE_STATS_REPORT_NVTX_LIBRARY_H

#include <cenote/cenote.h>

typedef void nvtx_tag_fn(char *text, size_t room);  /* writes the tags of the calling thread, as a path */

void *cenote_nvtx_open(nvtx_tag_fn *tag);           /* for one pool. NULL: no host memory */
void  cenote_nvtx_hear(cenote_pool *pool, const cenote_notice *notice, void *opened); /* a watch function */
void  cenote_nvtx_close(void *opened);

#endif
