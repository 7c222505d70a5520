/*
 * device.h: one device as pools see it: its driver, its context, what it can do, and how many captures are open on it.
 *
 * Driver calls of slow paths are made between device_enter and device_leave: our context is current then, whatever the caller's was,
 * and the thread's capture mode is RELAXED, so that a capture of the caller does not forbid them (rule 5). No capture is announced while
 * a thread is inside and the gate is shut: `captures` does not rise then. Enter and leave do not nest. Contexts of one device have one gate, as
 * they have one memory and one count of captures (struct card).
 *
 * No thread waits for the device inside the gate (rule 12): the gate is open meanwhile (device_wait_begin, device_wait_end), and also while a thread
 * looks at other pools of the device. Afterwards the thread looks at `captures` again. A driver without cuCtxRecordEvent can be waited for as a
 * whole only in a way that would end a capture. So an announcement waits for such a wait, but before it comes to the gate: a thread that passes there
 * is not held up. When captures cease to be announced, the thread that says so waits in the same way.
 *
 * LOCKING: the gate is taken for reading by enter, before any other lock but `careful_lock`, `tending` and `answering`, whose holders enter,
 * and for writing by an announcement and by device_let_calls_end, with `quiet` alone, and by device_let_leave, with no lock. `quiet` is taken for
 * reading while the gate is open, with no lock that a thread inside waits for, and for writing by an announcement and by device_let_calls_end.
 */
#ifndef CENOTE_DRIVER_DEVICE_H
#define CENOTE_DRIVER_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "driver/driver.h"
#include "driver/touch.h"

#define DEVICES_MAX  64 /* a set of devices is a word */
#define CONTEXTS_MAX 64 /* beside the primary ones, in which pools are */

/*
 * The device itself: what its contexts have in common, and all pools that are in those. Memory that one context gives back is there for the others,
 * and a capture in one holds off what may not be done meanwhile in each.
 */
struct card {
    unsigned    opened;        /* contexts of it that are open; guarded as `opened` of those */
    _Atomic(uint64_t) before;  /* bytes in use by any process when it was entered first; UINT64_MAX: not known */
    atomic_bool was_asked;     /* for `before` */
    _Atomic(uint64_t) mappings; /* of pages, by all pools */
    atomic_bool is_short;      /* of memory: the driver refused the last page that was asked for */
    atomic_uint captures;      /* open on any pool */
    bool        has_gate;      /* both of these are there, from the first time on */
    pthread_rwlock_t gate;     /* readers: threads inside */
    pthread_rwlock_t quiet;    /* readers: threads in cuCtxSynchronize, with the gate open */
};

struct device {
    const struct driver *driver;
    struct card *card;         /* the same for all contexts of the device */
    int         number;        /* a primary context: the ordinal; from DEVICES_MAX on: a context beside those */
    int         ordinal;
    CUdevice    handle;
    _Atomic(unsigned long long) context_id; /* the driver's, of the context when it was retained; 0: the driver does not say */
    _Atomic(uint64_t) generation; /* of the context: no other one of the process has it. 0: the context has ended, and all that was in it */
    _Atomic(CUcontext) context; /* the primary one, retained from the first entry on, while a pool uses the device; NULL: no thread has entered.
                                   Or one that a caller keeps */
    atomic_bool is_kept;       /* the caller of device_open_in keeps the context: it is not retained. Changes under what guards `opened` */
    atomic_uint captures;      /* of those of the card, the ones that were announced for pools in this context */
    atomic_uint opened;        /* by that many pools; changed under the caller's global lock, and down to 0 under LOCK_CONTEXT as well */
    unsigned    pools;         /* of those, in this context. Guarded as `opened` */
    unsigned char uuid[16];    /* of the card, or of its part that the process has (MIG); all 0: the driver does not say */
    uint64_t    capacity;      /* bytes of memory */
    uint64_t    granularity;   /* of cuMemCreate; 0: no virtual memory management */
    bool        has_pools;     /* cuMemAllocFromPoolAsync works */
    bool        has_rdma;      /* cuMemCreate takes gpuDirectRDMACapable, the driver says */
    bool        has_decompression; /* an engine that reads and writes memory of cuMemAlloc, and what was made for it */
    unsigned    handles;       /* CUmemAllocationHandleTypes of pages, the driver says */
    atomic_uint pages[2];      /* what they are made as, and whether that was tried: probe.c. [1]: of pools that want fabric handles */
    struct touch touch;        /* streams on which events may be recorded */
};

