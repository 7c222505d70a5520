/*
 * captures.c: what experiments.def says of captures. Each captures one stream in mode GLOBAL, the strictest, makes calls in mode RELAXED, as cenote
 * does, and ends the capture: did it live?
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

/* The capture's end says whether it lived. */
static CUresult end(struct card *card, CUstreamCaptureMode *mode, CUresult *lived)
{
    CUgraph graph = NULL;
    CUresult result = card->d->cuThreadExchangeStreamCaptureMode(mode);
    *lived = card->more.cuStreamEndCapture(card->streams[0], &graph);
    return result || !graph ? result : card->more.cuGraphDestroy(graph);
}

static void tell(struct card *card, const char *call, CUresult answer, CUresult lived)
{
    card_note(card, "%s answers %s; the capture %s", call, answer ? driver_result_name(answer) : "CUDA_SUCCESS", lived ? "is lost" : "lives");
}

enum outcome experiment_capture_calls(struct card *card)
{
    CUmemAllocationProp prop = card_prop(card);
    CUstreamCaptureMode mode;
    struct mapped m;
    CUresult lived;
    if (!card->granularity) {
        card_note(card, "no virtual memory management");
        return ABSENT;
    }
    TRY(begin(card, &mode));
    TRY(mapped_make(card, &prop, 1, &m));
    TRY(mapped_end(card, &m));
    TRY(end(card, &mode, &lived));
    TRY(lived);
    return HOLDS;
}

enum outcome experiment_capture_query(struct card *card)
{
    CUstreamCaptureMode mode;
    CUresult lived;
    CUevent event;
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    TRY(card->d->cuEventRecord(event, card->streams[1]));
    TRY(card->more.cuStreamSynchronize(card->streams[1]));
    TRY(begin(card, &mode));
    CUresult answer = card->d->cuEventQuery(event);
    TRY(end(card, &mode, &lived));
    TRY(card->d->cuEventDestroy(event));
    tell(card, "cuEventQuery", answer, lived);
    return HOLDS;
}

enum outcome experiment_capture_event(struct card *card)
{
    CUstreamCaptureMode mode;
    CUresult lived;
    CUevent event;
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    TRY(begin(card, &mode));
    TRY(card->d->cuEventRecord(event, card->streams[0]));
    CUresult answer = card->d->cuEventQuery(event);
    TRY(end(card, &mode, &lived));
    TRY(card->d->cuEventDestroy(event));
    tell(card, "cuEventQuery", answer, lived);
    return HOLDS;
}

enum outcome experiment_capture_fence(struct card *card)
{
    CUstreamCaptureMode mode;
    CUresult lived;
    CUevent event;
    if (!card->d->cuCtxRecordEvent) {
        card_note(card, "before CUDA 12.5 there is no such event");
        return ABSENT;
    }
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    TRY(begin(card, &mode));
    CUresult answer = card->d->cuCtxRecordEvent(card->context, event);
    TRY(end(card, &mode, &lived));
    TRY(card->d->cuEventDestroy(event));
    tell(card, "cuCtxRecordEvent", answer, lived);
    return HOLDS;
}
