/*
 * pick.c: picks the free pages that move next, or go back to the driver: those that were freed longest ago. They are likeliest to be complete, and
 * to be missed last at their old places. The other walks over all pages are here, too: sums and validity.
 *
 * Pages are found at their homes, by the word of bits: only free ones are looked at one by one. Of those the `most` oldest are kept in a
 * binary heap with the youngest on top, so that a look costs no memory but the caller's array.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "base/check.h"
#include "pool/core/pages.h"

#define LAST (1ull << 63)   /* added to the tick of a page that the stream has to wait for: all others go before */

/* Of pages freed at one tick the lower number is the older: a range that moved as a whole moves in the same order again. */
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
static bool may_leave_slot(const struct pages *s, const struct requester *who, const struct page *p, tick freed, uint32_t arena)
{
    const struct region *r = p->home.region ? region_of(s, p->home.region) : NULL;
    return !r || (who->may_unmap && !p->fixed && !bit_is_set(r->broken, p->home.slot) &&
                  fence_has_passed(&s->fences, freed, arena) && fence_has_passed(&s->fences, r->freed[p->home.slot], r->arena));
}

/* As requester_comes_after, also true if the stream of the requester can be made to wait (`orderable`). */
static bool may_come_after(const struct pages *s, const struct requester *who, tick freed, uint32_t arena)
{
    return freed <= who->orderable || requester_comes_after(s, who, freed, arena);
}

/* The stream of the requester has to wait for what was freed up to here, before it may have that free page. 0: for nothing. */
tick pages_behind(const struct pages *s, const struct requester *who, uint32_t page)
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
    return k->segments || ((!k->skip_shift || p->bytes != 1ull << k->skip_shift) && (!k->only_shift || p->bytes == 1ull << k->only_shift));
}

