/*
 * kv.c: the KV cache of one sequence. It grows by spans as tokens come, and goes as a whole: when the sequence ends, is cancelled or evicted.
 *
 * The prompt's span is taken and written on the prefill stream, later spans on the decode stream; attention reads all of them on the decode stream.
 * So whatever stream a span was taken on, the decode stream uses it last, and kv_drop names that one.
 *
 * Every token's keys and values are filled with a word that says whose they are. kv_check reads them all back.
 */
#include "runtime.h"

#include <stdlib.h>

static uint32_t word_of(uint32_t owner, int token)
{
    return owner << 16 | (uint32_t)token;
}

/* The last span grows where it is, if it is of that stream. CENOTE_BUSY: it is not, or another block lies behind it. */
static int extend(struct runtime *r, struct kv *kv, int tokens, CUstream stream)
{
    struct span *last = kv->spans + kv->count - 1;
    bool may_grow = kv->count > 1 && stream == r->decode;
    int error = may_grow ? cenote_extend(last->at, (size_t)(last->tokens + tokens) * TOKEN_BYTES) : CENOTE_BUSY;
    if (error)
        return error;
    last->tokens += tokens;
    kv->room += tokens;
    return CENOTE_OK;
}

/* Room for `tokens` more. Not CENOTE_OK: there is no memory, and the cache is as it was. */
int kv_grow(struct runtime *r, struct kv *kv, int tokens, uint32_t owner, CUstream stream)
{
    cenote_request request = {.bytes = (size_t)tokens * TOKEN_BYTES, .group = r->group[KV], .stream = stream, .word = owner};
    void *at;
    int error = extend(r, kv, tokens, stream);
    if (error != CENOTE_BUSY)
        return error;
    must(kv->count < SPANS_MAX, "an answer has at most SPANS_MAX spans");
    error = runtime_take(r, &request, &at);
    if (error)
        return error;
    kv->spans[kv->count++] = (struct span){at, tokens};
    kv->room += tokens;
    return CENOTE_OK;
}

/* Stands for the kernels that write keys and values of the next `tokens`. There is room for them. */
void kv_write(struct kv *kv, int tokens, uint32_t owner, CUstream stream)
{
    int first = 0, end = kv->tokens + tokens;
    for (const struct span *s = kv->spans; s < kv->spans + kv->count; first += s++->tokens)
        for (; kv->tokens < end && kv->tokens < first + s->tokens; kv->tokens++)
            fill((char *)s->at + (size_t)(kv->tokens - first) * TOKEN_BYTES, word_of(owner, kv->tokens), TOKEN_BYTES, stream);
}

/* Every byte is what kv_write left there: no other sequence, no activation and no graph wrote to it. */
void kv_check(const struct kv *kv, uint32_t owner, CUstream stream)
{
    enum { WORDS = TOKEN_BYTES / sizeof(uint32_t) };
    int token = 0;
    for (const struct span *s = kv->spans; s < kv->spans + kv->count; s++) {
        size_t bytes = (size_t)s->tokens * TOKEN_BYTES;
        cenote_block span;
        DONE(cenote_find(s->at, &span));
        must(span.word == owner, "the pool knows whose span it is");
        uint32_t *words = malloc(bytes);
        must(words, "host memory");
        DONE(cuMemcpyDtoHAsync(words, (CUdeviceptr)s->at, bytes, stream));
        DONE(cuStreamSynchronize(stream));
        for (int i = 0; i < s->tokens && token < kv->tokens; i++, token++)
            for (int at = 0; at < WORDS; at++)
                must(words[i * WORDS + at] == word_of(owner, token), "a KV cache is as it was written");
        free(words);
    }
}

/* The device may still be reading it: nothing waits here. */
void kv_drop(struct runtime *r, struct kv *kv)
{
    for (int i = 0; i < kv->count; i++)
        DONE(cenote_free_on(kv->spans[i].at, r->decode));
    *kv = (struct kv){0};
}
