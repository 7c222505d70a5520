/*
 * model.h: the simulated machine as its parts see it: shape, devices, contexts, threads, books.
 *
 * The entry points that programs call are elsewhere (entries.def): they check, lock and count, then call one function of the model.
 *
 * LOCKING: one lock for the whole model. Every function of every room expects it, unless it says otherwise.
 */
#ifndef CENOTE_SIM_MODEL_H
#define CENOTE_SIM_MODEL_H

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "sim/machine/ranges.h"
#include "sim/machine/slots.h"
#include "sim/sim.h"

#define DEVICES_MOST 16
#define CONTEXTS_MAX 4096
#define CONTEXT_STACK_MAX 256
#define OWN_STREAMS_MAX 32
#define STREAM_PRIORITY_LEAST 0
#define STREAM_PRIORITY_GREATEST (-5)

struct device {
    uint64_t        area;           /* offset of its physical memory among that of all */
    uint64_t        capacity;
    uint64_t        used;           /* physical bytes held by programs, without contexts */
    uint64_t        foreign;        /* held by other processes */
    uint64_t        contexts_bytes; /* taken by contexts */
    struct ranges   free;           /* physical memory, as offsets */
    struct ranges   small;          /* free space inside chunks of small plain allocations, as addresses */
    uint32_t        primary;        /* its primary context */
};

struct context {
    int      device;
    bool     has_local_memory; /* of kernels */
    bool     primary;
    uint32_t held;              /* retains of a primary context, which a reset leaves as they are; 1 of any other */
    unsigned flags;
    CUresult lost;              /* the sticky error, once there is one */
    _Atomic uint32_t legacy;    /* its default stream; 0: not alive; read without the lock */
    uint64_t id;                /* unique */
    uint64_t all_done;          /* when all work put on it so far is done */
    uint64_t blocking_done;     /* the same for streams that wait for the default stream */
    uint64_t peers;             /* devices whose plain memory it may access */
    uint64_t not_before;        /* work put on it starts no earlier */
    uint32_t whole;             /* of a green context: the primary one that it is a part of; 0: it is no green one */
    unsigned processors;        /* of a green context */
    CUgreenCtx green;           /* its other handle */
};

struct own_stream {             /* a per-thread default stream */
    uint32_t context;
    uint32_t stream;
    uint64_t id;                /* valid while the stream still has it */
};

/* What the model knows of a thread of the program. Threads are never told of sim_reset: `epoch` tells them. */
struct thread {
    uint32_t            epoch;
    uint32_t            depth;
    uint32_t            stack[CONTEXT_STACK_MAX];
    CUstreamCaptureMode capture_mode;
    uint64_t            number;         /* from 1, unique */
    struct own_stream   own[OWN_STREAMS_MAX];
    bool                in_host_function;
    uint64_t            unlocked_calls; /* its calls that took no lock, which are not in the books yet */
    uint32_t            naps;           /* of its call, for another process */
    uint32_t            polls;          /* questions after events that were not done, since it last put work on a stream */
    uint64_t            polled_for;     /* the first moment at which one of those will be done */
};

struct model {
    struct sim_shape shape;
    struct device    devices[DEVICES_MOST + 1]; /* by ordinal; the last is the host's memory */
    struct slots     contexts;
    struct sim_books books;
    uint64_t         mappings_of_one; /* most that one handle's memory had at one time */
    uint64_t         cost_owed;     /* ns not yet on the clock */
    _Atomic uint32_t epoch;         /* number of resets */
    _Atomic bool     initialised;   /* cuInit was called; read without the lock too */
    bool             again;         /* the call under way is made again, see MODEL_AGAIN */
    uint64_t         until;         /* moment that the call under way has to wait for */
    uint64_t         waited;        /* and has waited for */
    bool             quiet;
    char             last_violation[512];
};

extern struct model model;

/*
 * What a function of the model answers, before it changed anything, if it cannot go on: a host function has to return first (clock_go_to
 * said so), or another process to do something. The entry point waits for that without the lock, and calls it again.
 */
#define MODEL_AGAIN ((CUresult)-1)

#define HOST_AREA DEVICES_MOST  /* index of the host's memory in model.devices */

/* What the rooms above this one do at such moments. entries/start.c fills them in. */
struct model_hooks {
    void (*start)(void);                    /* at the first lock: the machine that the environment describes */
    void (*fork_in_child)(void);
    void (*thread_ends)(uint64_t thread);   /* of the program, by its number */
    void (*synchronized)(void);             /* the program has waited for the device */
};

/* --- model.c */
void model_set_hooks(const struct model_hooks *hooks);  /* once, when the library is loaded; needs no lock */
void model_synchronized(void);
void model_cannot_start(const char *what) __attribute__((noreturn));
uint64_t model_reset(const struct sim_shape *shape);    /* forgets all books; returns how many bytes of physical memory have numbers */
void model_lock(void);      /* starts the model at the first call */
void model_unlock(void);
bool model_is_forked(void); /* needs no lock */
CUresult model_gone(void);  /* what every call is refused with: in a fork, or as the driver has ended with the process; needs no lock */
bool model_watch_exit(void);    /* from the next exit on the driver ends with the process; false: no memory */
struct thread *model_thread(void);
void model_wait(pthread_cond_t *what, uint64_t ns);     /* drops the lock meanwhile; 0: however long it takes */
void model_nap(uint64_t ns);                            /* sleeps without the lock */
bool model_start_thread(void *(*run)(void *), void *argument);  /* a detached one, which gets no signals */
CUresult model_refuse_call(const char *call);           /* by a host function; takes the lock itself */
void model_violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
CUresult model_refuse(CUresult result, const char *format, ...) __attribute__((format(printf, 2, 3)));  /* a violation, and its result */

