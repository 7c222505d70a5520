/*
 * whims.h: a driver that sits between cenote and the simulated one, and has what that lacks: it refuses an event on one stream, lets a capture begin
 * and end while an event is recorded, and lets another thread act while a call is under way. For pools with the option announced:0.
 */
#ifndef CENOTE_TESTS_API_WHIMS_H
#define CENOTE_TESTS_API_WHIMS_H

#include <pthread.h>

#include "tests/api/strict.h"

enum whim_moment { WHIM_NONE, WHIM_RECORD, WHIM_PUSH, WHIM_DESTROY };

static struct {
    const struct driver *below;
    CUstream brief;             /* is captured for the moment in which the next event is recorded on it; NULL: no more */
    CUevent  captured;          /* the event of that moment, until it is recorded anew: of it the driver does not say whether it is done */
    CUevent  newest;            /* the last event that was recorded */
    CUstream refused;           /* gets no event; NULL: none is */
    int      queries;           /* counts questions about events */
    void   (*at_record)(void);  /* this thread does it before each event that is recorded; NULL: nothing */
    enum whim_moment moment;    /* at which another thread acts, once */
    int      skip;              /* so many such calls come before */
    void   (*meanwhile)(void);  /* what it does */
} whims;

static void *whim_acts(void *unused)
{
    (void)unused;
    whims.meanwhile();
    return NULL;
}

static void whim_comes(enum whim_moment moment)
{
    pthread_t thread;
    if (whims.moment != moment || whims.skip-- > 0)
        return;
    whims.moment = WHIM_NONE;
    DONE(pthread_create(&thread, NULL, whim_acts, NULL));
    DONE(pthread_join(thread, NULL));
}

static CUresult whim_record(CUevent event, CUstream stream)
{
    whim_comes(WHIM_RECORD);
    if (whims.at_record)
        whims.at_record();
    if (whims.refused && stream == whims.refused)
        return CUDA_ERROR_OUT_OF_MEMORY;
    whims.newest = event;
    whims.captured = whims.captured == event ? NULL : whims.captured;
    if (!whims.brief || stream != whims.brief)
        return whims.below->cuEventRecord(event, stream);
    whims.brief = NULL;
    whims.captured = event;
    return record_in_a_capture_of_a_moment(whims.below, event, stream);
}

static CUresult whim_query(CUevent event)
{
    whims.queries++;
    return event && event == whims.captured ? CUDA_ERROR_CAPTURED_EVENT : whims.below->cuEventQuery(event);
}

static CUresult whim_push(CUcontext context)
{
    whim_comes(WHIM_PUSH);
    return whims.below->cuCtxPushCurrent(context);
}

static CUresult whim_destroy(CUevent event)
{
    whim_comes(WHIM_DESTROY);
    return whims.below->cuEventDestroy(event);
}

static const struct driver *with_whims(const struct driver *driver)
{
    static struct driver table;
    whims.below = driver_fault_over(driver);
    table = *whims.below;
    table.cuEventRecord = whim_record;
    table.cuEventQuery = whim_query;
    table.cuCtxPushCurrent = whim_push;
    table.cuEventDestroy = whim_destroy;
    return &table;
}

/* Once the driver is loaded: after the first pool. Faults (fault_arm) are put below it. */
static inline void whims_begin(void)
{
    fault_arm("cuInit", 1, CUDA_SUCCESS, false); /* puts its own layer in place, the first time */
    fault_disarm();
    if (!whims.below)
        driver_interpose(with_whims);
    whims.brief = whims.refused = NULL;
    whims.captured = whims.newest = NULL;
    whims.at_record = NULL;
    whims.moment = WHIM_NONE;
}

/* From now on another thread does that, once, while the next such call of cenote's is under way, after `skip` of them. */
static inline void whims_at(enum whim_moment moment, int skip, void (*meanwhile)(void))
{
    whims.meanwhile = meanwhile;
    whims.skip = skip;
    whims.moment = moment;
}

static inline bool whims_came(void)
{
    return whims.moment == WHIM_NONE;
}

#endif
