/* gpu.c: see gpu.h. */
#include "tests/clock/gpu.h"

#include <string.h>

#define EVENTS 8192u

static struct {
    bool     exists, is_recorded;
    uint32_t capture;                   /* in which it lies */
    uint32_t at[GPU_STREAMS];           /* what each stream had been given; 0: that one does not matter */
} event[EVENTS];

struct gpu_stream gpu_stream[GPU_STREAMS];
uint32_t gpu_streams, gpu_mistakes, gpu_moments;
static uint32_t records;
static struct card card;
static struct driver driver;
struct device gpu_device = {.driver = &driver, .card = &card};

static const CUstream behind_default = (CUstream)0x9000;

/* The one that lives and has the handle. */
static struct gpu_stream *find(CUstream handle)
{
    for (uint32_t i = gpu_streams; i--;)
        if (gpu_stream[i].handle == handle && !gpu_stream[i].has_ended)
            return &gpu_stream[i];
    gpu_mistakes++;
    return NULL;
}

static bool is_open(uint32_t capture)
{
    bool open = false;
    for (uint32_t i = 0; i < gpu_streams; i++)
        open = open || (gpu_stream[i].capture && (!capture || gpu_stream[i].capture == capture));
    return open;
}

static CUresult create_event(CUevent *made, unsigned flags)
{
    uint32_t i = 1;
    (void)flags;
    while (i < EVENTS && event[i].exists)
        i++;
    if (i == EVENTS)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(&event[i], 0, sizeof event[i]);
    event[i].exists = true;
    *made = (CUevent)(uintptr_t)i;
    return CUDA_SUCCESS;
}

static uint32_t number_of(CUevent e)
{
    uint32_t number = (uint32_t)(uintptr_t)e;
    gpu_mistakes += !event[number].exists;
    return number;
}

static CUresult destroy_event(CUevent e)
{
    event[number_of(e)].exists = false;
    return CUDA_SUCCESS;
}

static void begin_record(uint32_t number)
{
    memset(event[number].at, 0, sizeof event[number].at);
    event[number].is_recorded = true;
    event[number].capture = 0;
}

static CUresult record_event(CUevent e, CUstream handle)
{
    uint32_t number = number_of(e);
    begin_record(number);
    if (handle == behind_default) {
        event[number].at[GPU_DEFAULT] = gpu_stream[GPU_DEFAULT].given;
        return CUDA_SUCCESS;
    }
    struct gpu_stream *s = find(handle);
    gpu_mistakes += s == &gpu_stream[GPU_DEFAULT] && is_open(0); /* blocking streams that are captured wait for it */
    if (!s)
        return CUDA_ERROR_INVALID_HANDLE;
    if (s->capture)
        event[number].capture = s->capture;
    else if (gpu_moments && ++records % gpu_moments == 0)
        event[number].capture = UINT32_MAX; /* no other one has this number */
    else
        event[number].at[s - gpu_stream] = s->given;
    return CUDA_SUCCESS;
}

static CUresult record_over_context(CUcontext context, CUevent e)
{
    (void)context;
    gpu_mistakes += is_open(0);
    begin_record(number_of(e));
    for (uint32_t i = 0; i < gpu_streams; i++)
        event[number_of(e)].at[i] = gpu_stream[i].given;
    return CUDA_SUCCESS;
}

static CUresult query_event(CUevent e)
{
    uint32_t number = number_of(e);
    gpu_mistakes += !event[number].is_recorded;
    if (event[number].capture) {
        gpu_mistakes += is_open(event[number].capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    for (uint32_t i = 0; i < gpu_streams; i++)
        if (gpu_stream[i].done < event[number].at[i])
            return CUDA_ERROR_NOT_READY;
    return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
    const struct gpu_stream *s = find(handle);
    *status = s && s->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult stream_id(CUstream handle, unsigned long long *id)
{
    const struct gpu_stream *s = find(handle);
    *id = s ? s->id : 0;
    return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult create_stream(CUstream *made, unsigned flags)
{
    (void)flags;
    *made = behind_default; /* no other one is made */
    return CUDA_SUCCESS;
}

static CUresult destroy_stream(CUstream handle)
{
    (void)handle;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
    *context = gpu_device.context;
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return CUDA_SUCCESS;
}

uint32_t gpu_begin(CUstream handle)
{
    gpu_stream[gpu_streams] = (struct gpu_stream){.handle = handle, .id = gpu_streams + 1};
    return gpu_streams++;
}

void gpu_open(void)
{
    driver = (struct driver){.cuEventCreate = create_event, .cuEventDestroy = destroy_event,
                             .cuEventRecord = record_event, .cuEventQuery = query_event,
                             .cuCtxRecordEvent = record_over_context, .cuStreamIsCapturing = is_capturing,
                             .cuStreamGetId = stream_id, .cuStreamCreate = create_stream,
                             .cuStreamDestroy = destroy_stream, .cuCtxPushCurrent = push, .cuCtxPopCurrent = pop,
                             .cuThreadExchangeStreamCaptureMode = exchange_mode};
    memset(event, 0, sizeof event);
    memset(&gpu_device.touch, 0, sizeof gpu_device.touch);
    pthread_rwlock_init(&card.gate, NULL);
    pthread_rwlock_init(&card.quiet, NULL);
    atomic_store(&card.was_asked, true);
    gpu_device.context = (CUcontext)1;
    gpu_device.generation = 1;
    gpu_streams = gpu_mistakes = gpu_moments = records = 0;
    gpu_begin(NULL);
    gpu_begin(CU_STREAM_PER_THREAD);
}

void gpu_close(void)
{
    touch_close(&gpu_device);
    pthread_rwlock_destroy(&card.gate);
    pthread_rwlock_destroy(&card.quiet);
}
