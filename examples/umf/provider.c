/*
 * provider.c: cenote as a memory provider of UMF. UMF knows no streams: what it hands out may be used on any stream at once, and what it takes
 * back may still be in use by work that was put on some stream, as with cuMemAlloc and cuMemFree. So
 *
 *   - all blocks are taken on one stream that never has work, from a pool of this provider, whose streams do not wait for memory (order:0): what
 *     leaves another stream's memory has been waited for;
 *   - a free waits for the context before the block is given back. Pools of UMF free rarely.
 *
 * It is an example: a program copies it. No locks: the struct does not change between initialize and finalize.
 */
#include "provider.h"

#include <cenote/cenote.h>
#include <cuda.h>

#include <stdint.h>
#include <stdlib.h>

struct provider {
    cenote_pool *pool;
    CUcontext context;
    CUstream still; /* never has work */
    size_t page;
    int device;
};

static umf_result_t said(int error)
{
    switch (error) {
    case CENOTE_OK:
        return UMF_RESULT_SUCCESS;
    case CENOTE_OUT_OF_MEMORY:
    case CENOTE_OUT_OF_ADDRESSES:
        return UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC; /* UMF asks for cenote_message() */
    case CENOTE_OUT_OF_HOST_MEMORY:
        return UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY;
    case CENOTE_NOT_SUPPORTED:
        return UMF_RESULT_ERROR_NOT_SUPPORTED;
    case CENOTE_DRIVER:
    case CENOTE_DEVICE_LOST:
        return UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC;
    default:
        return UMF_RESULT_ERROR_INVALID_ARGUMENT;
    }
}

static umf_result_t finalize(void *provider)
{
    struct provider *p = provider;
    int error = p->pool ? cenote_pool_destroy(p->pool) : CENOTE_OK;
    if (error)
        return said(error); /* blocks are live: nothing has happened */
    if (p->context && !cuCtxPushCurrent(p->context)) {
        if (p->still)
            cuStreamDestroy(p->still);
        cuCtxPopCurrent(NULL);
    }
    if (p->context)
        cuDevicePrimaryCtxRelease(p->device);
    free(p);
    return UMF_RESULT_SUCCESS;
}

static umf_result_t open_pool(struct provider *p, const struct cenote_umf *params)
{
    cenote_options options;
    int error = cenote_options_default(&options);
    if (!error && params->conf)
        error = cenote_options_parse(&options, params->conf);
    options.order = 0;
    p->page = (size_t)options.page_mib << 20;
    return said(error ? error : cenote_pool_create(params->device, &options, &p->pool));
}

static umf_result_t initialize(const void *given, void **provider)
{
    const struct cenote_umf *params = given;
    struct provider *p = params ? calloc(1, sizeof *p) : NULL;
    if (!p)
        return params ? UMF_RESULT_ERROR_OUT_OF_HOST_MEMORY : UMF_RESULT_ERROR_INVALID_ARGUMENT;
    p->device = params->device;
    umf_result_t result = UMF_RESULT_ERROR_INVALID_ARGUMENT;
    if (!cuInit(0) && !cuDevicePrimaryCtxRetain(&p->context, params->device) && !cuCtxPushCurrent(p->context)) {
        if (!cuStreamCreate(&p->still, CU_STREAM_NON_BLOCKING))
            result = open_pool(p, params);
        cuCtxPopCurrent(NULL);
    }
    if (result) {
        finalize(p);
        return result;
    }
    *provider = p;
    return UMF_RESULT_SUCCESS;
}

static umf_result_t take(void *provider, size_t size, size_t alignment, void **block)
{
    struct provider *p = provider;
    cenote_request request = {.bytes = size, .alignment = alignment ? alignment : 1, .stream = p->still};
    return said(cenote_alloc_with(p->pool, &request, block));
}

static umf_result_t give(void *provider, void *block, size_t size)
{
    struct provider *p = provider;
    (void)size; /* UMF may not know it: 0 */
    if (cuCtxPushCurrent(p->context))
        return UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC;
    CUresult waited = cuCtxSynchronize();
    cuCtxPopCurrent(NULL);
    return waited ? UMF_RESULT_ERROR_MEMORY_PROVIDER_SPECIFIC : said(cenote_free(block));
}

static umf_result_t last_error(void *provider, const char **message, int32_t *error)
{
    (void)provider;
    *message = cenote_message();
    *error = cenote_driver_result();
    return UMF_RESULT_SUCCESS;
}

static umf_result_t page_of(void *provider, size_t size, size_t *page)
{
    (void)size;
    *page = ((struct provider *)provider)->page;
    return UMF_RESULT_SUCCESS;
}

static umf_result_t least_page(void *provider, const void *block, size_t *page)
{
    (void)provider, (void)block;
    *page = 512; /* what blocks are aligned and rounded to */
    return UMF_RESULT_SUCCESS;
}

static umf_result_t line_of(void *provider, size_t *size)
{
    (void)provider;
    *size = 128; /* of NVIDIA's cards */
    return UMF_RESULT_SUCCESS;
}

static umf_result_t name_of(void *provider, const char **name)
{
    (void)provider;
    *name = "cenote";
    return UMF_RESULT_SUCCESS;
}

const umf_memory_provider_ops_t *cenote_umf_ops(void)
{
    static const umf_memory_provider_ops_t ops = {
        .version = UMF_PROVIDER_OPS_VERSION_CURRENT,
        .initialize = initialize,
        .finalize = finalize,
        .alloc = take,
        .free = give,
        .get_last_native_error = last_error,
        .get_recommended_page_size = page_of,
        .get_min_page_size = least_page,
        .get_name = name_of,
        .get_cache_line_size = line_of,
    };
    return &ops;
}
