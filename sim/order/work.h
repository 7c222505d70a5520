/*
 * work.h: time, and work that is done when its moment has come. LOCKING: the model's lock.
 *
 * Each piece of work points to its kind: what it does, and what it is in a graph. A room that has work of its own defines its kind; the queue and the
 * clock know none of them.
 */
#ifndef CENOTE_SIM_WORK_H
#define CENOTE_SIM_WORK_H

#include "sim/machine/model.h"

struct stream;
struct work;

struct work_kind {
    CUgraphNodeType node;           /* what it is in a graph, if it is captured */
    bool     waits_for_all;         /* comes last of its moment, and holds the clock: a host function */
    bool     even_if_lost;          /* done although its context is lost: books of the model */
    uint64_t (*not_before)(const struct work *work);                /* the moment that it waits for beside the stream; NULL: none */
    uint64_t (*lasts)(const struct work *work);                     /* ns beside its own length; NULL: none */
    bool     (*passes)(const struct work *work);                    /* may its stream go on, once it has come so far? NULL: it may */
    void     (*placed)(const struct work *work, uint64_t done);     /* it is on a stream, and done at `done`; NULL: nothing to note */
    void     (*run)(const struct work *work);                       /* its moment has come; NULL: only the moment counts */
};

struct work {
    const struct work_kind *kind;
    const char    *name;        /* of the call that put it there */
    uint64_t       length;      /* ns it takes */
    uint64_t       to, from;    /* device or host addresses; work_expect reads `to` */
    uint64_t       bytes;       /* of a row */
    uint64_t       rows, layers;            /* copies and fills: 0 and 1: one */
    uint64_t       to_pitch, from_pitch;    /* from row to row */
    uint64_t       to_layer, from_layer;    /* from layer to layer */
    uint64_t       pattern;
    unsigned       width;       /* fills: bytes of `pattern` */
    CUhostFn       function;
    void          *argument;
    uint64_t       number;      /* the kind says of what: an event, a function, an allocation */
    unsigned       grid[3], block[3], shared;   /* of a kernel */
    uint32_t       context;     /* filled in when it is put on a stream */
    bool           pinned;      /* its host memory has to be pinned still when it runs */
    bool           between_devices; /* a copy: needs no peer access */
};

/* --- moments.c: moments that are not known yet, numbers beyond all others; see there */
void     moments_reset(void);
bool     moment_is_known(uint64_t moment);
uint64_t moment_by_now(uint64_t moment);        /* of one that was kept: what it is by now */
uint64_t moment_later(uint64_t a, uint64_t b);
uint64_t moment_sum(uint64_t a, uint64_t b, uint64_t length);   /* so long after the later of both */
uint64_t moment_wait(uint64_t start, uint64_t now);     /* of a stream that waits for a word from `start` on */
void     moment_pass(uint64_t wait, uint64_t when);     /* the word has let it pass */

/* --- queue.c: work whose moment has not come */
void     queue_reset(void);
bool     queue_push(const struct work *work, uint64_t done);    /* false: no host memory */
void     queue_run(const struct work *work);                    /* now; nothing, if its context is lost */
uint64_t queue_run_until(uint64_t when, const bool *stop);      /* until when all is done: what ran may have set *stop */
bool     queue_watch(const struct work *work, uint64_t start, uint64_t wait);   /* until it passes; false: no host memory */
bool     queue_is_watching(void);
uint64_t queue_next(void);                  /* when work is due next; 0: none is, at a moment that is known */
uint64_t queue_call_due(void);              /* when a host function may be due; 0: none is on its way */

/* --- clock.c */
void     clock_reset(void);
void     clock_after_fork(void);        /* in the child */
uint64_t clock_seen(void);              /* the time when a thread last looked; costs nothing */
uint64_t clock_look(void);              /* the time now; work that is due has been done */
bool     clock_go_to(uint64_t when);    /* waits for that moment: the clock jumps. False: not yet, the call has to wait: MODEL_AGAIN */
bool     clock_finish(uint64_t when);   /* the same; after a wait it has to be that moment, though other threads add work */
bool     clock_try(uint64_t when);      /* the same; false: and no thread will wait */
void     clock_wait(uint64_t when);     /* drops the lock while host functions run */
void     clock_advance(uint64_t ns);    /* also drops it */
bool     clock_polled(uint64_t when);   /* a thread asked whether that moment has come, and it had not: has it now? See sim.h */
void     clock_submitted(void);         /* a thread began something else: it does not wait */
void     clock_run_due(uint64_t until); /* does what is due until then, which has passed */
void     clock_tell(void (*passed)(uint64_t now));  /* from now on, whenever time has gone on and all work due until then has been done */
bool     clock_is_held(void);
void     clock_hold(void);              /* it stands: a host function is due */
void     clock_release(void);           /* that function has returned */

/* --- calls.c: functions of the program, run by a thread of their own without the lock */
void     calls_reset(void);
void     calls_after_fork(void);             /* in the child */
bool     calls_ready(void);                 /* false: the thread cannot be made */
void     calls_put(CUhostFn function, void *argument, bool holds);     /* it is due; holds: the clock stands meanwhile */
void     calls_expected(void);              /* one is on its way */
bool     calls_running(void);
void     calls_wait(void);                  /* drops the lock until one has returned */

/* --- work.c: work put on streams */
extern const struct work_kind work_wait;    /* takes time */
extern const struct work_kind work_kernel;  /* an empty kernel: only its moment counts */
extern const struct work_kind work_call;    /* a host function */
void     work_reset(void);
CUresult work_put(struct stream *stream, const struct work *work);  /* on a stream, or into its capture */
CUresult work_submit(struct stream *stream, const struct work *work);   /* on a stream that does not capture */
uint64_t work_end(struct stream *stream, uint64_t not_before, uint64_t length);   /* when such work, put on it now, is done */

#endif
