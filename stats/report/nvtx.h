/*
 * nvtx.h: NVIDIA's tools hear of the pool's memory and of its blocks, with the option sanitize; see nvtx.c, and
 * plugins/nvtx/nvtx.c for the library that tells them.
 */
#ifndef CENOTE_STATS_REPORT_NVTX_H
#define CENOTE_STATS_REPORT_NVTX_H

#include "pool/pool.h"

int  nvtx_open(cenote_pool *pool);
void nvtx_close(cenote_pool *pool);

#endif
