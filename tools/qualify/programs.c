/*
 * programs.c: random programs on a small pool of cenote. Kernels on several streams write and read the blocks.
 *
 * A program allocates and frees blocks of random sizes on random streams, so that pages move between the streams' arenas all the time. A kernel fills
 * each block with a pattern of its own. Before the free, a kernel counts the words that differ: on the block's stream, or on one that waits for it.
 */
#include <cenote/cenote.h>

#include "base/clock.h"
#include "tools/qualify/qualify.h"

#define BLOCKS 48u
#define STEPS_OF_PROGRAM 1500u
#define TRIM_EVERY 300u
#define LIMIT_MAX (64ull << 20)     /* bytes of the pool */
#define SMALLEST_SHIFT 9
#define WAIT_MAX 50000u        /* ns */

struct block {
    void    *at;        /* NULL: the entry is free */
    size_t   bytes;
    uint64_t pattern;
    unsigned stream;
};

struct program {
    struct card *card;
    cenote_pool *pool;
    uint64_t     limit;
    uint64_t     random;
    struct block blocks[BLOCKS];
    CUevent      event;
    struct programs_result *result;
};

/* splitmix64 */
static uint64_t draw(struct program *p, uint64_t below)
{
    uint64_t z = p->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static enum outcome cenote_failed(struct card *card)
{
    card_note(card, "%s", cenote_message());
    return FAILS;
}

/* Counts the words of the block that differ, on its stream or on one that waits for it, and frees the block at once. */
static enum outcome end_block(struct program *p, struct block *b)
{
    struct card *card = p->card;
    unsigned reader = (unsigned)draw(p, QUALIFY_STREAMS);
    CUstream own = card->streams[b->stream], other = card->streams[reader];
    if (reader != b->stream) {
        TRY(card->d->cuEventRecord(p->event, own));
        TRY(card->more.cuStreamWaitEvent(other, p->event, 0));
        if (cenote_use(b->at, other))
            return cenote_failed(card);
    }
    TRY(card_count(card, other, (CUdeviceptr)b->at, b->bytes, b->pattern));
    if (cenote_free(b->at))
        return cenote_failed(card);
    b->at = NULL;
    return HOLDS;
}

/* Frees the blocks from entry `from` on. */
static enum outcome end_some(struct program *p, unsigned from)
{
    enum outcome outcome = HOLDS;
    for (unsigned i = from; i < BLOCKS && outcome == HOLDS; i++)
        if (p->blocks[i].at)
            outcome = end_block(p, &p->blocks[i]);
    return outcome;
}

/* Small and large sizes are equally likely. If the pool is full, frees half of the blocks instead. */
static enum outcome make_block(struct program *p, struct block *b)
{
    struct card *card = p->card;
    unsigned shift = SMALLEST_SHIFT;
    while (p->limit >> 3 >> shift > 1 && draw(p, 8))
        shift++;
    b->bytes = ((1ull << shift) + draw(p, 1ull << shift)) & ~7ull;
    b->stream = (unsigned)draw(p, QUALIFY_STREAMS);
    b->pattern = card_pattern(card);
    int error = cenote_alloc(p->pool, b->bytes, card->streams[b->stream], &b->at);
    if (error == CENOTE_OUT_OF_MEMORY) {
        b->at = NULL;
        return end_some(p, BLOCKS / 2);
    }
    if (error)
        return cenote_failed(card);
    p->result->blocks++;
    p->result->bytes += b->bytes;
    if (!draw(p, 4))
        TRY(card_wait(card, card->streams[b->stream], draw(p, WAIT_MAX)));
    TRY(card_write(card, card->streams[b->stream], (CUdeviceptr)b->at, b->bytes, b->pattern));
    return HOLDS;
}

static enum outcome run(struct program *p)
{
    struct card *card = p->card;
    enum outcome outcome = HOLDS;
    for (unsigned i = 1; i <= STEPS_OF_PROGRAM && outcome == HOLDS; i++) {
        struct block *b = &p->blocks[draw(p, BLOCKS)];
        outcome = b->at ? end_block(p, b) : make_block(p, b);
        if (i % TRIM_EVERY == 0 && cenote_pool_trim(p->pool, 0, 0))
            outcome = cenote_failed(card);
    }
    if (outcome == HOLDS)
        outcome = end_some(p, 0);
    for (int i = 0; i < QUALIFY_STREAMS && outcome == HOLDS; i++)
        TRY(card->more.cuStreamSynchronize(card->streams[i]));
    return outcome;
}

static enum outcome run_on_pool(struct program *p, bool aliases_off)
{
    struct card *card = p->card;
    uint64_t differences;
    cenote_options options;
    size_t free_bytes, total;
    TRY(card->d->cuMemGetInfo(&free_bytes, &total));
    p->limit = free_bytes / 4 < LIMIT_MAX ? free_bytes / 4 : LIMIT_MAX;
    if (cenote_options_default(&options))
        return cenote_failed(card);
    options.limit = p->limit;
    if (aliases_off)
        options.aliases = CENOTE_ALIASES_OFF;
    if (cenote_pool_create(card->ordinal, &options, &p->pool))
        return cenote_failed(card);
    for (int i = 0; i < QUALIFY_STREAMS; i++) /* lets cenote record events on them */
        if (cenote_stream_set_immortal(p->pool, card->streams[i]))
            return cenote_failed(card);
    enum outcome outcome = run(p);
    if (outcome != HOLDS)
        return outcome;
    TRY(card_differences(card, &differences));
    if (card_judge(card, differences) == FAILS)
        return FAILS;
    return cenote_pool_destroy(p->pool) ? cenote_failed(card) : HOLDS;
}

enum outcome programs_run(struct card *card, const struct plan *plan, struct programs_result *result)
{
    uint64_t end = clock_ns() + plan->seconds * 1000000000ull;
    enum outcome outcome;
    CUevent event;
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    do {
        struct program p = {.card = card, .random = plan->seed + result->programs, .event = event, .result = result};
        outcome = run_on_pool(&p, plan->aliases_off);
        result->programs++;
    } while (outcome == HOLDS && clock_ns() < end);
    TRY(card->d->cuEventDestroy(event));
    if (outcome == HOLDS && plan->aliases_off)
        card_note(card, "with aliases:off");
    return outcome;
}
