/*
 * decode.c: one step for a batch of sequences, as the replay of a CUDA graph. There is a graph for each batch size.
 *
 * What a capture allocates comes from the private group, whose addresses and memory stay as they are until the group is destroyed: a replay uses
 * them, although the blocks were freed when the capture ended. The largest batch is captured first, so that the others fit into what it left:
 * four graphs hold the memory of one. Two of them never run at the same time, because all are launched on the decode stream.
 *
 * Each layer copies the tokens into memory of its own, and the last one to `out`. If tokens come back, no replay missed its memory.
 */
#include "runtime.h"

#include <string.h>

static void *take(struct runtime *r, size_t bytes)
{
    void *block;
    DONE(cenote_alloc(r->pool, bytes, r->decode, &block));
    return block;
}

static void copy(void *to, const void *from, size_t bytes, CUstream stream)
{
    DONE(cuMemcpyDtoDAsync((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream));
}

/* The model, for `batch` sequences. */
static void run_layers(struct decoder *d, struct runtime *r, size_t batch)
{
    void *hidden = take(r, batch * WIDTH * 2 * 14);
    copy(hidden, d->in, batch * sizeof(uint32_t), r->decode);
    for (int layer = 1; layer < LAYERS; layer++) {
        void *next = take(r, batch * WIDTH * 2 * 14);
        copy(next, hidden, batch * sizeof(uint32_t), r->decode);
        DONE(cenote_free(hidden));
        hidden = next;
    }
    void *logits = take(r, batch * VOCABULARY * 4);
    copy(logits, hidden, batch * sizeof(uint32_t), r->decode);
    copy(d->out, logits, batch * sizeof(uint32_t), r->decode);
    DONE(cenote_free(logits));
    DONE(cenote_free(hidden));
}

static CUgraphExec capture(struct decoder *d, struct runtime *r, size_t batch)
{
    CUgraph graph;
    CUgraphExec exec;
    DONE(cenote_capture_begin(r->pool, r->group[GRAPHS], r->decode));
    DONE(cuStreamBeginCapture(r->decode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    run_layers(d, r, batch);
    DONE(cuStreamEndCapture(r->decode, &graph));
    DONE(cenote_capture_end(r->pool, r->group[GRAPHS], r->decode));
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cuGraphDestroy(graph));
    return exec;
}

void decoder_open(struct decoder *d, struct runtime *r)
{
    DONE(runtime_take(r, GRAPHS, BATCH_MAX * sizeof(uint32_t), r->decode, &d->in));
    DONE(runtime_take(r, GRAPHS, BATCH_MAX * sizeof(uint32_t), r->decode, &d->out));
    for (int size = BATCH_SIZES - 1; size >= 0; size--)
        d->graph[size] = capture(d, r, 1u << size);
}

/* One step for `count` sequences, by the smallest graph that has room for them. Their next tokens come back, as those that went in. */
void decoder_step(struct decoder *d, struct runtime *r, uint32_t *tokens, int count)
{
    uint32_t out[BATCH_MAX];
    int size = 0;
    while (1 << size < count)
        size++;
    for (int i = 0; i < count; i++)
        fill((uint32_t *)d->in + i, tokens[i], sizeof *tokens, r->decode);
    DONE(cuGraphLaunch(d->graph[size], r->decode));
    DONE(cuMemcpyDtoHAsync(out, (CUdeviceptr)d->out, sizeof *out * (size_t)count, r->decode));
    DONE(cuStreamSynchronize(r->decode));
    must(!memcmp(out, tokens, sizeof *out * (size_t)count), "the tokens of a graph are those that went in");
}

void decoder_close(struct decoder *d)
{
    for (int i = 0; i < BATCH_SIZES; i++)
        DONE(cuGraphExecDestroy(d->graph[i]));
    DONE(cenote_free(d->in));
    DONE(cenote_free(d->out));
}