/* cuda.h has them from 12.8 on: CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK and CU_MEM_CREATE_USAGE_HW_DECOMPRESS, the same for pools. */
enum { DECOMPRESSION_ALGORITHMS = 136, FOR_DECOMPRESSION = 0x2 };

/*
 * The device, retained once more. NULL and a CENOTE_ error, told to error_set. device_open_in: a context as a device of its own, which is not the
 * device with its primary context, unless that is the context. LOCKING: the caller's global lock.
 */
struct device *device_open(int ordinal, int *error);
struct device *device_open_in(CUcontext context, int *error);
struct device *device_open_again(int number); /* if it is open; NULL: it is not */
struct device *device_open_more(struct device *device); /* if it is open, whatever became of its context; NULL: it is not */
void           device_close(struct device *device);

/*
 * What is remembered of a context by a handle, an address or an ordinal is that thing as long as the device has the generation that it had then. A
 * reset ends a context, with its events, its streams and the memory that came from it, and the driver gives handles and addresses again, that of the
 * context, too. Nothing of another generation may be named to the driver.
 *
 * device_is: as the last call knows that asked. device_lives asks the driver. LOCKING: none.
 */
static inline bool device_is(const struct device *device, uint64_t generation)
{
    return generation && atomic_load(&device->generation) == generation;
}
bool device_lives(struct device *device, uint64_t generation);

/* Its context has ended, and no pool is in that: from now on the device has the next context. False: pools are. LOCKING: the caller's global lock. */
bool device_begin_anew(struct device *device);

/* A context that the caller of device_open_in named, and no device with its primary one. */
static inline bool device_is_beside(const struct device *device)
{
    return device->number >= DEVICES_MAX;
}

/* Is a capture open on any pool of the device, in whichever of its contexts? Inside, a no stays a no. */
static inline bool device_is_captured(const struct device *device)
{
    return atomic_load_explicit(&device->card->captures, memory_order_seq_cst) != 0;
}

/*
 * Do captures hold off the end of the pools in the context, and a wait for it? Those in the context itself do, and those in others, unless a caller
 * keeps the context: that caller may have to end it now, and no call for that end concerns a capture elsewhere.
 */
static inline bool device_bars_end(const struct device *device)
{
    return atomic_load(&device->captures) || (device_is_captured(device) && !atomic_load(&device->is_kept));
}

/* NULL: no thread has entered, and nothing of cenote's is there. Does not change between enter and leave. */
static inline CUcontext device_context(const struct device *device)
{
    return atomic_load_explicit(&device->context, memory_order_acquire);
}

/* The context of that generation does nothing any more, for good: it is lost, which `result` may say, or has ended. */
static inline bool device_is_lost(const struct device *device, uint64_t generation, CUresult result)
{
    return driver_result_is_sticky(result) || !device_is(device, generation);
}

/* Has the driver make the context, if it is not there. */
CUresult device_prepare(struct device *device);

/* Leave follows enter, whatever enter returned. CUDA_ERROR_CONTEXT_IS_DESTROYED: the device has not that generation any more. */
CUresult device_enter(struct device *device, uint64_t generation);
CUresult device_enter_as_it_is(struct device *device, uint64_t generation); /* to give back: where no context is, none is made */
CUresult device_entered(void);                         /* what the last of these returned to this thread. LOCKING: inside */
void     device_leave(struct device *device);

/* As device_enter, but for threads that must not wait: false, and nothing to leave, while a capture is being announced. */
bool device_try_enter(struct device *device, uint64_t generation, CUresult *result);

