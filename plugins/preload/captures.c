/*
 * captures.c: announces to cenote every capture of a stream in the process. Runtimes and libraries begin and end captures by calls of the driver, so
 * all of them pass here. So cenote may ask with one event how far a whole device is, a call that would end a capture which it was not told of.
 *
 *     none open ----cuStreamBeginCapture: announced to every place that has joined----> open ----the last one is over----> none open
 *
 * One announcement for each place covers all captures: memory of captured streams is the driver's (stream_memory.c), so it names no group that blocks
 * would come from.
 *
 * A capture is known by the stream that it began on: a handle, and for the per-thread default stream its thread's number, which no later thread
 * has. It is over when the driver says so after cuStreamEndCapture, when that stream is destroyed, or with its context. A capture that begins by a
 * route past our hooks is not announced (docs/preload.md).
 *
 * LOCKING: `quiet` guards all of this as a writer. A thread that makes a call over a whole context, which would end a capture, holds it as a reader.
 * No thread waits for a device with it: what the device waits for may be a thread that begins a capture, or destroys a stream.
 */
#include "plugins/preload/captures.h"

#include "plugins/preload/hooks.h"
#include "plugins/preload/place.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/thread.h"

static pthread_rwlock_t quiet = PTHREAD_RWLOCK_INITIALIZER;

static struct capture {
    CUstream  stream;
    uint64_t  thread;  /* of the per-thread default stream */
    CUcontext context; /* NULL: not known */
} *captures;
static size_t count, room;
static _Atomic bool may_be_open; /* one is open, or may be past our hooks: also read without the lock */
static bool has_others;

static struct joined {
    cenote_pool *pool; /* NULL: the place has not joined */
    CUstream     mark;
} joined[PLACES_MAX];

bool captures_may_be_open(void)
{
    return atomic_load_explicit(&may_be_open, memory_order_acquire);
}

