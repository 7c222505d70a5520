/*
 * capture.c: stream capture: which streams capture, what that forbids, and after which nodes their next one comes. Work put on a capturing
 * stream goes to the capture's target instead of being done.
 *
 * What a graph is is not known here: nodes and graphs are numbers that the target gave (graph/recording.c).
 *
 * Other streams join a capture by waiting for an event recorded in it, and have to be joined back before its end. Each stream of the
 * capture keeps the nodes that its next node will wait for: its tails.
 *
 *     none ---begin---> active ---end---> none, and a graph
 *                          \---a use that CUDA forbids---> spoiled (INVALIDATED) ---end---> none, no graph, an error
 *
 * LOCKING: the model's lock.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "sim/order/stream.h"

#define CAPTURES_MAX 1024

static struct slots captures;
static _Atomic uint32_t open_count; /* for questions that take no lock */
static uint64_t last_id;

struct capture *capture_at(uint32_t number)
{
    return slots_at(&captures, number);
}

static void spoil(struct capture *c, const char *call)
{
    if (!c->spoiled)
        model_violation("%s: not allowed during stream capture: capture %llu is invalidated", call, (unsigned long long)c->id);
    c->spoiled = true;
}

/* The next open capture after `number`, 0: none. */
static uint32_t next_capture(uint32_t number)
{
    if (!captures.live_count)
        return 0;
    for (number++; number < captures.used; number++)
        if (slots_is_live(&captures, number))
            return number;
    return 0;
}

static void free_places(struct capture *c)
{
    for (uint32_t i = 0; i < c->places; i++) {
        free(c->place[i].tails);
        free(c->place[i].edges);
        free(c->place[i].told);
        free(c->place[i].told_edges);
    }
}

void capture_forget_edges(struct capture_place *p)
{
    free(p->edges);
    p->edges = NULL;
}

void captures_reset(void)
{
    if (!captures.items)
        slots_open(&captures, sizeof(struct capture), CAPTURES_MAX, SLOTS_NEWEST_FIRST);
    for (uint32_t i = next_capture(0); i; i = next_capture(i))
        free_places(capture_at(i));
    slots_clear(&captures);
    atomic_store(&open_count, 0);
}

bool captures_are_open(void)
{
    return atomic_load_explicit(&open_count, memory_order_relaxed);
}

