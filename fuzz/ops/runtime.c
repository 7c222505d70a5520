/*
 * runtime.c: the calls that a runtime makes beside allocations and frees: a block grows where it is, a group is emptied, pages are made
 * ahead, memory is pinned.
 */
#include "fuzz/ops/world.h"

/* The block grows where it is, if it can. Then its contents are others, so no other stream may read it. */
void runtime_extend(struct world *w, struct block *b, size_t more)
{
    if (!b->readable || b->shown || b->graph >= 0 || w->capturing >= 0)
        return;
    struct block longer = *b;
    longer.bytes += more;
    block_read(w, b, b->stream);
    int error = cenote_extend(b->at, longer.bytes);
    world_say(w, "  pool %d, %zu bytes at %p to %zu: %s", b->pool, b->bytes, (void *)b->at, longer.bytes, cenote_error_name(error));
    JUDGE(world_excuses(w, error) || error == CENOTE_OUT_OF_MEMORY || error == CENOTE_BUSY || error == CENOTE_INVALID ||
          error == CENOTE_OUT_OF_ADDRESSES); /* INVALID: its stream was retired, or its group destroyed */
    if (error)
        return;
    JUDGE(b->at == longer.at); /* the shortage callback gave away another one */
    block_gone(w, b);
    block_taken(w, b, longer);
    b->of = longer.of;
}

/* All blocks of the group. Of those in memory that it has lent, none is one. */
void runtime_reset_group(struct world *w, int pool, enum group group)
{
    if (!w->pool[pool].pool || w->capturing >= 0)
        return;
    for (int i = 0; i < BLOCKS; i++) {
        struct block *b = &w->block[i];
        if (!b->at || b->pool != pool || b->of != w->pool[pool].group[group])
            continue;
        block_last_look(w, b);
        block_gone(w, b);
    }
    world_enter(w, w->pool[pool].device);
    JUDGE(cenote_group_reset(w->pool[pool].group[group]) == CENOTE_OK);
}

void runtime_reserve(struct world *w, int pool, int stream, uint64_t bytes)
{
    if (!w->pool[pool].pool)
        return;
    world_enter(w, w->pool[pool].device);
    int error = cenote_pool_reserve(w->pool[pool].pool, bytes, world_stream(w, pool, stream));
    JUDGE(world_excuses(w, error) || error == CENOTE_OUT_OF_MEMORY || error == CENOTE_BUSY || error == CENOTE_OUT_OF_ADDRESSES ||
          error == CENOTE_CAPTURE || (error == CENOTE_NOT_SUPPORTED && cenote_pool_provider(w->pool[pool].pool) == CENOTE_GUARD));
}

/* Pinned memory may be touched whatever becomes of its block: that is what pins are for. */
void runtime_pin(struct world *w, struct pin *pin, const struct block *b, bool touch)
{
    if (!pin->at && b) {
        *pin = (struct pin){b->at, b->bytes, b->pool};
        JUDGE(cenote_pin(pin->at, pin->bytes) == CENOTE_OK);
    } else if (pin->at) {
        if (touch && w->capturing < 0) {
            world_enter(w, w->pool[pin->pool].device);
            JUDGE(sim_launch_touch(world_stream(w, pin->pool, 1), (CUdeviceptr)(uintptr_t)pin->at, pin->bytes) == CUDA_SUCCESS);
            JUDGE(cuStreamSynchronize(world_stream(w, pin->pool, 1)) == CUDA_SUCCESS);
        }
        JUDGE(cenote_unpin(pin->at, pin->bytes) == CENOTE_OK);
        pin->at = NULL;
    }
}
