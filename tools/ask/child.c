/*
 * child.c: calls each entry point in one state, from a row on, and writes what it answered, a `struct answer` for each row in order, to a pipe. The
 * child ends early, in peace, when a call has left the process in another state; the parent starts another one with the next row. A call that
 * crashes or never returns takes the child along, and the parent sees which one it was.
 *
 * In the state LOST all scenes are made before the context is lost.
 */
#include "tools/ask/ask.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------------------------- the rows */

static void nothing(void *argument)
{
    (void)argument;
}

static void nothing_on(CUstream stream, CUresult result, void *argument)
{
    (void)stream, (void)result, (void)argument;
}

static CUDA_MEMCPY3D *deep(struct scene *s)
{
    s->copy = (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = s->at, .srcPitch = 512, .srcHeight = 4, .WidthInBytes = 64,
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = s->to, .dstPitch = 512, .dstHeight = 4, .Height = 4, .Depth = 2};
    return &s->copy;
}

static CUDA_MEMCPY2D *flat(struct scene *s)
{
    CUDA_MEMCPY2D *region = s->a;
    *region = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = s->at, .srcPitch = 512, .WidthInBytes = 64,
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = s->to, .dstPitch = 512, .Height = 4};
    return region;
}

static CUDA_MEMCPY3D_PEER *deep_peer(struct scene *s)
{
    CUDA_MEMCPY3D_PEER *region = s->a;
    *region = (CUDA_MEMCPY3D_PEER){.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = s->at, .srcPitch = 512, .srcHeight = 4,
                                   .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = s->to, .dstPitch = 512, .dstHeight = 4,
                                   .srcContext = s->context, .dstContext = s->context,
                                   .WidthInBytes = 64, .Height = 4, .Depth = 2};
    return region;
}

static CUlaunchConfig *launch_on(struct scene *s, CUstream stream)
{
    s->config.hStream = stream;
    return &s->config;
}

static CUstreamBatchMemOpParams *one_write(struct scene *s)
{
    CUstreamBatchMemOpParams *part = s->a;
    *part = (CUstreamBatchMemOpParams){.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = s->at, .value = 1}};
    return part;
}

static unsigned *one(void *place)
{
    *(unsigned *)place = 1;
    return place;
}

#define CALL(part, symbol, which, arguments)                                   \
    static CUresult ask_##symbol##_##which(struct scene *s, CUstream stream)   \
    {                                                                          \
        (void)stream;                                                          \
        return s->d->symbol arguments;                                         \
    }                                                                          \
    static bool has_##symbol##_##which(const struct calls *d)                  \
    {                                                                          \
        return d->symbol != NULL;                                              \
    }
#define ON_STREAM(...) CALL(__VA_ARGS__)
#define LEFT(symbol)
#include "tools/ask/calls.def"
#undef CALL
#undef ON_STREAM

#define ROW(part, symbol, which, on) {#symbol, #which, part, on, has_##symbol##_##which, ask_##symbol##_##which},
#define CALL(part, symbol, which, arguments) ROW(part, symbol, which, ON_NONE)
#define ON_STREAM(part, symbol, which, arguments)                              \
    ROW(part, symbol, which, ON_CAPTURED)                                      \
    ROW(part, symbol, which, ON_BESIDE)                                        \
    ROW(part, symbol, which, ON_DEFAULT)
const struct row rows[] = {
#include "tools/ask/calls.def"
};

size_t row_count(void)
{
    return sizeof rows / sizeof rows[0];
}

const struct state_row states[STATES] = {
#define STATE(name, heading, captures, mode, by_another, relaxed) {heading, captures, CU_STREAM_CAPTURE_MODE_##mode, by_another, relaxed},
#include "tools/ask/states.def"
#undef STATE
};

/* ---------------------------------------------------------------------------------------------------------------- the capture */

/* A capture of one scene's stream, and the other thread that keeps it, if another does. */
struct capture {
    struct scene *s;
    const struct state_row *state;
    pthread_t thread;
    pthread_barrier_t begun, over;
    CUresult result;            /* of the begin, then of the end */
    enum fate fate;
};

static void capture_begin(struct capture *c)
{
    const struct calls *d = c->s->d;
    c->result = d->cuStreamBeginCapture_v2(c->s->own, c->state->mode);
    if (!c->result)
        c->result = d->cuEventRecord(c->s->inside, c->s->own);
}

static enum fate capture_end(struct capture *c)
{
    CUstreamCaptureStatus status;
    CUgraph graph;
    if (!c->s->own || c->s->d->cuStreamIsCapturing(c->s->own, &status) || status == CU_STREAM_CAPTURE_STATUS_NONE)
        return FATE_ENDED;
    CUresult ended = c->s->d->cuStreamEndCapture(c->s->own, &graph);
    return ended || status == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? FATE_INVALID : FATE_GOES_ON;
}