/* --- unexplained.c */
void unexplained_range(uint64_t from, uint64_t to);     /* of addresses that are written to */
void unexplained_kernel(void);                          /* which may write anywhere */
bool answer_take(size_t bytes, uint64_t *number);       /* for a copy to the host of this thread; false: there is none */

/* --- shape.c */
#define sim_quirk(NAME) ((model.shape.quirks & SIM_QUIRK(NAME)) != 0)
bool shape_parse(struct sim_shape *shape, bool *quiet, const char *text);   /* false: said on stderr, `shape` half changed */

/* --- visible.c: the devices of the machine that this process sees, and what tells them apart; -1: none */
void visible_reset(void);               /* all of them */
void visible_follow_environment(void);  /* those of CUDA_VISIBLE_DEVICES */
void visible_renew(void);               /* the variable may have changed */
int  visible_count(void);
int  visible_index(int ordinal);        /* of a device that is seen: its number on the machine */
int  visible_ordinal(int index);        /* of a device of the machine: its number here */
CUuuid device_uuid_of(int index);       /* of the machine: this process need not see it */

/* --- context.c; results as the calls of the same names */
void     contexts_reset(void);
uint32_t context_find(CUcontext handle, const char *call);  /* alive, or a primary one that no caller holds. 0, and a violation: none */
CUresult context_enter(uint32_t context);                   /* pushes it on this thread's stack */
uint32_t context_top(void);         /* of the thread's stack: may be a green one; 0: none */
uint32_t context_current(void);     /* the same, or the primary context that it is a part of: memory, events and modules belong to that */
CUresult context_usable(uint32_t context);
void     context_lose(uint32_t context, CUresult error);
static inline struct context *context_at(uint32_t number) { return slots_at(&model.contexts, number); }
static inline bool context_is_alive(const struct context *c) { return c->legacy != 0; }
static inline uint32_t context_whole(uint32_t number) { return context_at(number)->whole ? context_at(number)->whole : number; }
CUresult context_primary_state(CUdevice device, unsigned *flags, int *active);
CUresult context_set_primary_flags(CUdevice device, unsigned flags);
CUresult context_push(CUcontext context);
CUresult context_pop(CUcontext *context);
CUresult context_set(CUcontext context);
CUresult context_get(CUcontext *context);   /* takes no lock: a thread's stack is its own, and programs ask at every allocation */
CUresult context_device(CUdevice *device);
CUresult context_flags(unsigned *flags);
CUresult context_set_flags(unsigned flags);
CUresult context_id(CUcontext context, unsigned long long *id);
CUresult context_api_version(CUcontext context, unsigned *version);
CUresult context_priorities(int *least, int *greatest);
CUresult context_can_access_peer(int *can, CUdevice device, CUdevice peer);
CUresult context_enable_peer(CUcontext peer, unsigned flags);
CUresult context_disable_peer(CUcontext peer);

/* --- partitions.c: multiprocessors of a device, for green contexts */
void     partitions_reset(void);
void     partition_describe(CUdevResource *resource, int device, unsigned processors);      /* that can be split */
bool     partition_of(CUdevResourceDesc handle, CUdevice device, unsigned *processors);     /* false: none of that device */
CUresult partition_of_device(CUdevice device, CUdevResource *resource, CUdevResourceType type);
CUresult partition_of_context(CUcontext context, CUdevResource *resource, CUdevResourceType type);
CUresult partition_split(CUdevResource *groups, unsigned *count, const CUdevResource *input, CUdevResource *remaining, unsigned flags,
                         unsigned least);
CUresult partition_join(CUdevResourceDesc *handle, const CUdevResource *resources, unsigned count);

/* --- device.c */
bool     device_exists(CUdevice device);
CUresult device_count(int *count);
CUresult device_get(CUdevice *device, int ordinal);
CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice device);
void     device_write_name(char *name, size_t room);
int      device_bus_of(int index);  /* of the machine, as in the next two: this process need not see it */
void     device_write_bus_id(char *id, size_t room, int index);
int      device_attribute_of(int index, CUdevice_attribute attribute);
CUresult device_name(char *name, int size, CUdevice device);
CUresult device_uuid(CUuuid *uuid, CUdevice device);
CUresult device_bus_id(char *id, int size, CUdevice device);
CUresult device_by_bus_id(CUdevice *device, const char *id);
CUresult device_total(size_t *bytes, CUdevice device);
uint64_t device_left(int device);   /* physical bytes that could be taken */
bool     device_take(int device, uint64_t bytes, bool for_context);     /* false: not that much is left */
void     device_give(int device, uint64_t bytes, bool for_context);

#endif
