/*
 * captures.c: the experiments of experiments.def on captures. Each of them captures one stream in mode GLOBAL, the strictest, makes calls in mode
 * RELAXED, as cenote does, and ends the capture. The answer to cuStreamEndCapture says whether the calls invalidated the capture.
 */
#include "tools/qualify/qualify.h"

static CUresult begin(struct card *card, CUstreamCaptureMode *mode)
{
    *mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result = card->more.cuStreamBeginCapture(card->streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL);
    if (!result)
        result = card_wait(card, card->streams[0], 1);
    return result ? result : card->d->cuThreadExchangeStreamCaptureMode(mode);
}

/* `ended`: CUDA_SUCCESS if no call has invalidated the capture. */
static CUresult end(struct card *card, CUstreamCaptureMode *mode, CUresult *ended)
{
    CUgraph graph = NULL;
    CUresult result = card->d->cuThreadExchangeStreamCaptureMode(mode);
    *ended = card->more.cuStreamEndCapture(card->streams[0], &graph);
    return result || !graph ? result : card->more.cuGraphDestroy(graph);
}

static void tell(struct card *card, const char *call, CUresult answer, CUresult ended)
{
    card_note(card, "%s answers %s; the capture %s", call, answer ? driver_result_name(answer) : "CUDA_SUCCESS", ended ? "is invalid" : "goes on");
}

enum outcome experiment_capture_calls(struct card *card)
{
    CUmemAllocationProp prop = card_prop(card);
    CUstreamCaptureMode mode;
    struct mapped m;
    CUresult ended;
    if (!card->granularity) {
        card_note(card, "no virtual memory management");
        return ABSENT;
    }
    TRY(begin(card, &mode));
    TRY(mapped_make(card, &prop, 1, &m));
    TRY(mapped_end(card, &m));
    TRY(end(card, &mode, &ended));
    return ended ? card_failed(card, "cuStreamEndCapture", ended) : HOLDS;
}

enum outcome experiment_capture_query(struct card *card)
{
    CUstreamCaptureMode mode;
    CUresult ended;
    CUevent event;
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    TRY(card->d->cuEventRecord(event, card->streams[1]));
    TRY(card->more.cuStreamSynchronize(card->streams[1]));
    TRY(begin(card, &mode));
    CUresult answer = card->d->cuEventQuery(event);
    TRY(end(card, &mode, &ended));
    TRY(card->d->cuEventDestroy(event));
    tell(card, "cuEventQuery", answer, ended);
    return HOLDS;
}

enum outcome experiment_capture_event(struct card *card)
{
    CUstreamCaptureMode mode;
    CUresult ended;
    CUevent event;
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    TRY(begin(card, &mode));
    TRY(card->d->cuEventRecord(event, card->streams[0]));
    CUresult answer = card->d->cuEventQuery(event);
    TRY(end(card, &mode, &ended));
    TRY(card->d->cuEventDestroy(event));
    tell(card, "cuEventQuery", answer, ended);
    return HOLDS;
}

enum outcome experiment_capture_fence(struct card *card)
{
    CUstreamCaptureMode mode;
    CUresult ended;
    CUevent event;
    if (!card->d->cuCtxRecordEvent) {
        card_note(card, "no such event before CUDA 12.5");
        return ABSENT;
    }
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    TRY(begin(card, &mode));
    CUresult answer = card->d->cuCtxRecordEvent(card->context, event);
    TRY(end(card, &mode, &ended));
    TRY(card->d->cuEventDestroy(event));
    tell(card, "cuCtxRecordEvent", answer, ended);
    return HOLDS;
}

enum outcome experiment_capture_status(struct card *card)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUstreamCaptureMode mode;
    CUresult ended;
    TRY(begin(card, &mode));
    CUresult answer = card->d->cuStreamIsCapturing(card->streams[0], &status);
    TRY(end(card, &mode, &ended));
    if (!answer && status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        card_note(card, "cuStreamIsCapturing says of a captured stream that it is not");
        return FAILS;
    }
    return answer || ended ? card_failed(card, answer ? "cuStreamIsCapturing" : "cuStreamEndCapture", answer ? answer : ended) : HOLDS;
}

enum outcome experiment_capture_stream(struct card *card)
{
    unsigned long long id;
    CUstreamCaptureMode mode;
    CUstream made = NULL;
    CUresult ended;
    if (!card->d->cuStreamGetId) {
        card_note(card, "streams have no ids before CUDA 12.0");
        return ABSENT;
    }
    TRY(begin(card, &mode));
    CUresult answer = card->more.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
    if (!answer)
        answer = card->d->cuStreamGetId(made, &id);
    if (made && !answer)
        answer = card->more.cuStreamDestroy(made);
    TRY(end(card, &mode, &ended));
    return answer || ended ? card_failed(card, answer ? "making a stream" : "cuStreamEndCapture", answer ? answer : ended) : HOLDS;
}

enum outcome experiment_capture_id(struct card *card)
{
    unsigned long long id;
    CUstreamCaptureMode mode;
    CUresult ended;
    if (!card->d->cuStreamGetId) {
        card_note(card, "streams have no ids before CUDA 12.0");
        return ABSENT;
    }
    TRY(begin(card, &mode));
    CUresult answer = card->d->cuStreamGetId(card->streams[0], &id);
    TRY(end(card, &mode, &ended));
    tell(card, "cuStreamGetId", answer, ended);
    return HOLDS;
}
