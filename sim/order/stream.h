/*
 * stream.h: what happens in the order of streams: time, work, streams, events, captures; graph.h has the graphs. LOCKING: the model's lock.
 */
#ifndef CENOTE_SIM_STREAM_H
#define CENOTE_SIM_STREAM_H

#include "sim/machine/model.h"

/* --- clock.c */
void     clock_reset(void);
uint64_t clock_seen(void);              /* the time when somebody last looked; costs nothing */
uint64_t clock_look(void);              /* the time now; work that is due has been done */
bool     clock_go_to(uint64_t when);    /* waits for that moment: the clock jumps. False: not yet, the call has to wait: MODEL_AGAIN */
bool     clock_finish(uint64_t when);   /* the same; after a wait it has to be that moment, though other threads add work */
bool     clock_try(uint64_t when);      /* the same; false: and nobody will wait */
void     clock_wait(uint64_t when);     /* drops the lock while host functions run */
void     clock_advance(uint64_t ns);    /* also drops it */
bool     clock_polled(uint64_t when);   /* a thread asked whether that moment has come, and it had not: has it now? See sim.h */
void     clock_submitted(void);         /* a thread began something else: it does not wait */
void     clock_pass(void);              /* for calls.c: the function that held it has returned */

/* --- work.c: work on streams, done when its time has come */
enum work_kind {
    WORK_WAIT,      /* takes time */
    WORK_TOUCH,
    WORK_FILL,
    WORK_EXPECT,
    WORK_COPY,
    WORK_KERNEL,    /* an empty kernel: only its moment counts */
    WORK_CALL,      /* a host function */
    WORK_GIVE,      /* a pool's allocation ends */
    WORK_RECORD,    /* an event recorded by a graph */
    WORK_AWAIT,     /* an event awaited by a graph */
    WORK_VACATE,    /* memory of a graph is free */
    WORK_REPLAYED   /* a graph's replay is done */
};

struct work {
    enum work_kind kind;
    unsigned       width;       /* FILL, EXPECT: bytes of `pattern` */
    const char    *name;        /* of the call that put it there */
    uint64_t       length;      /* ns it takes */
    uint64_t       to, from;    /* device or host addresses; EXPECT reads `to` */
    uint64_t       bytes;       /* of a row */
    uint64_t       rows, layers;            /* COPY, FILL: 0 and 1: one */
    uint64_t       to_pitch, from_pitch;    /* from row to row */
    uint64_t       to_layer, from_layer;    /* from layer to layer */
    uint64_t       pattern;
    CUhostFn       function;
    void          *argument;
    uint64_t       number;      /* GIVE: name of an allocation; RECORD, AWAIT: event; KERNEL: function; VACATE, REPLAYED: see there */
    unsigned       grid[3], block[3], shared;   /* KERNEL */
    uint32_t       context;     /* filled in when it is put on a stream */
    bool           pinned;      /* its host memory has to be pinned still when it runs */
    bool           between_devices; /* COPY: needs no peer access */
};

struct stream;
struct node;

CUresult work_put(struct stream *stream, const struct work *work);  /* on a stream, or into its capture */
CUresult work_submit(struct stream *stream, const struct work *work);   /* on a stream that does not capture */
uint64_t work_end(struct stream *stream, uint64_t not_before, uint64_t length);   /* when such work, put on it now, is done */
uint64_t work_extent(const struct work *work, uint64_t pitch, uint64_t layer);    /* bytes from its first to its last, with gaps */
uint64_t work_run_until(uint64_t when);     /* for clock.c; until when all is done: a host function may have to return */
uint64_t work_call_due(void);               /* when a host function may be due; 0: none is on its way */
void     work_reset(void);
uint64_t work_mismatches(void);

/* --- calls.c: functions of the program, run by a thread of their own without the lock */
void     calls_reset(void);
void     calls_after_fork(void);             /* in the child */
bool     calls_ready(void);                 /* false: the thread cannot be made */
void     calls_put(CUhostFn function, void *argument, bool holds);     /* it is due; holds: the clock stands meanwhile */
void     calls_expected(void);              /* one is on its way */
bool     calls_hold_clock(void);
bool     calls_running(void);
void     calls_wait(void);                  /* drops the lock until one has returned */

/* --- streams.c */
enum stream_kind { STREAM_CREATED, STREAM_LEGACY, STREAM_PER_THREAD };

struct stream {
    enum stream_kind kind;
    uint64_t         thread;    /* PER_THREAD: whose */
    uint32_t         context;
    unsigned         flags;
    int              priority;
    uint64_t         done;      /* when all its work is done */
    uint32_t         capture;   /* 0: not capturing */
    uint32_t         place;     /* its number among the streams of the capture */
};

