/*
 * refusals.h: a driver that sits between cenote and the simulated one. It refuses calls that were named beforehand, and what it says of free memory
 * is as many bytes too much, or too little, as a test says. Unlike driver/fault.c it refuses several calls by different names.
 */
#ifndef CENOTE_TESTS_STRESS_REFUSALS_H
#define CENOTE_TESTS_STRESS_REFUSALS_H

#include <string.h>

#include "driver/driver.h"

enum refusal { REFUSE_UNMAP, REFUSE_CREATE, REFUSE_MAP, REFUSE_ACCESS, REFUSE_RELEASE, REFUSE_ADDRESSES, REFUSALS };

static struct {
    const struct driver *below;
    struct {
        uint32_t skip, times;   /* the first so many calls work, and as many after them do not */
        CUresult error;
    } of[REFUSALS];
    uint64_t fired;             /* since refusals_begin, or since the test set it to 0 */
    int64_t  says;              /* bytes more than are free */
} refusals;

static CUresult refused(enum refusal r)
{
    if (!refusals.of[r].times)
        return CUDA_SUCCESS;
    if (refusals.of[r].skip) {
        refusals.of[r].skip--;
        return CUDA_SUCCESS;
    }
    refusals.of[r].times--;
    refusals.fired++;
    return refusals.of[r].error;
}

#define REFUSE(which, name, parameters, arguments)                  \
    static CUresult refuse_##name parameters                        \
    {                                                               \
        CUresult result = refused(which);                           \
        return result ? result : refusals.below->name arguments;    \
    }
REFUSE(REFUSE_UNMAP, cuMemUnmap, (CUdeviceptr at, size_t bytes), (at, bytes))
REFUSE(REFUSE_CREATE, cuMemCreate, (CUmemGenericAllocationHandle *h, size_t bytes, const CUmemAllocationProp *p, unsigned long long f),
       (h, bytes, p, f))
REFUSE(REFUSE_MAP, cuMemMap, (CUdeviceptr at, size_t bytes, size_t o, CUmemGenericAllocationHandle h, unsigned long long f), (at, bytes, o, h, f))
REFUSE(REFUSE_ACCESS, cuMemSetAccess, (CUdeviceptr at, size_t bytes, const CUmemAccessDesc *who, size_t count), (at, bytes, who, count))
REFUSE(REFUSE_RELEASE, cuMemRelease, (CUmemGenericAllocationHandle h), (h))
REFUSE(REFUSE_ADDRESSES, cuMemAddressFree, (CUdeviceptr at, size_t bytes), (at, bytes))
#undef REFUSE

static CUresult say_free(size_t *left, size_t *all)
{
    CUresult result = refusals.below->cuMemGetInfo(left, all);
    int64_t says = (int64_t)*left + refusals.says;
    *left = says < 0 ? 0 : (size_t)says;
    return result;
}

static const struct driver *with_refusals(const struct driver *driver)
{
    static struct driver table;
    refusals.below = driver;
    table = *driver;
    table.cuMemGetInfo = say_free;
    table.cuMemUnmap = refuse_cuMemUnmap;
    table.cuMemCreate = refuse_cuMemCreate;
    table.cuMemMap = refuse_cuMemMap;
    table.cuMemSetAccess = refuse_cuMemSetAccess;
    table.cuMemRelease = refuse_cuMemRelease;
    table.cuMemAddressFree = refuse_cuMemAddressFree;
    return &table;
}

/* Nothing is refused, until a test fills in `of`. Once the driver is loaded: after the first pool. */
static inline void refusals_begin(int64_t says)
{
    if (!refusals.below)
        driver_interpose(with_refusals);
    memset(refusals.of, 0, sizeof refusals.of);
    refusals.fired = 0;
    refusals.says = says;
}

#endif
