/*
 * place.h: a device as the preload serves it. See place.c for its life.
 */
#ifndef CENOTE_PRELOAD_PLACE_H
#define CENOTE_PRELOAD_PLACE_H

#include "plugins/preload/real.h"

#include <cenote/cenote.h>
#include <cenote/report.h>
#include <stdatomic.h>

#define PLACES_MAX 64 /* devices, by ordinal */

enum pass {
#define PASS(name, text) PASS_##name,
#include "plugins/preload/passes.def"
#undef PASS
    PASSES
};

struct place {
    _Atomic(CUcontext)    context;     /* the device's primary one, which we retain; NULL: closed */
    CUdevice              device;
    cenote_pool          *pool;
    CUstream              still;       /* ours, and never given work: memory of its order is done with on the device */
    _Atomic(uint64_t)     still_id;    /* as blocks have it; 0: no block was taken on it yet */
    CUstream              mark;        /* ours, too; captures are announced for it (captures.c) */
    cenote_group         *captures;
    CUmemoryPool          mempool;     /* the driver's default pool of the device */
    _Atomic(CUmemoryPool) current;     /* the one that cuMemAllocAsync means: the default one, or what the program has set */
};

/* The place of the calling thread's current context; of a context. NULL, and counted: memory of it is left to the driver. */
struct place *place_here(void);
struct place *place_of_context(CUcontext context);

/* NULL: a pool that is none of ours. */
struct place *place_of_pool(const cenote_pool *pool);

/* By ordinal; NULL: closed. */
struct place *place_at(int ordinal);

/* The live block of ours that holds `at`, and its place. NULL: memory of the driver. */
struct place *place_of_block(CUdeviceptr at, cenote_block *block);

/* Was the block taken by cuMemAlloc, for every stream at once? */
bool place_is_for_all(struct place *p, const cenote_block *block);

void     place_count_pass(enum pass why);
uint64_t place_passes(enum pass why);

#endif