bool captures_have(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const struct real *r = real();
    if (!captures_may_be_open())
        return false;
    CUresult result = r->cuStreamIsCapturing ? r->cuStreamIsCapturing(stream, &status) : CUDA_SUCCESS;
    return result || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool captures_are_open(void)
{
    pthread_rwlock_rdlock(&quiet);
    bool are_open = count > 0;
    pthread_rwlock_unlock(&quiet);
    return are_open;
}

#if CUDA_VERSION >= 12050
bool captures_can_mark(void)
{
    return real()->cuCtxRecordEvent != NULL;
}

bool captures_mark(CUcontext context, CUevent event, CUresult *result)
{
    pthread_rwlock_rdlock(&quiet);
    bool may_mark = count == 0 && captures_can_mark();
    if (may_mark)
        *result = real()->cuCtxRecordEvent(context, event);
    pthread_rwlock_unlock(&quiet);
    return may_mark;
}
#else
bool captures_can_mark(void)
{
    return false;
}

bool captures_mark(CUcontext context, CUevent event, CUresult *result)
{
    (void)context, (void)event, (void)result;
    return false;
}
#endif

/* --- announcements. LOCKING: `quiet` as a writer. */

static void note_open(void)
{
    atomic_store_explicit(&may_be_open, count || has_others, memory_order_release);
}

/* To the places before `last`. One whose context was lost cannot be told of an end: its captures stay open, and it serves nothing any more. */
static void announce_end(int last)
{
    for (int i = 0; i < last; i++)
        if (joined[i].pool)
            cenote_capture_end(joined[i].pool, NULL, joined[i].mark);
}

/* All of them, or none. */
static int announce_begin(void)
{
    for (int i = 0; i < PLACES_MAX; i++) {
        int error = joined[i].pool ? cenote_capture_begin(joined[i].pool, NULL, joined[i].mark) : CENOTE_OK;
        if (error && error != CENOTE_EXITING) { /* while the process exits cenote makes no call that would harm a capture */
            announce_end(i);
            return error;
        }
    }
    return CENOTE_OK;
}

int captures_join(int number, cenote_pool *pool, CUstream mark, bool all_are_seen)
{
    CHECK(number >= 0 && number < PLACES_MAX && pool);
    pthread_rwlock_wrlock(&quiet);
    CHECK(!joined[number].pool);
    int error = count ? cenote_capture_begin(pool, NULL, mark) : CENOTE_OK;
    if (!error)
        joined[number] = (struct joined){pool, mark};
    has_others = has_others || !all_are_seen;
    note_open();
    pthread_rwlock_unlock(&quiet);
    return error;
}

void captures_leave(int number)
{
    pthread_rwlock_wrlock(&quiet);
    if (count && joined[number].pool)
        cenote_capture_end(joined[number].pool, NULL, joined[number].mark);
    joined[number] = (struct joined){0};
    pthread_rwlock_unlock(&quiet);
}

/* --- the list. LOCKING: `quiet` as a writer. */

static CUcontext context_of(CUstream stream)
{
    const struct real *r = real();
    CUcontext context = NULL;
    return r->cuStreamGetCtx(stream, &context) ? NULL : context;
}

/* False: no host memory. */
static bool have_room(void)
{
    if (count < room)
        return true;
    size_t more = room ? 2 * room : 16;
    struct capture *larger = realloc(captures, more * sizeof *larger);
    captures = larger ? larger : captures;
    room = larger ? more : room;
    return larger != NULL;
}

static void remove_at(size_t i)
{
    CHECK(i < count);
    captures[i] = captures[--count];
    note_open();
    if (!count)
        announce_end(PLACES_MAX);
}

/* A capture is about to begin: it is announced before, and taken back if the driver refuses it. The lock stays held between the two. */
static bool begin(CUstream stream)
{
    real_is_in_use();
    pthread_rwlock_wrlock(&quiet);
    bool is_ready = have_room() && (count || !announce_begin());
    if (is_ready) {
        captures[count++] = (struct capture){stream, thread_number(), context_of(stream)};
        note_open();
    } else {
        pthread_rwlock_unlock(&quiet);
    }
    return is_ready;
}

static CUresult begun(CUresult result)
{
    if (result)
        remove_at(count - 1);
    pthread_rwlock_unlock(&quiet);
    return result;
}

static void forget(CUstream stream)
{
    for (size_t i = 0; i < count; i++)
        if (captures[i].stream == stream && (stream != CU_STREAM_PER_THREAD || captures[i].thread == thread_number())) {
            remove_at(i);
            return;
        }
}

void captures_forget_stream(CUstream stream)
{
    pthread_rwlock_wrlock(&quiet);
    forget(stream);
    pthread_rwlock_unlock(&quiet);
}

void captures_forget_context(CUcontext context)
{
    pthread_rwlock_wrlock(&quiet);
    for (size_t i = count; i-- > 0;)
        if (captures[i].context == context)
            remove_at(i);
    pthread_rwlock_unlock(&quiet);
}

/* The driver may refuse the end of a capture that began on another thread. Then its stream goes, as it does with the context. */
static void abandon(CUstream stream)
{
    CUgraph graph = NULL;
    CUresult result = real()->cuStreamEndCapture(stream, &graph);
    if (graph)
        real()->cuGraphDestroy(graph);
    if (result && stream != CU_STREAM_PER_THREAD)
        real()->cuStreamDestroy_v2(stream);
}

void captures_end_in(CUcontext context)
{
    pthread_rwlock_wrlock(&quiet);
    for (size_t i = count; i-- > 0;)
        if (captures[i].context == context) {
            abandon(captures[i].stream);
            remove_at(i);
        }
    pthread_rwlock_unlock(&quiet);
}

/* --- hooks */

CUresult serve_cuStreamBeginCapture(CUstream stream)
{
    return begin(stream) ? begun(real()->cuStreamBeginCapture(stream)) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult serve_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return begin(stream) ? begun(real()->cuStreamBeginCapture_v2(stream, mode)) : CUDA_ERROR_OUT_OF_MEMORY;
}

#if CUDA_VERSION >= 13050
CUresult serve_cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback, void *data)
{
    return begin(stream) ? begun(real()->cuStreamBeginRecaptureToGraph(stream, mode, graph, callback, data)) : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult serve_cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams *with)
{
    return begin(stream) ? begun(real()->cuStreamBeginCaptureToCig(stream, with)) : CUDA_ERROR_OUT_OF_MEMORY;
}
#endif

CUresult serve_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t number,
                                           CUstreamCaptureMode mode)
{
    return begin(stream) ? begun(real()->cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, number, mode)) : CUDA_ERROR_OUT_OF_MEMORY;
}