void     streams_reset(void);
uint32_t stream_open(uint32_t context, enum stream_kind kind, unsigned flags, int priority);  /* 0: no more */
void     streams_close_all(uint32_t context);
void     streams_close_thread(uint64_t thread);  /* its default streams: the thread ends */
CUresult context_synchronize(void);
struct stream *stream_at(uint32_t number);
uint32_t stream_number(const struct stream *s);
uint64_t stream_unique(const struct stream *s);         /* its id */
bool     stream_is_blocking(const struct stream *s);    /* created without CU_STREAM_NON_BLOCKING, or a per-thread default stream */
CUresult stream_find(CUstream handle, struct stream **stream);     /* names the stream, also handles 0, 1 and 2 */
uint64_t stream_start(const struct stream *s);     /* earliest moment at which new work on it can start */
void     stream_extend(struct stream *s, uint64_t done);
CUresult stream_create(CUstream *stream, unsigned flags);
CUresult stream_create_with_priority(CUstream *stream, unsigned flags, int priority);
CUresult stream_destroy(CUstream stream);
CUresult stream_synchronize(CUstream stream);
CUresult stream_query(CUstream stream);
CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags);
CUresult stream_context(CUstream stream, CUcontext *context);
CUresult stream_device(CUstream stream, CUdevice *device);
CUresult stream_flags(CUstream stream, unsigned *flags);
CUresult stream_priority(CUstream stream, int *priority);
CUresult stream_call(CUstream stream, CUhostFn function, void *argument);
CUresult stream_add_callback(CUstream stream, CUstreamCallback function, void *argument, unsigned flags);
CUresult stream_id(CUstream stream, unsigned long long *id);       /* takes no lock */

/* --- boards.c: events that several processes know */
struct shared_event;

void     boards_reset(void);
void     boards_publish(uint64_t now);                  /* for clock.c: all work due until then has been done */
void     shared_event_recorded(struct shared_event *s, uint64_t done);
bool     shared_event_is_elsewhere(const struct shared_event *s);      /* another process recorded it last */
bool     shared_event_is_done(const struct shared_event *s);
void     shared_event_close(struct shared_event *s);
CUresult ipc_get_event(CUipcEventHandle *handle, CUevent event);
CUresult ipc_open_event(CUevent *event, CUipcEventHandle handle);

/* --- events.c */
struct event {
    enum { EVENT_NEW, EVENT_RECORDED, EVENT_CAPTURED } state;
    unsigned  flags;
    uint32_t  context;
    uint64_t  done;         /* RECORDED: when it is complete */
    uint64_t  capture_id;   /* CAPTURED: cuStreamGetCaptureInfo's id */
    uint32_t  capture;
    uint32_t *seen;         /* CAPTURED: nodes of the capture that come before, their number first; owned */
    struct shared_event *shared;    /* owned; NULL: no other process knows it. See boards.c */
};

void     events_reset(void);
void     events_close_all(uint32_t context);
struct event *event_find(CUevent handle);   /* NULL, and a violation: no such event */
void     event_record_at(uint64_t number, uint64_t done);
uint64_t event_done(uint64_t number);                   /* 0: there is nothing to wait for here */
bool     event_is_awaited(uint64_t number);             /* another process has not done what it recorded last */
bool     event_is_elsewhere(const struct event *e);     /* recorded last by another process: e->shared knows of it */
uint64_t event_number(CUevent handle);
CUresult event_create(CUevent *event, unsigned flags);
CUresult event_destroy(CUevent event);
CUresult event_record(CUevent event, CUstream stream);
CUresult event_record_with_flags(CUevent event, CUstream stream, unsigned flags);
CUresult event_record_context(CUcontext context, CUevent event);
CUresult event_query(CUevent event);
CUresult event_synchronize(CUevent event);
CUresult event_elapsed(float *ms, CUevent start, CUevent end);

/* --- capture.c */
void     captures_reset(void);
CUresult capture_forbids(const char *call);             /* 900, captures invalidated: this thread may not make an unsafe call now */
CUresult capture_conflict(uint32_t context, CUresult error, const char *call);  /* ends all captures of a context badly, if there are any */
CUresult capture_spoil(struct stream *s, CUresult error, const char *call);     /* the same for the capture that `s` is in */
CUresult capture_legacy_conflict(const struct stream *s, const char *call);     /* `s` is a default stream and a blocking stream captures */
CUresult capture_add(struct stream *s, const struct work *work);
CUresult capture_add_node(struct stream *s, struct node *model, uint32_t *node);    /* graph.h; takes over what it owns */
uint32_t capture_graph(const struct stream *s, const uint32_t **tails, uint32_t *count);   /* it grows, and what comes last; 0: spoiled */
CUresult capture_record(struct stream *s, struct event *e);
CUresult capture_wait(struct stream *s, const struct event *e);
bool     capture_has_event(const struct event *e);      /* its capture is still open */
void     capture_refuse_event(const struct event *e, const char *call);     /* it marks a place in a graph, not in time */
CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode);
CUresult capture_begin_default(CUstream stream);
CUresult capture_begin_to(CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
                          CUstreamCaptureMode mode);
CUresult capture_update(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned flags);
CUresult capture_end(CUstream stream, CUgraph *graph);
CUresult capture_status(CUstream stream, CUstreamCaptureStatus *status);
CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                      const CUgraphEdgeData **edges, size_t *count);
void     capture_drop_stream(uint32_t stream);          /* it ends */
CUresult capture_exchange_mode(CUstreamCaptureMode *mode);

#endif
