/*
 * place.h: a context as the preload serves it: the primary one of a device, or one that the program has made. See place.c for its life.
 */
#ifndef CENOTE_PRELOAD_PLACE_H
#define CENOTE_PRELOAD_PLACE_H

#include "plugins/preload/real.h"

#include <cenote/cenote.h>
#include <cenote/report.h>
#include <stdatomic.h>

#define DEVICES_SERVED  64  /* by ordinal */
#define CONTEXTS_SERVED 64  /* of the program's own; memory of more is the driver's */
#define PLACES_MAX (DEVICES_SERVED + CONTEXTS_SERVED) /* by number: the primary context of each device, then the program's own */
#define EVENTS_KEPT 8   /* of a place; chosen: threads that free at one time */

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
    _Atomic(struct place *)  place;         /* where the group is, and all its blocks */
    _Atomic(bool)            is_granted;    /* to the devices that the driver's pool was opened to before its first block */
    _Atomic uint64_t         used, used_high;
    _Atomic uint64_t         reserved_high; /* that a program was told */
};

struct place {
    _Atomic(CUcontext)    context;     /* NULL: closed, or it closes. A primary one is retained by us, once */
    _Atomic(cenote_pool *) pool;       /* threads that look for the place of a block read it of all places */
    int                   number;      /* from here on of no meaning to threads that have nothing to do with the place */
    CUdevice              device;
    CUcontext             inside;      /* as context, but it stays until the visitors have gone, who may call the driver */
    CUstream              still;       /* ours, and never given work: memory of its order is done with on the device */
    _Atomic(uint64_t)     still_id;    /* as blocks have it; 0: no block was taken on it yet */
    CUstream              mark;        /* ours, too; captures are announced for it (captures.c) */
    CUmemoryPool          mempool;     /* the driver's default pool of the device */
    struct family         family;      /* of it */
    _Atomic(CUmemoryPool) current;     /* the one that cuMemAllocAsync means: the default one, or what the program has set */
    bool                  all_are_seen;  /* the program promises that no capture begins past the hooks (announced:1) */
    unsigned              event_flags;   /* a thread waits for an event as it waits for the context */
    _Atomic(CUevent)      events[EVENTS_KEPT]; /* not in use; NULL: none */
    _Atomic(CUdeviceptr)  probe;         /* memory of the driver, to ask it for a free with (memory.c); 0: none */
};

/* A program names one of ours where it has destroyed a stream of its own, whose handle this is by now: the driver would refuse it. */
static inline bool place_has_stream(const struct place *p, CUstream stream)
{
    return stream == p->still || stream == p->mark;
}

static inline bool stream_is_default(CUstream stream)
{
    return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

/*
 * For calls of the driver that a place makes: between the two its context is current, and captures of the thread forbid nothing. Leave follows enter,
 * whatever enter returned.
 */
struct scope {
    CUstreamCaptureMode mode;
    bool has_pushed;
    bool had_context; /* some context was current before */
};
CUresult place_enter(struct place *p, struct scope *scope);
void     place_leave(struct scope *scope);

/* Is any context current to the calling thread? The driver refuses some calls if not, of which cenote needs none. */
bool place_has_context(void);

/* An event of the place, for one wait. NULL: the driver has none. LOCKING: inside. */
CUevent place_take_event(struct place *p);
void    place_give_event(struct place *p, CUevent event);

/* The place of the calling thread's current context; of a context. NULL: memory of it is left to the driver. */
struct place *place_here(void);
struct place *place_of_context(CUcontext context);

/* The same of the primary context of a device. NULL also: the program has none there. */
struct place *place_of_primary(CUdevice device);

/* The one that is open in this context; NULL: none. */
struct place *place_open_in(CUcontext context);

/* NULL: a pool that is none of ours. */
struct place *place_of_pool(const cenote_pool *pool);

/* By number, which for a device is its ordinal; NULL: closed. */
struct place *place_at(int number);

/*
 * The same, for a thread that goes through all places: another one may end the context of any but its own. The pool stays until place_visit_end, for
 * which the end of the context waits. NULL: closed, and there is no visit.
 */
struct place *place_visit(int number);
struct place *place_visit_there(const struct place *p); /* by what it was: another context may have its place by now */
void          place_visit_end(struct place *p);

static inline bool place_is_primary(const struct place *p)
{
    return p->number < DEVICES_SERVED;
}

/* The program has made this context; it destroys it next. */
void place_context_made(CUcontext context);
void place_context_ends(CUcontext context);
void place_context_attached(CUcontext context);
bool place_context_detached(CUcontext context); /* it has been attached more often; false: it ends, or is none of the program's own that is served */

/* The live block of ours that holds `at`, and its place. NULL: memory of the driver. */
struct place *place_of_block(CUdeviceptr at, cenote_block *block);

/*
 * The context has ended, with all its memory, or ends next: the place closes, and what was live there is gone. `is_released`: the retain of the place
 * has been given back.
 */
void place_close(int number, bool has_ended, bool is_released);

/*
 * Does another thread hold a retain of a primary context that is ours for a moment, and means nothing? Whether the program has the context shows when
 * it does not.
 */
bool place_is_borrowing(void);

/* Memory that the program wants by other ways than cenote's is short: gives back what no block uses. False: there was none. */
bool place_make_room(void);

/* Peaks and trims of a place, also after it has closed, and the calls of the driver that cenote made for the process. False: never served. */
struct place_past {
    uint64_t requested, reserved, trims, calls;
    CUdevice device;
};
bool place_past(int number, struct place_past *past);

/* Was the block taken by cuMemAlloc, for every stream at once? */
bool place_is_for_all(struct place *p, const cenote_block *block);

/* The driver has no memory left for what it was asked: true, if cenote has given some back, and the driver is to be asked once more. */
static inline bool place_lacks_room(CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY && place_make_room();
}

/* A request for memory was left to the driver, which has answered it: counted, if it was granted. */
CUresult place_passed(enum pass why, CUresult result);
uint64_t place_passes(enum pass why);

#endif