static void *keep_capture(void *argument)
{
    struct capture *c = argument;
    c->s->d->cuCtxSetCurrent(c->s->context);
    capture_begin(c);
    pthread_barrier_wait(&c->begun);
    pthread_barrier_wait(&c->over);
    c->fate = capture_end(c);
    return NULL;
}

/* False: it could not begin. */
static bool enter(struct capture *c, struct scene *s, const struct state_row *state)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    *c = (struct capture){.s = s, .state = state};
    if (!state->captures)
        return s->d->cuEventRecord(s->inside, s->own) == CUDA_SUCCESS;
    if (state->by_another) {
        pthread_barrier_init(&c->begun, NULL, 2);
        pthread_barrier_init(&c->over, NULL, 2);
        if (pthread_create(&c->thread, NULL, keep_capture, c))
            return false;
        pthread_barrier_wait(&c->begun);
    } else {
        capture_begin(c);
    }
    return !c->result && (!state->relaxed || s->d->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS);
}

/* What a call itself has begun ends here as well. */
static enum fate leave(struct capture *c)
{
    struct scene *s = c->s;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    s->d->cuThreadExchangeStreamCaptureMode(&mode);
    s->d->cuCtxSetCurrent(s->context);
    if (c->state->by_another) {
        pthread_barrier_wait(&c->over);
        pthread_join(c->thread, NULL);
    } else if (c->state->captures) {
        c->fate = capture_end(c);
    }
    for (int i = 0; i < 2; i++) {
        CUstream stream = i ? s->own : s->beside;
        CUstreamCaptureStatus status;
        CUgraph graph;
        if (stream && !s->d->cuStreamIsCapturing(stream, &status) && status != CU_STREAM_CAPTURE_STATUS_NONE)
            s->d->cuStreamEndCapture(stream, &graph);
    }
    return c->state->captures ? c->fate : FATE_NONE;
}

/* -------------------------------------------------------------------------------------------------------------------- the child */

static bool made(struct scene *s, const struct calls *calls, const struct row *row)
{
    return row->is_there(calls) && !scene_base(s, calls) && !scene_part(s, row->part);
}

static struct answer ask(struct scene *s, const struct row *row, const struct state_row *state)
{
    struct capture capture;
    struct answer answer = {.kind = ANSWERED};
    if (!enter(&capture, s, state))
        _exit(1);
    answer.result = row->ask(s, scene_stream(s, row->on));
    answer.fate = leave(&capture);
    return answer;
}

/* What a thread hears that takes the context up and waits for it. */
struct health { CUresult taken, waited; };

static struct health health_of(const struct calls *d, CUcontext context)
{
    CUresult taken = d->cuCtxSetCurrent(context);
    return (struct health){taken, d->cuCtxSynchronize()};
}

/* Is the process as before the call? */
static bool is_sound(const struct scene *s, struct health before)
{
    struct health now = health_of(s->d, s->context);
    return now.taken == before.taken && now.waited == before.waited && (now.waited || (s->own && s->beside));
}

static void tell(int pipe, const struct answer *answer)
{
    if (write(pipe, answer, sizeof *answer) != sizeof *answer)
        _exit(1);
}

static void ask_lost(const struct calls *calls, size_t first, int pipe)
{
    size_t count = row_count();
    struct scene *scenes = calloc(count + 1, sizeof *scenes);
    bool *is_made = calloc(count, 1);
    if (!scenes || !is_made)
        return;
    for (size_t i = first; i < count; i++)
        is_made[i] = made(&scenes[i], calls, &rows[i]);
    if (scene_base(&scenes[count], calls) || scene_lose(&scenes[count]))
        _exit(1);
    calls->cuCtxSynchronize(); /* from here on all calls know */
    struct health lost = health_of(calls, scenes[count].context);
    for (size_t i = first; i < count; i++) {
        struct answer answer = {.kind = ABSENT};
        if (is_made[i])
            answer = (struct answer){.kind = ANSWERED, .result = rows[i].ask(&scenes[i], scene_stream(&scenes[i], rows[i].on))};
        tell(pipe, &answer);
        if (is_made[i] && !is_sound(&scenes[i], lost))
            return;
    }
}

void child_run(enum state state, size_t first, int pipe)
{
    struct calls calls;
    if (!calls_find(&calls))
        _exit(2);
    if (state == STATE_LOST) {
        ask_lost(&calls, first, pipe);
        _exit(0);
    }
    for (size_t i = first; i < row_count(); i++) {
        struct scene scene;
        struct answer answer = {.kind = ABSENT};
        bool is_made = made(&scene, &calls, &rows[i]);
        if (is_made)
            answer = ask(&scene, &rows[i], &states[state]);
        tell(pipe, &answer);
        if (is_made && !is_sound(&scene, (struct health){CUDA_SUCCESS, CUDA_SUCCESS}))
            break;
    }
    _exit(0);
}