static bool is_eligible(const struct pages *s, const struct picker *k, const struct page *p, tick freed, uint32_t arena)
{
    if (p->pins || p->leaving || freed > k->latest || !is_of_size(k, p))
        return false;
    if (!k->who)
        return !p->fixed && fence_has_passed(&s->fences, freed, arena);
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
bool pages_may_be_taken(const struct pages *s, const struct picker *k, uint32_t page)
{
    const struct page *p = page_of(s, page);
    const struct region *r = p->home.region ? region_of(s, p->home.region) : NULL;
    bool sole = r && bit_is_set(r->sole, p->home.slot);
    if (sole ? bit_is_set(r->busy, p->home.slot) : p->owner.region)
        return false;
    return is_eligible(s, k, p, sole ? r->freed[p->home.slot] : r || !k->who ? p->freed : 0, sole ? r->arena : p->arena);
}

/* Pages that may be free, by the word. */
static uint64_t maybe_free(const struct region *r, uint32_t word)
{
    return r->home[word] & ~(r->sole[word] & r->busy[word]);
}

/* Bytes of free pages of a region, spares aside; *stays: of those that neither move nor go, pinned or of a private arena. */
uint64_t pages_free(const struct pages *s, const struct region *r, uint64_t *stays)
{
    uint64_t bytes = *stays = 0;
    for (uint32_t w = 0; w < bits_words(r->slots); w++) {
        for (uint64_t free = maybe_free(r, w); free; free &= free - 1) {
            uint32_t slot = w * 64 + (uint32_t)__builtin_ctzll(free);
            const struct page *p = page_of(s, r->page[slot]);
            bool owned = !bit_is_set(r->sole, slot) && p->owner.region;
            bytes += owned ? 0 : p->bytes;
            *stays += !owned && (p->fixed || p->pins) ? p->bytes : 0;
        }
    }
    return bytes;
}

/* The pages of one word. How many. */
static uint32_t pick_in_word(struct pages *s, struct picker *k, const struct region *r, uint32_t word)
{
    uint32_t count = 0;
    for (uint64_t free = maybe_free(r, word); free; free &= free - 1, count++) {
        uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(free);
        const struct page *p = page_of(s, r->page[slot]);
        if (bit_is_set(r->sole, slot))
            consider(s, k, r->page[slot], r->freed[slot], r->arena);
        else if (!p->owner.region)
            consider(s, k, r->page[slot], p->freed, p->arena);
    }
    return count;
}

/* Goes through the region that the picker is at. A region without a page that may be free is unlisted, if there was no pause in it. */
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
 * Fills in the picks: up to `most` pages, those that were freed longest ago, in no order. For a move spares count as never used and go before all
 * others; so `latest` 0, when the pool grows instead, leaves only spares and pages never used. Without `picks` they are only counted. Looks at some
 * `most` pages; true: there are more. With the turn the lock may be let go of between: regions and spares stay as they are then.
 */
bool pages_pick_some(struct pages *s, struct picker *k, uint32_t most)
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
void pages_pick_sort(struct picker *k)
{
    if (k->picks)
        sort_oldest_first(k);
}

/* All at once. */
void pages_pick(struct pages *s, struct picker *k)
{
    k->begun = false;
    while (pages_pick_some(s, k, UINT32_MAX)) {}
    pages_pick_sort(k);
}

/* Of the slots [from, to) of a region. */
void pages_sum_slots(struct pages *s, const struct region *r, uint32_t from, uint32_t to, struct pages_sums *sums)
{
    for (uint32_t slot = from; (slot = bits_next(r->home, slot, to, true)) < to; slot++) {
        struct page *p = page_of(s, r->page[slot]);
        bool sole = bit_is_set(r->sole, slot);
        bool owned = sole ? bit_is_set(r->busy, slot) : p->owner.region != 0;
        bool frozen = p->fixed || p->pins;
        sums->owned += owned;
        sums->free += !owned;
        sums->aliased += p->maps > 1;
        sums->frozen += frozen;
        if (owned || p->fixed || region_is_segment(r))
            continue;
        bool done = fence_has_passed(&s->fences, sole ? r->freed[slot] : p->freed, sole ? r->arena : p->arena);
        *(frozen ? &sums->pinned : done ? &sums->harvestable : &sums->in_flight) += p->bytes;
    }
}

void pages_sum_spares(const struct pages *s, struct pages_sums *sums)
{
    sums->free += s->spares;
    sums->harvestable += s->spare_bytes;
}

/* Invariants of one slot, see docs/invariants.md. */
static const char *broken_rule_at(struct pages *s, struct region *r, uint32_t slot)
{
    uint32_t page = r->page[slot];
    if (region_first(r, slot) != slot)
        return page || bit_is_set(r->home, slot) || !bit_is_set(r->sole, slot) || r->edges[slot] || r->pins[slot] ?
               "29: the first slot of a joined unit speaks for it" : NULL;
    bool sole = bit_is_set(r->sole, slot), busy = bit_is_set(r->busy, slot), transit = bit_is_set(r->transit, slot);
    if (!page)
        return sole || bit_is_set(r->home, slot) ? "1: a slot without a page has no home or sole bit" :
               busy && !transit ? "2: live bytes lie on a page" : NULL;

    struct page *p = page_of(s, page);
    if (r->freed[slot] > s->fences.now)
        return "14: nothing was freed in the future";
    if (bit_is_set(r->home, slot) != slot_ref_is(p->home, r->number, slot))
        return "4: a page has one home, and the bit says where";
    if (sole)
        return p->maps != 1 || p->owner.region || transit ? "5: a sole page is mapped once and its slot speaks for it" : NULL;
    if (busy && !transit && !slot_ref_is(p->owner, r->number, slot))
        return "3: live bytes own the page they lie on";
    if (!busy && !transit && slot_ref_is(p->owner, r->number, slot))
        return "3: only live bytes own a page";
    return NULL;
}

static const char *broken_rule_of_page(struct pages *s, uint32_t page)
{
    struct page *p = page_of(s, page);
    uint32_t maps = 0, pins = 0;
    bool fixed = p->owner.region && bit_is_set(region_of(s, p->owner.region)->transit, p->owner.slot);
    for (struct slot_ref at = p->home; at.region; at = region_of(s, at.region)->next_alias[at.slot]) {
        if (region_of(s, at.region)->page[at.slot] != page || ++maps > p->maps)
            return "6: the chain of a page lists the slots that map it";
        if (!region_is_segment(region_of(s, at.region)) && p->bytes != region_page_bytes(region_of(s, at.region), at.slot))
            return "28: a page is as large as its place";
        pins += region_of(s, at.region)->pins[at.slot];
        fixed = fixed || (region_of(s, at.region)->fixed && region_of(s, at.region)->arena == p->arena);
    }
    if (maps > 1 && s->mapped_once)
        return "25: with aliases:off no page is mapped twice";
    if (p->fixed && !fixed && !BREAKS(4)) /* nor on its way there */
        return "24: a fixed page is mapped by the private arena that it names";
    return maps != p->maps ? "6: the chain of a page lists the slots that map it" :
           pins != p->pins ? "7: a page counts the pins of its slots" : NULL;
}

/* Of the slots [from, to) of the region; adds the bytes of the pages that are counted there. */
const char *pages_broken_slots(struct pages *s, struct region *r, uint32_t from, uint32_t to, uint64_t *bytes)
{
    const char *broken = NULL;
    for (uint32_t w = from / 64; !r->is_listed && w < bits_words(to); w++)
        if (maybe_free(r, w))
            return "23: a region in which a page may be free is listed";
    for (uint32_t slot = from; slot < to && !broken; slot++) {
        broken = broken_rule_at(s, r, slot);
        if (broken || !bit_is_set(r->home, slot))
            continue;
        broken = broken_rule_of_page(s, r->page[slot]);
        *bytes += page_of(s, r->page[slot])->bytes;
    }
    return broken;
}

/* With the bytes of all pages that slots are the home of. */
const char *pages_broken_sum(const struct pages *s, uint64_t bytes)
{
    uint64_t spare_bytes = 0;
    uint32_t spares = 0, before = 0;
    for (uint32_t page = s->spare; page; before = page, page = page_of(s, page)->next_spare) {
        if (page_of(s, page)->maps || page_of(s, page)->before_spare != before)
            return "8: a spare page is mapped nowhere, and knows its neighbours in the chain";
        spare_bytes += page_of(s, page)->bytes;
        spares++;
    }
    if (spare_bytes != s->spare_bytes || spares != s->spares)
        return "8: spare pages are counted";
    return bytes + spare_bytes != s->reserved ? "9: reserved counts every page" : !fences_are_valid(&s->fences) ? "15: fences are in order" : NULL;
}

const char *pages_broken_rule(struct pages *s)
{
    const char *broken = NULL;
    uint64_t bytes = 0;
    for (uint32_t number = 1; number < s->regions.used && !broken; number++)
        if (region_of(s, number))
            broken = pages_broken_slots(s, region_of(s, number), 0, region_of(s, number)->slots, &bytes);
    return broken ? broken : pages_broken_sum(s, bytes);
}
