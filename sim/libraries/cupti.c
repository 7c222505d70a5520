/*
 * cupti.c: the simulated profiling interface. A profiler may subscribe, enable what it likes and flush; no record is ever delivered,
 * for kernels take no time and there is nothing to tell of them. So torch.profiler shows the host's side and the memory of a program,
 * and no kernels. What is kept is what a caller could see of itself: the subscriber, and the stacks of external correlation ids.
 *
 * LOCKING: none; the subscriber is atomic, the stacks belong to their threads.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "sim/libraries/library.h"

#define VERSION 130001          /* of CUDA 13.0 */
#define DOMAINS 7
#define CORRELATION_KINDS 10

enum cupti {
    SUCCESS = 0, INVALID_PARAMETER = 1, OUT_OF_MEMORY = 8, MAX_LIMIT_REACHED = 12, QUEUE_EMPTY = 18, INVALID_KIND = 21, NOT_SUPPORTED = 27,
    MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39
};

static const struct text {
    int         code;
    const char *name;
} texts[] = {
    {SUCCESS, "CUPTI_SUCCESS"}, {INVALID_PARAMETER, "CUPTI_ERROR_INVALID_PARAMETER"}, {OUT_OF_MEMORY, "CUPTI_ERROR_OUT_OF_MEMORY"},
    {MAX_LIMIT_REACHED, "CUPTI_ERROR_MAX_LIMIT_REACHED"}, {QUEUE_EMPTY, "CUPTI_ERROR_QUEUE_EMPTY"},
    {INVALID_KIND, "CUPTI_ERROR_INVALID_KIND"}, {NOT_SUPPORTED, "CUPTI_ERROR_NOT_SUPPORTED"},
    {MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"},
};

static struct subscriber {
    _Atomic bool taken;
} subscriber;

/* Ids of one kind in one thread, the last one first. Not an array: every thread of every preloaded program would have one on its stack. */
static _Thread_local struct correlation {
    struct correlation *below;
    uint64_t            id;
} *correlations[CORRELATION_KINDS];

static bool is_subscribed(const struct subscriber *who)
{
    return who == &subscriber && atomic_load(&subscriber.taken);
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int cuptiGetVersion(uint32_t *version)
{
    if (!version)
        return INVALID_PARAMETER;
    *version = VERSION;
    return SUCCESS;
}

int cuptiGetResultString(int result, const char **text)
{
    for (size_t i = 0; text && i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == result) {
            *text = texts[i].name;
            return SUCCESS;
        }
    return INVALID_PARAMETER;
}

/* --- callbacks: one subscriber, never called */

int cuptiSubscribe(struct subscriber **made, const void *callback, const void *data)
{
    (void)callback;
    (void)data;
    if (!made)
        return INVALID_PARAMETER;
    if (atomic_exchange(&subscriber.taken, true))
        return MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    *made = &subscriber;
    return SUCCESS;
}

int cuptiUnsubscribe(struct subscriber *who)
{
    if (!is_subscribed(who))
        return INVALID_PARAMETER;
    atomic_store(&who->taken, false);
    return SUCCESS;
}

int cuptiFinalize(void)
{
    atomic_store(&subscriber.taken, false);
    return SUCCESS;
}

int cuptiEnableDomain(uint32_t enable, const struct subscriber *who, unsigned domain)
{
    (void)enable;
    return is_subscribed(who) && domain && domain < DOMAINS ? SUCCESS : INVALID_PARAMETER;
}

int cuptiEnableCallback(uint32_t enable, const struct subscriber *who, unsigned domain, uint32_t callback)
{
    (void)callback;
    return cuptiEnableDomain(enable, who, domain);
}

int cuptiGetCallbackName(unsigned domain, uint32_t callback, const char **name)
{
    (void)callback;
    if (!name || !domain || domain >= DOMAINS)
        return INVALID_PARAMETER;
    *name = "simulated";
    return SUCCESS;
}

/* --- activities: buffers are never asked for, so none is ever completed */

int cuptiActivityRegisterCallbacks(const void *request, const void *complete)
{
    return request && complete ? SUCCESS : INVALID_PARAMETER;
}

int cuptiActivityGetNextRecord(const uint8_t *buffer, size_t valid, void **record)
{
    (void)buffer;
    (void)valid;
    return record ? MAX_LIMIT_REACHED : INVALID_PARAMETER;  /* that is how the end of a buffer is told */
}

int cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped)
{
    (void)context;
    (void)stream;
    if (!dropped)
        return INVALID_PARAMETER;
    *dropped = 0;
    return SUCCESS;
}

int cuptiActivityPushExternalCorrelationId(unsigned kind, uint64_t id)
{
    if (kind >= CORRELATION_KINDS)
        return INVALID_PARAMETER;
    struct correlation *top = malloc(sizeof *top);
    if (!top)
        return OUT_OF_MEMORY;
    *top = (struct correlation){correlations[kind], id};
    correlations[kind] = top;
    return SUCCESS;
}

int cuptiActivityPopExternalCorrelationId(unsigned kind, uint64_t *last)
{
    if (kind >= CORRELATION_KINDS)
        return INVALID_PARAMETER;
    struct correlation *top = correlations[kind];
    if (!top)
        return QUEUE_EMPTY;
    if (last)
        *last = top->id;
    correlations[kind] = top->below;
    free(top);
    return SUCCESS;
}
