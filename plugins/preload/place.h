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

/* A pool of the driver that cenote stands for (families.c). */
struct family {
    _Atomic(CUmemoryPool)    handle;
    CUdevice                 device;
    _Atomic(cenote_group *)  group;         /* of its blocks; NULL: none yet, or the default pool of a device */
    _Atomic(bool)            is_granted;    /* to the devices that the driver's pool was opened to before its first block */
    _Atomic uint64_t         used, used_high;
    _Atomic uint64_t         reserved_high; /* that a program was told */
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
    struct family         family;      /* of it */
    _Atomic(CUmemoryPool) current;     /* the one that cuMemAllocAsync means: the default one, or what the program has set */
};

/* The place of the calling thread's current context; of a context. NULL: memory of it is left to the driver. */
struct place *place_here(void);
struct place *place_of_context(CUcontext context);

/* NULL: a pool that is none of ours. */
struct place *place_of_pool(const cenote_pool *pool);

/* By ordinal; NULL: closed. */
struct place *place_at(int ordinal);

/* The live block of ours that holds `at`, and its place. NULL: memory of the driver. */
struct place *place_of_block(CUdeviceptr at, cenote_block *block);

/*
 * The primary context of the device has ended, or is about to, with all its memory: the place closes, and what was live there is gone. A context that
 * is about to end and has an open capture stays, and so does the place: the device cannot be waited for.
 */
void place_close(int ordinal, bool has_ended);

/* Memory that the program wants by other ways than cenote's is short: gives back what no block uses. False: there was none. */
bool place_make_room(void);

/* Peaks and trims of a device, also of places that have closed, and the calls of the driver that cenote made for the process. False: never served. */
struct place_past {
    uint64_t requested, reserved, trims, calls;
};
bool place_past(int ordinal, struct place_past *past);

/* Was the block taken by cuMemAlloc, for every stream at once? */
bool place_is_for_all(struct place *p, const cenote_block *block);

/* A request for memory was left to the driver, which has answered it: counted, if it was granted. */
CUresult place_passed(enum pass why, CUresult result);
uint64_t place_passes(enum pass why);

#endif
