/*
 * shares.c: blocks exported, and imported by the process that exported them, as by any other: through the socket, under addresses of their
 * own. A share outlives its block: then it names nothing any more. An import outlives it, too, and keeps the memory until it is closed.
 */
#include "fuzz/ops/world.h"

#include <stdio.h>

/* While a capture is open on its device the last import of a range stays open. False: so it is. */
static bool let_go(struct world *w, struct share *s)
{
    bool captures = w->capturing >= 0 && w->pool[w->capturing].device == s->device;
    if (!s->here)
        return true;
    int error = cenote_import_close(s->here);
    world_say(w, "  closes %p: %s", s->here, cenote_error_name(error));
    if (error == CENOTE_BUSY && captures)
        return false;
    JUDGE(world_excuses(w, error));
    s->here = NULL;
    return true;
}

/* Not what is of an async pool, guarded or of the program's own source; nor, if a driver has refused such pages once, any other. */
static bool can_be_shared(const struct world *w, const struct block *b)
{
    int provider = cenote_pool_provider(w->pool[b->pool].pool);
    bool ours = b->group != GROUP_SOURCE && !(b->group == GROUPS && w->lends_source);
    return (provider == CENOTE_VMM || provider == CENOTE_PLAIN) && ours && !w->has_failed;
}

void share_export(struct world *w, struct share *s, struct block *b)
{
    if (!let_go(w, s))
        return;
    s->pattern = 0;
    size_t inside = input_byte(w->in) % b->bytes;
    int error = cenote_export(b->at + inside, &s->share);
    world_say(w, "  %p + %zu: %s", (void *)b->at, inside, cenote_error_name(error));
    JUDGE(world_excuses(w, error) || (error == CENOTE_NOT_SUPPORTED && !can_be_shared(w, b)));
    if (!error)
        *s = (struct share){.share = s->share, .block = (int)(b - w->block), .pattern = b->pattern, .inside = inside};
}

/* The same bytes under another address. */
static void judge_contents(struct world *w, const struct share *s)
{
    struct block seen = w->block[s->block];
    seen.at = (char *)s->here - s->inside;
    if (w->capturing < 0 && seen.readable && seen.graph < 0)
        block_read(w, &seen, seen.stream);
}

/* Private groups of a pool of pages may have memory of cuMemAlloc. */
static bool lies_in_segment(const struct world *w, const struct block *b)
{
    unsigned capable = 0;
    if (!b->at || cenote_pool_provider(w->pool[b->pool].pool) != CENOTE_VMM)
        return true;
    JUDGE(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, (CUdeviceptr)(uintptr_t)b->at) == CUDA_SUCCESS);
    return capable;
}

void share_import(struct world *w, struct share *s)
{
    const struct block *b = &w->block[s->block];
    bool lives = b->at && b->pattern == s->pattern;
    if (s->here) {
        let_go(w, s);
        return;
    }
    if (!s->pattern)
        return;
    int error = cenote_import(&s->share, sizeof s->share, w->pool[b->pool].device, &s->here);
    world_say(w, "  at %p: %s", s->here, cenote_error_name(error));
    if (error) {
        bool segment = lies_in_segment(w, b); /* of this process: it can be opened by others only */
        bool expected = !lives ? error == CENOTE_GONE : segment ? error == CENOTE_NOT_SUPPORTED : w->shape.address_space != 0;
        JUDGE(world_excuses(w, error) || expected);
        s->here = NULL;
        return;
    }
    JUDGE(lives);
    s->device = w->pool[b->pool].device;
    judge_contents(w, s);
}

/* No capture is open any more, and what a driver has refused to take back a later call of the kind offers again. */
void shares_close(struct world *w)
{
    void *here = NULL;
    for (int i = 0; i < SHARES; i++) {
        JUDGE(let_go(w, &w->share[i]));
        if (w->share[i].pattern)
            JUDGE(cenote_import(&w->share[i].share, sizeof w->share[i].share, 0, &here) == CENOTE_GONE);
        w->share[i].pattern = 0;
    }
}
