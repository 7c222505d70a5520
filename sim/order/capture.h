/* capture.h: stream capture, as streams see it; see capture.c. The target decides what becomes of the work. LOCKING: the model's lock. */
#ifndef CENOTE_SIM_CAPTURE_H
#define CENOTE_SIM_CAPTURE_H

#include "sim/machine/model.h"

#define CAPTURE_STREAMS_MAX 64     /* in one capture */

struct event;
struct stream;
struct work;

struct capture_target {     /* where captured work goes */
    CUresult (*add)(struct stream *s, const struct work *work);     /* after the tails of `s`, which it sets anew */
    void     (*closed)(uint32_t graph, bool keep);                  /* the capture has ended; keep: the graph goes on */
};

struct capture_place {
    uint32_t         stream;    /* 0: destroyed meanwhile */
    uint32_t        *tails;     /* nodes that the stream's next node will wait for; owned */
    uint32_t         count, room;
    CUgraphEdgeData *edges;     /* of them, if the program said; owned */
    CUgraphNode     *told;      /* the same as handles, for cuStreamGetCaptureInfo; owned */
    CUgraphEdgeData *told_edges;
};

struct capture {
    uint64_t            id;
    CUstreamCaptureMode mode;
    uint64_t            thread;         /* that began it */
    bool                spoiled;
    bool                own;            /* the graph is the capture's until the end; else the program's */
    const struct capture_target *target;
    uint32_t            graph;
    uint32_t            places;         /* streams in it; the first began it */
    struct capture_place place[CAPTURE_STREAMS_MAX];
};

void     captures_reset(void);
CUresult capture_forbids(const char *call);             /* 900, captures invalidated: this thread may not make an unsafe call now */
CUresult capture_conflict(uint32_t context, CUresult error, const char *call);  /* ends all captures of a context badly, if there are any */
CUresult capture_spoil(struct stream *s, CUresult error, const char *call);     /* the same for the capture that `s` is in */
bool     captures_are_open(void);                       /* takes no lock */
CUresult capture_legacy_conflict(const struct stream *s, const char *call);     /* `s` is a default stream and a blocking stream captures */
CUresult capture_forbids_legacy(const struct stream *s);        /* whether it is so: spoils nothing */
CUresult capture_add(struct stream *s, const struct work *work);
CUresult capture_record(struct stream *s, struct event *e);
CUresult capture_wait(struct stream *s, const struct event *e);
bool     capture_has_event(const struct event *e);      /* its capture is still open */
void     capture_refuse_event(const struct event *e, const char *call);     /* it names a place in a graph, not in time */
CUresult capture_status(CUstream stream, CUstreamCaptureStatus *status);
void     capture_drop_stream(uint32_t stream);          /* it ends */
CUresult capture_exchange_mode(CUstreamCaptureMode *mode);

/* --- for the target */
struct capture *capture_at(uint32_t number);            /* of a stream that captures: stream.capture */
CUresult capture_open(struct stream *s, CUstreamCaptureMode mode, const struct capture_target *target, uint32_t graph, bool own);
void     capture_close(uint32_t number, bool keep_graph);
CUstreamCaptureStatus capture_status_of(const struct stream *s);
bool     capture_set_tails(struct capture_place *p, const uint32_t *nodes, size_t count);   /* false, here and below: no host memory */
bool     capture_add_tails(struct capture_place *p, const uint32_t *nodes, size_t count);
/* of tails that the program names: until the next node */
bool     capture_keep_edges(struct capture_place *p, const CUgraphEdgeData *edges, size_t count);
void     capture_forget_edges(struct capture_place *p);

#endif
