/*
 * blocks.c: what each block holds. It is filled on its stream when it is taken and compared there as the last thing before it is given back:
 * a second owner of the same bytes shows as contents that differ when the device gets there.
 */
#include "fuzz/ops/world.h"

#define STRIPE ((size_t)2048)
#define STRIDE (256 * KIB)

typedef CUresult (*launch_fn)(CUstream stream, CUdeviceptr at, uint64_t pattern, size_t bytes);

/* Small blocks whole; of large ones a stripe in every page, each with contents of its own, and the end. */
static void launch(launch_fn function, const struct block *b, CUstream stream)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)b->at;
    size_t words = b->bytes & ~(size_t)7;
    if (words <= 64 * KIB) {
        JUDGE(!words || function(stream, at, b->pattern, words) == CUDA_SUCCESS);
        return;
    }
    for (size_t from = 0; from + STRIPE <= words; from += STRIDE)
        JUDGE(function(stream, at + from, b->pattern + from, STRIPE) == CUDA_SUCCESS);
    if (words % STRIDE >= STRIPE + 512)
        JUDGE(function(stream, at + words - 512, b->pattern, 512) == CUDA_SUCCESS);
}

static bool overlaps(const struct block *a, const struct block *b)
{
    return a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

/* Pages begin at multiples of their size. Only those that move are known to be of that size; in private groups they may be large. */
bool block_has_its_pages(const struct world *w, const struct block *b)
{
    bool is_private = b->group != GROUPS && w->pool[b->pool].flags[b->group] & CENOTE_GROUP_PRIVATE;
    uintptr_t large = w->pool[b->pool].page_bytes, page = large < w->shape.granularity || is_private ? large : w->shape.granularity;
    uintptr_t from = (uintptr_t)b->at / page, to = ((uintptr_t)b->at + b->bytes - 1) / page;
    for (int i = 0; i < BLOCKS; i++) {
        const struct block *o = &w->block[i];
        if (o != b && o->at && o->pool == b->pool && (uintptr_t)o->at / page <= to && ((uintptr_t)o->at + o->bytes - 1) / page >= from)
            return false;
    }
    return true;
}

/* Every byte has one owner; so has every page, where a block has its pages to itself. */
void block_taken(struct world *w, struct block *b, struct block taken)
{
    for (int i = 0; i < BLOCKS; i++)
        JUDGE(!w->block[i].at || !overlaps(&w->block[i], &taken));
    *b = taken;
    b->pattern = ++w->serial * 0x9e3779b97f4a7c15u;
    b->readable = true;
    b->of = b->group < GROUPS ? w->pool[b->pool].group[b->group] : NULL;
    b->graph = world_is_capturing(w, b->pool, b->stream) ? w->graph : -1;
    w->pool[b->pool].requested += b->bytes;
    for (int i = 0; i < BLOCKS; i++)
        JUDGE(!w->block[i].at || !w->block[i].whole || block_has_its_pages(w, &w->block[i]));
    world_enter(w, w->pool[b->pool].device);
    launch(sim_launch_fill, b, world_stream(w, b->pool, b->stream));
}

void block_read(struct world *w, const struct block *b, int stream)
{
    world_enter(w, w->pool[b->pool].device);
    launch(sim_launch_expect, b, world_stream(w, b->pool, stream));
}

/* What a capture has not written, or not yet, it must not read; and what a graph wrote is compared by the graph and after its replays. */
static bool may_be_read(const struct world *w, const struct block *b)
{
    bool capturing = world_is_capturing(w, b->pool, b->stream);
    return b->readable && (b->graph < 0 ? !capturing : capturing && b->graph == w->graph);
}

void block_last_look(struct world *w, struct block *b)
{
    if (may_be_read(w, b))
        block_read(w, b, b->stream);
    b->readable = false;
}

void block_gone(struct world *w, struct block *b)
{
    b->was = b->at;
    b->at = NULL;
    w->pool[b->pool].requested -= b->bytes;
}

void block_give(struct world *w, struct block *b)
{
    void *at = b->at;
    block_last_look(w, b);
    block_gone(w, b);
    world_enter(w, w->pool[b->pool].device);
    if (w->serial % 3 == 0) {
        JUDGE(cenote_free_sized(at, b->bytes + 1) == CENOTE_WRONG_SIZE);
        JUDGE(cenote_free_sized(at, b->bytes) == CENOTE_OK);
    } else {
        JUDGE(cenote_free(at) == CENOTE_OK);
    }
}

struct block *block_any(struct world *w, bool live)
{
    struct block *b = &w->block[input_below(w->in, BLOCKS)];
    return (b->at != NULL) == live ? b : NULL;
}

/* A block and a stream that may read it; the context is current then. NULL: not these two, not now. */
struct block *block_to_read(struct world *w, int *reader)
{
    struct block *b = block_any(w, true);
    *reader = (int)input_below(w->in, STREAMS);
    if (!b || !b->readable || b->graph >= 0)
        return NULL;
    int device = w->pool[b->pool].device;
    bool captures = w->capturing >= 0 && w->pool[w->capturing].device == device;
    if (captures && (b->stream == CAPTURE_STREAM || *reader == CAPTURE_STREAM))
        return NULL;
    world_enter(w, device);
    return b;
}

void block_read_late(struct world *w, struct block *b, int reader, uint64_t late)
{
    b->shown = true;
    CUstream stream = world_stream(w, b->pool, reader);
    world_order(world_stream(w, b->pool, b->stream), stream);
    JUDGE(sim_launch_wait(stream, late) == CUDA_SUCCESS);
    block_read(w, b, reader);
}
