/*
 * stream.h: streams and events: what happens in which order. work.h has the work on them, capture.h what becomes a graph. LOCKING: the model's
 * lock.
 */
#ifndef CENOTE_SIM_STREAM_H
#define CENOTE_SIM_STREAM_H

#include "sim/machine/model.h"
#include "sim/order/capture.h"
#include "sim/order/work.h"

/* --- streams.c */
enum stream_kind { STREAM_CREATED, STREAM_LEGACY, STREAM_PER_THREAD };

struct stream {
    enum stream_kind kind;
    uint64_t         thread;    /* PER_THREAD: the thread's id */
    uint32_t         context;
    uint32_t         green;     /* the part of that context to which it belongs; 0: none */
    bool             orphaned;  /* the green context has ended: only the handle is left */
    unsigned         flags;
    int              priority;
    uint64_t         done;      /* when all its work is done */
    uint32_t         capture;   /* 0: not capturing */
    uint32_t         place;     /* its number among the streams of the capture */
};

void     streams_reset(void);
uint32_t stream_open(uint32_t context, enum stream_kind kind, unsigned flags, int priority);  /* 0: no more */
void     stream_shut(uint32_t number);                  /* its handle names nothing from now on */
void     stream_orphan(uint32_t number);                /* its handle names a stream whose context has ended */
uint32_t stream_next(uint32_t number);                  /* goes through all there are, from 0 to 0 */
uint32_t stream_created(CUstream handle);               /* by the program, and not destroyed; 0: no such one */
struct stream *stream_at(uint32_t number);
uint32_t stream_number(const struct stream *s);
uint64_t stream_unique(const struct stream *s);         /* its id */
uint64_t stream_known_id(CUstream handle);
uint32_t stream_part(const struct stream *s);           /* the context or green context to which it belongs */
bool     stream_is_blocking(const struct stream *s);    /* created without CU_STREAM_NON_BLOCKING, or a per-thread default stream */
CUresult stream_find(CUstream handle, struct stream **stream);     /* names the stream, also handles 0, 1 and 2 */
uint64_t stream_start(const struct stream *s);     /* earliest moment at which new work on it can start */
void     stream_extend(struct stream *s, uint64_t done);
CUresult stream_create(CUstream *stream, unsigned flags);
CUresult stream_create_with_priority(CUstream *stream, unsigned flags, int priority);
CUresult stream_create_in(CUstream *stream, uint32_t context, unsigned flags, int priority);
CUresult stream_context(CUstream stream, CUcontext *context);
CUresult stream_contexts(CUstream stream, CUcontext *context, CUgreenCtx *green);
CUresult stream_device(CUstream stream, CUdevice *device);
CUresult stream_flags(CUstream stream, unsigned *flags);
CUresult stream_priority(CUstream stream, int *priority);
CUresult stream_id(CUstream stream, unsigned long long *id);       /* takes no lock if it can */

/* --- stream_calls.c */
void     streams_close_all(uint32_t context);
void     streams_orphan_all(uint32_t green);
void     streams_close_thread(uint64_t thread);         /* its default streams: the thread ends */
CUresult stream_destroy(CUstream stream);
CUresult stream_synchronize(CUstream stream);
CUresult stream_query(CUstream stream);
CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags);
CUresult stream_call(CUstream stream, CUhostFn function, void *argument);
CUresult stream_add_callback(CUstream stream, CUstreamCallback function, void *argument, unsigned flags);
CUresult context_synchronize(void);

/* --- boards.c: events that several processes know */
struct shared_event;

void     boards_reset(void);
struct shared_event *shared_event_new(void);            /* NULL: no more */
void     shared_event_recorded(struct shared_event *s, uint64_t done);
bool     shared_event_is_elsewhere(const struct shared_event *s);      /* another process recorded it last */
bool     shared_event_is_done(const struct shared_event *s);
void     shared_event_close(struct shared_event *s);
bool     shared_event_is_own(const struct shared_event *s);             /* of this process */
void     shared_event_describe(const struct shared_event *s, CUipcEventHandle *handle);     /* an own one */
CUresult shared_event_open(const CUipcEventHandle *handle, struct shared_event **opened);

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
extern const struct work_kind work_record;  /* an event recorded by a graph */
extern const struct work_kind work_await;   /* an event awaited by a graph */
bool     event_is_awaited(uint64_t number);             /* another process has not done what it recorded last */
bool     event_is_elsewhere(const struct event *e);     /* recorded last by another process: e->shared knows of it */
uint64_t event_number(CUevent handle);
CUresult event_create(CUevent *event, unsigned flags);
CUresult event_destroy(CUevent event);
CUresult event_record(CUevent event, CUstream stream);
CUresult event_record_with_flags(CUevent event, CUstream stream, unsigned flags);
CUresult event_record_context(CUcontext context, CUevent event);
CUresult event_record_all(uint32_t context, CUevent event, const char *call);
CUresult event_await_all(uint32_t context, CUevent event, const char *call);
CUresult event_query(CUevent event);
CUresult event_synchronize(CUevent event);
CUresult event_elapsed(float *ms, CUevent start, CUevent end);
CUresult ipc_get_event(CUipcEventHandle *handle, CUevent event);
CUresult ipc_open_event(CUevent *event, CUipcEventHandle handle);

#endif
