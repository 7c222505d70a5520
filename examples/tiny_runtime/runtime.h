/*
 * runtime.h: a small inference server on the C API of cenote. docs/custom-runtime.md walks through it.
 *
 *     main.c      serves the same requests with memory from pages, from a driver's pool and from cuMemAlloc; prints two tables
 *     server.c    requests: admitted, decoded, evicted, cancelled, refused
 *     kv.c        the KV cache of one sequence: grows by tokens, goes as a whole
 *     prefill.c   a prompt, on a stream of its own: activations of a size that no other prompt has
 *     decode.c    one CUDA graph for each batch size
 *     runtime.c   the pool, its groups, the streams, the weights
 *
 * No kernel runs, so that the program needs no GPU: fills and copies stand where kernels would write and read. That is enough to prove that
 * no byte of a KV cache is overwritten while its sequence lives, and that replays of a graph touch memory of graphs alone.
 *
 * One thread does everything; the device has two streams to work on. Nothing here is locked.
 */
#ifndef TINY_RUNTIME_H
#define TINY_RUNTIME_H

#include <cenote/cenote.h>

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

enum { LAYERS = 8, WIDTH = 512, HEADS = 16, KV_WIDTH = 1024, VOCABULARY = 32000 };
enum { BATCH_SIZES = 4, BATCH_MAX = 1 << (BATCH_SIZES - 1) };       /* 1, 2, 4 and 8 sequences */

/* ----------------------------------------------------------------------------------------------------------------------- runtime.c */

enum family { WEIGHTS, KV, ACTIVATIONS, GRAPHS, FAMILIES };

struct runtime {
    cenote_pool  *pool;
    cenote_group *group[FAMILIES];
    uint64_t      most_reserved[FAMILIES];  /* at the end of a step */
    CUstream      prefill, decode;
    CUevent       prefilled;
    void         *weights[LAYERS];
};

void runtime_open(struct runtime *r, const cenote_options *options);
void runtime_close(struct runtime *r);
int  runtime_take(struct runtime *r, const cenote_request *request, void **block);
void runtime_note(struct runtime *r);
const char *family_name(enum family family);
void fill(void *at, uint32_t word, size_t bytes, CUstream stream);

/* What goes wrong, and is not memory running out, ends the program: a call, of cenote or CUDA, that does not return 0; a thing that has to hold. */
#define DONE(call) done((call), #call)
void done(int error, const char *call);
void must(bool holds, const char *what);

/* ---------------------------------------------------------------------------------------------------------------------------- kv.c */

enum { TOKEN_BYTES = LAYERS * KV_WIDTH * 2 * 2, SPAN_TOKENS = 32, SPANS_MAX = 16 };    /* keys and values, two bytes each */

/* The KV cache of one sequence: a span for the prompt, and one more for every SPAN_TOKENS that it has answered. */
struct kv {
    struct span { void *at; int tokens; } spans[SPANS_MAX];
    int count;      /* of spans */
    int room;       /* tokens that fit into them */
    int tokens;     /* of these, written */
};

int  kv_grow(struct runtime *r, struct kv *kv, int tokens, uint32_t owner, CUstream stream);
void kv_write(struct kv *kv, int tokens, uint32_t owner, CUstream stream);
void kv_check(const struct kv *kv, uint32_t owner, CUstream stream);
void kv_drop(struct runtime *r, struct kv *kv);

/* ------------------------------------------------------------------------------------------------------------- prefill.c, decode.c */

int prefill(struct runtime *r, struct kv *kv, int tokens, uint32_t owner);

struct decoder {
    CUgraphExec graph[BATCH_SIZES];
    void       *in, *out;       /* a token for each sequence of the batch */
};

void decoder_open(struct decoder *d, struct runtime *r);
void decoder_step(struct decoder *d, struct runtime *r, uint32_t *tokens, int count);
void decoder_close(struct decoder *d);

/* ------------------------------------------------------------------------------------------------------------------------ server.c */

struct outcome { int served, cancelled, refused, evictions, recomputed, steps; };

struct outcome serve(struct runtime *r);

#endif
