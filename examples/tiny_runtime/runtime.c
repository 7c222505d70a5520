/*
 * runtime.c: what the server stands on: a pool, a group for each family of memory, two streams, the weights.
 *
 * Groups share the pool's pages and nothing else: what the activations of one prompt leave free becomes KV cache, without a copy. The graphs have
 * a private group, because a replay writes to the addresses that its capture saw.
 */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>

enum { LAYER_WEIGHTS = 12 * WIDTH * WIDTH * 2, WEIGHT = 0x3c003c00 };

static const struct { const char *name; unsigned flags; } families[FAMILIES] = {
    [WEIGHTS]     = {"weights", 0},
    [KV]          = {"kv cache", 0},
    [ACTIVATIONS] = {"activations", 0},
    [GRAPHS]      = {"graphs", CENOTE_GROUP_PRIVATE},
};

/* What is no matter of memory running out ends the program, and says why. */
void must(bool done, const char *what)
{
    if (done)
        return;
    fprintf(stderr, "%s failed: %s\n", what, cenote_message());
    exit(1);
}

/* Stands for a kernel that writes `bytes` there. */
void fill(void *at, uint32_t word, size_t bytes, CUstream stream)
{
    must(!cuMemsetD32Async((CUdeviceptr)at, word, bytes / sizeof word, stream), "cuMemsetD32Async");
}

/* CENOTE_OK, or CENOTE_OUT_OF_MEMORY: that one is for the caller to act on. */
int runtime_take(struct runtime *r, enum family family, size_t bytes, CUstream stream, void **block)
{
    int error = cenote_group_alloc(r->group[family], bytes, 512, stream, block);
    must(!error || error == CENOTE_OUT_OF_MEMORY, "cenote_group_alloc");
    return error;
}

void runtime_open(struct runtime *r, const cenote_options *options)
{
    CUcontext context;
    *r = (struct runtime){0};
    must(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxPushCurrent(context), "opening device 0");
    must(!cuStreamCreate(&r->prefill, CU_STREAM_NON_BLOCKING) && !cuStreamCreate(&r->decode, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    must(!cuEventCreate(&r->prefilled, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    must(!cenote_pool_create(0, options, &r->pool), "cenote_pool_create");
    must(!cenote_stream_set_immortal(r->pool, r->prefill) && !cenote_stream_set_immortal(r->pool, r->decode), "cenote_stream_set_immortal");
    for (int i = 0; i < FAMILIES; i++)
        must(!cenote_group_create(r->pool, families[i].name, families[i].flags, NULL, &r->group[i]), "cenote_group_create");
    for (int i = 0; i < LAYERS; i++) {
        must(!runtime_take(r, WEIGHTS, LAYER_WEIGHTS, r->decode, &r->weights[i]), "loading the weights");
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
        must(!cenote_group_reserved(r->group[i], &bytes), "cenote_group_reserved");
        if (bytes > r->most_reserved[i])
            r->most_reserved[i] = bytes;
    }
}

/* The weights are as they were loaded. */
static void check_weights(const struct runtime *r)
{
    uint32_t *words = malloc(LAYER_WEIGHTS);
    must(words, "malloc");
    for (int i = 0; i < LAYERS; i++) {
        must(!cuMemcpyDtoH(words, (CUdeviceptr)r->weights[i], LAYER_WEIGHTS), "cuMemcpyDtoH");
        for (size_t at = 0; at < LAYER_WEIGHTS / sizeof *words; at++)
            must(words[at] == WEIGHT, "a weight was overwritten: the check");
    }
    free(words);
}

void runtime_close(struct runtime *r)
{
    check_weights(r);
    for (int i = 0; i < LAYERS; i++)
        must(!cenote_free(r->weights[i]), "cenote_free");
    for (int i = 0; i < FAMILIES; i++)
        must(!cenote_group_destroy(r->group[i]), "cenote_group_destroy");
    must(!cenote_pool_destroy(r->pool), "cenote_pool_destroy");
    must(!cuEventDestroy(r->prefilled) && !cuStreamDestroy(r->prefill) && !cuStreamDestroy(r->decode), "closing the streams");
    must(!cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
}
