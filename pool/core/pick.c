/*
 * pick.c: picks the free pages that move next, or go back to the driver: those that were freed longest ago. They are
 * likeliest to be complete, and to be missed last at their old places.
 *
 * Pages are found at their homes, by the word of bits: only free ones are looked at one by one. Of those the `most`
 * oldest are kept in a binary heap with the youngest on top, so that a look costs no memory but the caller's array.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "pool/core/pick.h"

#include "base/check.h"

#define LAST (1ull << 63)   /* added to the tick of a page that the stream has to wait for: all others go before */

/*
 * Of pages freed at one tick the lower number is the older: a
 * range that moved as a whole moves in the same order again.
 */
static bool is_younger(struct pick a, struct pick b)
{
    return a.freed != b.freed ? a.freed > b.freed : a.page > b.page;
}

static void sift_down(struct pick *picks, uint32_t count, uint32_t at)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && is_younger(picks[child + 1], picks[child]))
            child++;
        if (is_younger(picks[at], picks[child]))
            return;
        struct pick held = picks[at];
        picks[at] = picks[child];
        picks[child] = held;
        at = child;
    }
}

static void keep_oldest(struct picker *k, tick freed, uint32_t page)
{
    struct pick pick = {freed, page};
    if (!k->picks) {
        k->count += k->count < k->most;
    } else if (k->count < k->most) {
        uint32_t at = k->count++;
        for (; at && is_younger(pick, k->picks[(at - 1) / 2]); at = (at - 1) / 2)
            k->picks[at] = k->picks[(at - 1) / 2];
        k->picks[at] = pick;
    } else if (k->most && is_younger(k->picks[0], pick)) {
        k->picks[0] = pick;
        sift_down(k->picks, k->count, 0);
    }
}

/* Youngest on top becomes oldest first. */
static void sort_oldest_first(struct picker *k)
{
    for (uint32_t left = k->count; left > 1; left--) {
        struct pick youngest = k->picks[0];
        k->picks[0] = k->picks[left - 1];
        k->picks[left - 1] = youngest;
        sift_down(k->picks, left - 1, 0);
    }
}

/* With aliases:off a page moves only if its old slot may be unmapped for it (rule 3). */
static bool may_leave_slot(const struct pages *s, const struct requester *who, const struct page *p, tick freed,
                           uint32_t arena)
{
    const struct region *r = p->home.region ? region_of(s, p->home.region) : NULL;
    return !r || (who->may_unmap && !p->fixed && !bit_is_set(r->broken, p->home.slot) &&
                  fence_has_passed(s->fences, freed, arena) &&
                  fence_has_passed(s->fences, r->freed[p->home.slot], r->arena));
}

/* As requester_comes_after, also true if the stream of the requester can be made to wait (`orderable`). */
static bool may_come_after(const struct pages *s, const struct requester *who, tick freed, uint32_t arena)
{
    return freed <= who->orderable || requester_comes_after(s, who, freed, arena);
}

/*
 * The stream of the requester has to wait for what was freed up
 * to here, before it may have that free page. 0: for nothing.
 */
tick pick_behind(const struct pages *s, const struct requester *who, uint32_t page)
{
    const struct page *p = page_of(s, page);
    const struct region *r = p->home.region ? region_of(s, p->home.region) : NULL;
    bool sole = r && bit_is_set(r->sole, p->home.slot);
    tick freed = sole ? r->freed[p->home.slot] : p->freed;
    return requester_comes_after(s, who, freed, sole ? r->arena : p->arena) ? 0 : freed;
}

/* A large page serves no small place, nor the other way round, because the driver maps a page only as a whole. */
static bool is_of_size(const struct picker *k, const struct page *p)
{
    return k->segments || ((!k->skip_shift || p->bytes != 1ull << k->skip_shift) &&
                           (!k->only_shift || p->bytes == 1ull << k->only_shift));
}

static bool is_eligible(const struct pages *s, const struct picker *k, const struct page *p, tick freed, uint32_t arena)
{
    if (p->pins || p->leaving || freed > k->latest || !is_of_size(k, p))
        return false;
    if (!k->who)
        return !p->fixed && fence_has_passed(s->fences, freed, arena);
    if (arena != k->who->arena && (p->fixed || !may_come_after(s, k->who, freed, arena)))
        return false;
    return !s->mapped_once || may_leave_slot(s, k->who, p, freed, arena);
}

