/*
 * runtime.c: what the server stands on: a pool, a group for each family of memory, two streams, the weights.
 *
 * Groups share the pool's pages and nothing else: what the activations of one prompt leave free becomes KV cache, without a copy. The graphs have
 * a private group, because a replay writes to the addresses that its capture saw.
 */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER_WEIGHTS = 12 * WIDTH * WIDTH * 2, WEIGHT = 0x3c003c00 };

static const struct { const char *name; unsigned flags; } families[FAMILIES] = {
    [WEIGHTS]     = {"weights", 0},
    [KV]          = {"kv cache", 0},
    [ACTIVATIONS] = {"activations", 0},
    [GRAPHS]      = {"graphs", CENOTE_GROUP_PRIVATE},
};

void must(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "This does not hold: %s.\n", what);
    exit(1);
}

/* The two libraries have their own words for what went wrong. */
void done(int error, const char *call)
{
    const char *why = NULL;
    if (!error)
        return;
    if (!strncmp(call, "cu", 2))
        cuGetErrorString((CUresult)error, &why);
    fprintf(stderr, "%s: %s\n", call, why ? why : cenote_message());
    exit(1);
}

/* Stands for a kernel that writes `bytes` there. */
void fill(void *at, uint32_t word, size_t bytes, CUstream stream)
{
    DONE(cuMemsetD32Async((CUdeviceptr)at, word, bytes / sizeof word, stream));
}

/* CENOTE_OK, or CENOTE_OUT_OF_MEMORY: that one is for the caller to act on. */
int runtime_take(struct runtime *r, enum family family, size_t bytes, CUstream stream, void **block)
{
    cenote_request request = {.bytes = bytes, .group = r->group[family], .stream = stream};
    int error = cenote_alloc_with(r->pool, &request, block);
    if (error != CENOTE_OUT_OF_MEMORY)
        done(error, "cenote_alloc_with");
    return error;
}

void runtime_open(struct runtime *r, const cenote_options *options)
{
    CUcontext context;
    *r = (struct runtime){0};
    DONE(cuInit(0));
    DONE(cuDevicePrimaryCtxRetain(&context, 0));
    DONE(cuCtxPushCurrent(context));
    DONE(cuStreamCreate(&r->prefill, CU_STREAM_NON_BLOCKING));
    DONE(cuStreamCreate(&r->decode, CU_STREAM_NON_BLOCKING));
    DONE(cuEventCreate(&r->prefilled, CU_EVENT_DISABLE_TIMING));
    DONE(cenote_pool_create(0, options, &r->pool));
    DONE(cenote_stream_set_immortal(r->pool, r->prefill));
    DONE(cenote_stream_set_immortal(r->pool, r->decode));
    for (int i = 0; i < FAMILIES; i++)
        DONE(cenote_group_create(r->pool, families[i].name, families[i].flags, NULL, &r->group[i]));
    for (int i = 0; i < LAYERS; i++) {
        DONE(runtime_take(r, WEIGHTS, LAYER_WEIGHTS, r->decode, &r->weights[i]));
        fill(r->weights[i], WEIGHT, LAYER_WEIGHTS, r->decode);
    }
}

const char *family_name(enum family family)
{
    return families[family].name;
}

/* Pages move between groups, so the peaks of groups are of different moments and may add up to more than the pool ever held. */
void runtime_note(struct runtime *r)
{
    for (int i = 0; i < FAMILIES; i++) {
        uint64_t bytes;
        DONE(cenote_group_reserved(r->group[i], &bytes));
        if (bytes > r->most_reserved[i])
            r->most_reserved[i] = bytes;
    }
}

/* The weights are as they were loaded. */
static void check_weights(const struct runtime *r)
{
    uint32_t *words = malloc(LAYER_WEIGHTS);
    must(words, "host memory");
    for (int i = 0; i < LAYERS; i++) {
        DONE(cuMemcpyDtoH(words, (CUdeviceptr)r->weights[i], LAYER_WEIGHTS));
        for (size_t at = 0; at < LAYER_WEIGHTS / sizeof *words; at++)
            must(words[at] == WEIGHT, "the weights are as they were loaded");
    }
    free(words);
}

void runtime_close(struct runtime *r)
{
    check_weights(r);
    for (int i = 0; i < LAYERS; i++)
        DONE(cenote_free(r->weights[i]));
    for (int i = 0; i < FAMILIES; i++)
        DONE(cenote_group_destroy(r->group[i]));
    DONE(cenote_pool_destroy(r->pool));
    DONE(cuEventDestroy(r->prefilled));
    DONE(cuStreamDestroy(r->prefill));
    DONE(cuStreamDestroy(r->decode));
    DONE(cuDevicePrimaryCtxRelease(0));
}