CUresult capture_forbids(const char *call)
{
    const struct thread *t = model_thread();
    CUresult result = CUDA_SUCCESS;
    if (!captures.live_count || t->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return result;
    for (uint32_t i = next_capture(0); i; i = next_capture(i)) {
        struct capture *c = capture_at(i);
        bool mine = c->thread == t->number && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = t->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (mine || global) {
            spoil(c, call);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

/* Work on the whole of a context concerns its green ones too. */
static bool has_context(const struct capture *c, uint32_t context)
{
    for (uint32_t i = 0; i < c->places; i++) {
        const struct stream *s = c->place[i].stream ? stream_at(c->place[i].stream) : NULL;
        if (s && (s->context == context || s->green == context))
            return true;
    }
    return false;
}

CUresult capture_conflict(uint32_t context, CUresult error, const char *call)
{
    CUresult result = CUDA_SUCCESS;
    for (uint32_t i = next_capture(0); i; i = next_capture(i)) {
        if (has_context(capture_at(i), context)) {
            spoil(capture_at(i), call);
            result = error;
        }
    }
    return result;
}

CUresult capture_spoil(struct stream *s, CUresult error, const char *call)
{
    spoil(capture_at(s->capture), call);
    return error;
}

static bool has_blocking_stream(const struct capture *c, uint32_t part)
{
    for (uint32_t i = 0; i < c->places; i++) {
        if (!c->place[i].stream)
            continue;
        const struct stream *s = stream_at(c->place[i].stream);
        if (stream_part(s) == part && stream_is_blocking(s))
            return true;
    }
    return false;
}

/* `call` NULL: it only asks, which spoils no capture. */
static CUresult legacy_conflict(const struct stream *s, const char *call)
{
    CUresult result = CUDA_SUCCESS;
    if (s->kind != STREAM_LEGACY)
        return result;
    for (uint32_t i = next_capture(0); i; i = next_capture(i)) {
        if (has_blocking_stream(capture_at(i), stream_part(s))) {
            if (call)
                spoil(capture_at(i), call);
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return result;
}

CUresult capture_legacy_conflict(const struct stream *s, const char *call)
{
    return legacy_conflict(s, call);
}

CUresult capture_forbids_legacy(const struct stream *s)
{
    return legacy_conflict(s, NULL);
}

static bool room_for(struct capture_place *p, size_t count)
{
    if (count <= p->room)
        return true;
    uint32_t room = p->room ? 2 * p->room : 4;
    while (room < count)
        room *= 2;
    uint32_t *tails = realloc(p->tails, room * sizeof *tails);
    if (!tails)
        return false;
    p->tails = tails;
    p->room = room;
    return true;
}

bool capture_set_tails(struct capture_place *p, const uint32_t *nodes, size_t count)
{
    if (!room_for(p, count))
        return false;
    if (count)
        memcpy(p->tails, nodes, count * sizeof *nodes);
    p->count = (uint32_t)count;
    return true;
}

bool capture_add_tails(struct capture_place *p, const uint32_t *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t k = 0;
        while (k < p->count && p->tails[k] != nodes[i])
            k++;
        if (k < p->count)
            continue;
        if (!room_for(p, p->count + 1))
            return false;
        p->tails[p->count++] = nodes[i];
    }
    return true;
}

CUresult capture_record(struct stream *s, struct event *e)
{
    struct capture *c = capture_at(s->capture);
    const struct capture_place *p = &c->place[s->place];
    if (c->spoiled)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    uint32_t *seen = malloc((p->count + 1) * sizeof *seen);
    if (!seen)
        return CUDA_ERROR_OUT_OF_MEMORY;
    seen[0] = p->count;
    if (p->count)
        memcpy(seen + 1, p->tails, p->count * sizeof *seen);
    free(e->seen);
    e->seen = seen;
    e->state = EVENT_CAPTURED;
    e->capture = s->capture;
    e->capture_id = c->id;
    return CUDA_SUCCESS;
}

bool capture_has_event(const struct event *e)
{
    return slots_is_live(&captures, e->capture) && capture_at(e->capture)->id == e->capture_id;
}

void capture_refuse_event(const struct event *e, const char *call)
{
    if (capture_has_event(e))
        spoil(capture_at(e->capture), call);
    else
        model_violation("%s: the event was last recorded in a capture", call);
}

static CUresult join(uint32_t number, struct stream *s)
{
    struct capture *c = capture_at(number);
    if (s->kind == STREAM_LEGACY) {
        spoil(c, "cuStreamWaitEvent on the default stream");
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (c->places == CAPTURE_STREAMS_MAX)
        return CUDA_ERROR_OUT_OF_MEMORY;
    s->capture = number;
    s->place = c->places++;
    c->place[s->place] = (struct capture_place){.stream = stream_number(s)};
    return CUDA_SUCCESS;
}

CUresult capture_wait(struct stream *s, const struct event *e)
{
    struct capture *c = capture_at(e->capture);
    if (s->capture && s->capture != e->capture) {
        spoil(c, "cuStreamWaitEvent between two captures");
        return capture_spoil(s, CUDA_ERROR_STREAM_CAPTURE_MERGE, "cuStreamWaitEvent between two captures");
    }
    if (c->spoiled)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUresult result = s->capture ? CUDA_SUCCESS : join(e->capture, s);
    if (result)
        return result;
    capture_forget_edges(&c->place[s->place]);
    return capture_add_tails(&c->place[s->place], e->seen + 1, e->seen[0]) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool capture_keep_edges(struct capture_place *p, const CUgraphEdgeData *edges, size_t count)
{
    capture_forget_edges(p);
    p->edges = edges && count ? malloc(count * sizeof *edges) : NULL;
    if (p->edges)
        memcpy(p->edges, edges, count * sizeof *edges);
    return p->edges || !edges || !count;
}

CUresult capture_open(struct stream *s, CUstreamCaptureMode mode, const struct capture_target *target, uint32_t graph, bool own)
{
    uint32_t number = slots_take(&captures);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct capture *c = capture_at(number);
    c->id = ++last_id;
    c->mode = mode;
    c->thread = model_thread()->number;
    c->target = target;
    c->graph = graph;
    c->own = own;
    atomic_fetch_add(&open_count, 1);
    return join(number, s);
}

void capture_close(uint32_t number, bool keep_graph)
{
    struct capture *c = capture_at(number);
    for (uint32_t i = 0; i < c->places; i++)
        if (c->place[i].stream)
            stream_at(c->place[i].stream)->capture = 0;
    c->target->closed(c->graph, keep_graph || !c->own);
    free_places(c);
    slots_give(&captures, number);
    atomic_fetch_sub(&open_count, 1);
}

CUresult capture_add(struct stream *s, const struct work *work)
{
    return capture_at(s->capture)->target->add(s, work);
}

/* A stream ends. The one that began a capture takes it along; another leaves its place empty. */
void capture_drop_stream(uint32_t number)
{
    struct stream *s = stream_at(number);
    if (!s->capture)
        return;
    capture_at(s->capture)->place[s->place].stream = 0;
    if (!s->place)
        capture_close(s->capture, false);
}

CUstreamCaptureStatus capture_status_of(const struct stream *s)
{
    if (!s->capture)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return capture_at(s->capture)->spoiled ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult capture_status(CUstream stream, CUstreamCaptureStatus *status)
{
    struct stream *s;
    CUresult result = stream_find(stream, &s);
    if (!result)
        result = capture_forbids_legacy(s);
    if (!result && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *status = capture_status_of(s);
    return result;
}

CUresult capture_exchange_mode(CUstreamCaptureMode *mode)
{
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    struct thread *t = model_thread();
    CUstreamCaptureMode before = t->capture_mode;
    clock_submitted(); /* libraries set it when they begin something else */
    t->capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
