/*
 * runtime.c: a training runtime of one page, on the C API of cenote.
 *
 * A transformer is trained for a few steps on sequences of changing length, so that hardly any size comes twice. Forward takes blocks for
 * each layer, backward gives them back in reverse order; a second stream brings the next batch. No kernel runs: only the memory is real.
 *
 * The program runs the same way on a real GPU and on a simulated one: it uses the libcuda.so.1 that the loader finds first. `make run` starts it
 * on a simulated GPU.
 */
#include <cenote/cenote.h>
#include <cenote/report.h>

#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 24, WIDTH = 1024, HEADS = 16, BATCH = 8, LAYER_WEIGHTS = 12 * WIDTH * WIDTH };

struct runtime {
    cenote_pool *pool;
    CUstream     compute, loader;
    CUevent      batch_ready;
    void        *weights[LAYERS], *moments[LAYERS];
};

struct layer {
    void *activations; /* live from forward to backward */
    void *scores;      /* of the attention: grows with the square of the length */
};

static void must(bool done, const char *what)
{
    if (done)
        return;
    printf("%s failed: %s\n", what, cenote_message());
    exit(1);
}

static void *take(struct runtime *r, size_t bytes, CUstream stream)
{
    void *block;
    must(cenote_alloc(r->pool, bytes, stream, &block) == CENOTE_OK, "cenote_alloc");
    return block;
}

static void give(void *block)
{
    must(cenote_free(block) == CENOTE_OK, "cenote_free");
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static cenote_stats stats_of(struct runtime *r)
{
    cenote_stats stats;
    must(cenote_pool_stats(r->pool, &stats) == CENOTE_OK, "cenote_pool_stats");
    return stats;
}

static void runtime_open(struct runtime *r)
{
    CUcontext context;
    must(!cuInit(0) && !cuDevicePrimaryCtxRetain(&context, 0) && !cuCtxPushCurrent(context), "opening device 0");
    must(!cuStreamCreate(&r->compute, 0) && !cuStreamCreate(&r->loader, 0), "cuStreamCreate");
    must(!cuEventCreate(&r->batch_ready, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    must(cenote_pool_create(0, NULL, &r->pool) == CENOTE_OK, "cenote_pool_create");
    must(!cenote_stream_set_immortal(r->pool, r->compute) && !cenote_stream_set_immortal(r->pool, r->loader), "cenote_stream_set_immortal");
    for (int i = 0; i < LAYERS; i++) {
        r->weights[i] = take(r, LAYER_WEIGHTS * 2, r->compute);
        r->moments[i] = take(r, LAYER_WEIGHTS * 8, r->compute);
    }
}

/* The batch belongs to the loader's stream. The compute stream waits for it, and cenote_use tells the pool that it uses the block, too. */
static void *load_batch(struct runtime *r, size_t tokens)
{
    void *batch = take(r, tokens * WIDTH * 2, r->loader);
    must(cenote_use(batch, r->compute) == CENOTE_OK, "cenote_use");
    must(!cuEventRecord(r->batch_ready, r->loader) && !cuStreamWaitEvent(r->compute, r->batch_ready, 0), "ordering the streams");
    return batch;
}

static void train_step(struct runtime *r, size_t length)
{
    size_t tokens = BATCH * length;
    struct layer layers[LAYERS];
    void *batch = load_batch(r, tokens);

    for (int i = 0; i < LAYERS; i++) {
        layers[i].activations = take(r, tokens * WIDTH * 2 * 14, r->compute);
        layers[i].scores = take(r, BATCH * HEADS * length * length * 2, r->compute);
    }
    for (int i = LAYERS - 1; i >= 0; i--) {
        void *gradient = take(r, tokens * WIDTH * 2 * 4, r->compute);
        void *weight_gradient = take(r, LAYER_WEIGHTS * 2, r->compute);
        give(layers[i].scores);
        give(layers[i].activations);
        give(gradient);
        give(weight_gradient);
    }
    give(batch);
    must(cenote_pool_step(r->pool) == CENOTE_OK, "cenote_pool_step");
}

static void runtime_close(struct runtime *r)
{
    for (int i = 0; i < LAYERS; i++) {
        give(r->weights[i]);
        give(r->moments[i]);
    }
    must(cenote_pool_destroy(r->pool) == CENOTE_OK, "cenote_pool_destroy");
    must(!cuEventDestroy(r->batch_ready) && !cuStreamDestroy(r->compute) && !cuStreamDestroy(r->loader), "closing the streams");
    must(!cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
}

int main(void)
{
    static const size_t lengths[] = {512, 384, 640, 448, 592, 512, 384, 640, 448, 592};
    struct runtime r;
    char text[8192];

    runtime_open(&r);
    printf("step  length  allocated, most   reserved   driver calls\n");
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        cenote_stats before = stats_of(&r);
        must(cenote_pool_reset_peaks(r.pool) == CENOTE_OK, "cenote_pool_reset_peaks");
        train_step(&r, lengths[i]);
        cenote_stats after = stats_of(&r);
        printf("%4zu  %6zu  %11.1f MiB  %5.1f MiB  %13llu\n", i + 1, lengths[i], mib(after.allocated.peak), mib(after.reserved.current),
               (unsigned long long)(after.driver_calls - before.driver_calls));
    }

    must(cenote_pool_trim(r.pool, 0, CENOTE_TRIM_WAIT) == CENOTE_OK, "cenote_pool_trim");
    cenote_stats stats = stats_of(&r);
    printf("\nAfter a trim: %.1f MiB allocated, %.1f MiB reserved.\n\n", mib(stats.allocated.current), mib(stats.reserved.current));
    if (cenote_stats_text(&stats, text, sizeof(text)))
        puts(text);
    runtime_close(&r);
    return 0;
}