static void consider(struct pages *s, struct picker *k, uint32_t page, tick freed, uint32_t arena)
{
    if (k->who && page_of(s, page)->met == s->epoch) /* the range that is being filled uses this page already */
        return;
    if (!is_eligible(s, k, page_of(s, page), freed, arena))
        return;
    bool waits = k->who && !requester_comes_after(s, k->who, freed, arena);
    keep_oldest(k, waits ? freed | LAST : freed, page);
}

/* May a page that was picked still move, or go back to the driver, although other threads had the lock? */
bool pick_may_take(const struct pages *s, const struct picker *k, uint32_t page)
{
    const struct page *p = page_of(s, page);
    const struct region *r = p->home.region ? region_of(s, p->home.region) : NULL;
    bool sole = r && bit_is_set(r->sole, p->home.slot);
    if (sole ? bit_is_set(r->busy, p->home.slot) : p->owner.region)
        return false;
    tick freed = sole ? r->freed[p->home.slot] : r || !k->who ? p->freed : 0;
    return is_eligible(s, k, p, freed, sole ? r->arena : p->arena);
}

/* The pages of one word. How many. */
static uint32_t pick_in_word(struct pages *s, struct picker *k, const struct region *r, uint32_t word)
{
    uint32_t count = 0;
    for (uint64_t free = pages_maybe_free(r, word); free; free &= free - 1, count++) {
        uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(free);
        const struct page *p = page_of(s, r->page[slot]);
        if (bit_is_set(r->sole, slot))
            consider(s, k, r->page[slot], r->freed[slot], r->arena);
        else if (!p->owner.region)
            consider(s, k, r->page[slot], p->freed, p->arena);
    }
    return count;
}

/*
 * Goes through the region that the picker is at. A region without a
 * page that may be free is unlisted, if there was no pause in it.
 */
static void pick_in_region(struct pages *s, struct picker *k, uint32_t *most)
{
    struct region *r = region_of(s, k->region);
    bool skip = (k->only_arena && r->arena != k->only_arena) || (k->skip_sources && r->foreign);
    for (; !skip && k->word < bits_words(r->slots) && *most; k->word++) {
        uint32_t count = pick_in_word(s, k, r, k->word);
        k->some |= count != 0;
        *most -= *most > count ? count + 1 : *most;
    }
    if (!skip && k->word < bits_words(r->slots)) {
        k->some = true;
        return;
    }
    k->region = r->next_listed;
    k->word = 0;
    if (!skip && !k->some)
        pages_unlist(s, r);
    k->some = false;
}

/*
 * Fills in the picks: up to `most` pages, those that were freed longest ago, in no order. For a move spares count as
 * never used and go before all others; so `latest` 0, when the pool grows instead, leaves only spares and pages never
 * used. Without `picks` they are only counted. Looks at some `most` pages; true: there are more. With the turn the lock
 * may be let go of between: regions and spares stay as they are then.
 */
bool pick_some(struct pages *s, struct picker *k, uint32_t most)
{
    if (!k->begun) {
        k->begun = true;
        k->count = k->word = 0;
        k->some = false;
        k->region = s->listed[k->segments];
        k->spare = k->segments || k->only_arena ? 0 : s->spare;
    }
    while (k->region && most)
        pick_in_region(s, k, &most);
    for (; !k->region && k->spare && most; k->spare = page_of(s, k->spare)->next_spare, most--) {
        const struct page *p = page_of(s, k->spare);
        if (!k->who || may_come_after(s, k->who, p->freed, p->arena))
            consider(s, k, k->spare, k->who ? 0 : p->freed, p->arena);
    }
    return k->region || k->spare;
}

/* Those that were freed longest ago come first. LOCKING: none. */
void pick_sort(struct picker *k)
{
    if (k->picks)
        sort_oldest_first(k);
}

/* All at once. */
void pick_pages(struct pages *s, struct picker *k)
{
    k->begun = false;
    while (pick_some(s, k, UINT32_MAX)) {}
    pick_sort(k);
}
