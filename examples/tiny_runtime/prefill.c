/*
 * prefill.c: a prompt becomes a KV cache, on a stream of its own, while the decode stream goes on with other sequences.
 *
 * The activations of a prompt are as long as the prompt, and the scores of its attention grow with the square of that: hardly any size comes twice.
 * Each layer frees them at once, with the device far behind. That is safe because it is the order of the stream, and the next layer gets the same
 * memory without asking the driver.
 */
#include "runtime.h"

enum { NOISE = 0x7fc07fc0 };

static int run_layer(struct runtime *r, size_t tokens)
{
    size_t hidden_bytes = tokens * WIDTH * 2 * 14, scores_bytes = HEADS * tokens * tokens * 2;
    void *hidden, *scores;
    cenote_request request = {.bytes = hidden_bytes, .group = r->group[ACTIVATIONS], .stream = r->prefill};
    int error = runtime_take(r, &request, &hidden);
    if (error)
        return error;
    request.bytes = scores_bytes;
    if (!(error = runtime_take(r, &request, &scores))) {
        fill(hidden, NOISE, hidden_bytes, r->prefill);
        fill(scores, NOISE, scores_bytes, r->prefill);
        DONE(cenote_free(scores));
    }
    DONE(cenote_free(hidden));
    return error;
}

/*
 * The decode stream may use the cache from now on: it waits for the prompt on the device, not on the host. Not CENOTE_OK: there is not enough
 * memory, and the cache is empty.
 */
int prefill(struct runtime *r, struct kv *kv, int tokens, uint32_t owner)
{
    int error = kv_grow(r, kv, tokens, owner, r->prefill);
    for (int layer = 0; layer < LAYERS && !error; layer++)
        error = run_layer(r, (size_t)tokens);
    if (error) {
        kv_drop(r, kv);
        return error;
    }
    kv_write(kv, tokens, owner, r->prefill);
    DONE(cuEventRecord(r->prefilled, r->prefill));
    DONE(cuStreamWaitEvent(r->decode, r->prefilled, 0));
    return CENOTE_OK;
}