/*
 * In the context of another device for a few short calls, by a thread that is inside its own. CUDA_ERROR_NOT_READY: not now, a capture is being
 * announced there; any other error is the driver's. It never waits at the gate: a thread there may be on a visit here.
 */
CUresult device_visit(struct device *other, uint64_t generation);
void device_visit_end(struct device *other);

/*
 * Another context of the same device is current, for a thread that is inside and sees to it that the context does not end. An error: it is not, and
 * there is nothing to come back from.
 */
CUresult device_go_over(struct device *beside, uint64_t generation);
void device_come_back(struct device *beside);

/* The context that a thread pushed last is its current one no more. */
static inline void device_pop_context(const struct driver *t)
{
    CUcontext popped;
    if (t->cuCtxPopCurrent(&popped)) /* calls of the thread would go to this context: a refusal is asked for once more */
        t->cuCtxPopCurrent(&popped);
}

/*
 * Whose default stream do the handles 0 and 1 name on this thread? *id: 0: the device's own, as far as this device is concerned; otherwise
 * the driver's id of the default stream of the green context that is current. CUDA_ERROR_INVALID_CONTEXT: the current context is one beside
 * the primary one. LOCKING: none, not inside.
 */
CUresult device_default_stream(struct device *device, unsigned long long *id);

/*
 * Which context a stream is of, and which device. Of a stream of a green context it is the primary one, as far as the driver knows the newer form of
 * the question. To the older one, of drivers before CUDA 12.5, a green context is a context like any other. LOCKING: none, not inside.
 */
CUresult device_of_stream(struct device *d, CUstream stream, CUcontext *context, CUdevice *device);

/* Around a wait of any length, inside: captures may be announced meanwhile. Afterwards look at `captures` again. */
void device_wait_begin(struct device *device);
void device_wait_end(struct device *device);

/*
 * Waits, with the gate open, for all that was put on the device so far: without the promise of touch.h on streams that cenote knows and may
 * touch; then *whole is false. CUDA_ERROR_NOT_READY: not now, a capture is open. LOCKING: inside, with no lock. Afterwards look at `captures` again.
 */
CUresult device_wait(struct device *device, bool *whole);
CUresult device_wait_at_last(struct device *device, bool *whole); /* for captures that are not announced: see wait.c */
CUresult device_wait_for_context(struct device *device); /* cuCtxSynchronize, for a thread that has opened the gate: the same for what it answers */

/* Threads that are inside now have left when this returns, or wait for the device with the gate open. LOCKING: none held, not inside. */
void device_let_leave(struct card *card);

/* A capture begins or ends on some pool of the device. LOCKING: none held, not inside. */
void device_announce_capture(struct device *device);
void device_end_capture(struct device *device);
bool device_captures_are_open(void); /* on any device. LOCKING: none */

/*
 * Captures are not announced any more: touch.h has been told. When this returns, every call over the whole context that a thread had begun or
 * decided on before has ended. LOCKING: as device_announce_capture, or with `careful_lock`.
 */
void device_let_calls_end(struct device *device);

/*
 * --- age.c: the id of a stream that is made in the context of this one, which may be captured, and is gone again. No stream of this moment has a
 * greater one. 0: the driver does not say, or its ids do not rise. LOCKING: none, not inside
 */
unsigned long long device_newest_stream(struct device *d, CUstream stream);
uint64_t device_capture_of(const struct device *d, CUstream stream); /* the number of the capture that it is in; 0: none, or not known */

/* What a page of this device is made of, for cuMemCreate and cuMemSetAccess. */
/* --- probe.c. `fabric`: of pools that want fabric handles */
CUresult            device_ask_granularity(struct device *device);
void                device_prove_pages(struct device *device, bool fabric);          /* at most once. LOCKING: inside */
bool                device_knows_pages(const struct device *device, bool fabric);    /* proven, or refused */
bool                device_has_pages(const struct device *device);                   /* as far as is known */
bool                device_lost_handles(const struct device *device, bool fabric);   /* the driver said that pages have more than they have */
CUmemAllocationProp device_page_prop(const struct device *device, bool fabric);

CUmemAccessDesc     device_access(const struct device *device);

#endif
