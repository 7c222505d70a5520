/*
 * pages_check.c: walks over the pages of a pool, for sums and
 * for the invariants of docs/invariants.md. Nothing changes.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "base/check.h"
#include "pool/core/pages.h"

/*
 * Bytes of free pages of a region, spares aside; *stays: of those that neither move nor go, pinned or of a private
 * arena; *done: of the others, those with which the device is done.
 */
uint64_t pages_free(const struct pages *s, const struct region *r, uint64_t *stays, uint64_t *done)
{
    uint64_t bytes = *stays = *done = 0;
    for (uint32_t w = 0; w < bits_words(r->slots); w++) {
        for (uint64_t free = pages_maybe_free(r, w); free; free &= free - 1) {
            uint32_t slot = w * 64 + (uint32_t)__builtin_ctzll(free);
            const struct page *p = page_of(s, r->page[slot]);
            bool sole = bit_is_set(r->sole, slot), stuck = p->fixed || p->pins;
            if (p->wakefulness || (!sole && p->owner.region))
                continue;
            bytes += p->bytes;
            *stays += stuck ? p->bytes : 0;
            if (!stuck && fence_has_passed(s->fences, sole ? r->freed[slot] : p->freed, sole ? r->arena : p->arena))
                *done += p->bytes;
        }
    }
    return bytes;
}

/* Of the slots [from, to) of a region. */
void pages_sum_slots(struct pages *s, const struct region *r, uint32_t from, uint32_t to, struct pages_sums *sums)
{
    for (uint32_t slot = from; (slot = bits_next(r->home, slot, to, true)) < to; slot++) {
        struct page *p = page_of(s, r->page[slot]);
        bool sole = bit_is_set(r->sole, slot);
        bool owned = sole ? bit_is_set(r->busy, slot) : p->owner.region != 0;
        bool frozen = p->fixed || p->pins;
        if (p->wakefulness)
            continue;
        sums->owned += owned;
        sums->free += !owned;
        sums->aliased += p->maps > 1;
        sums->frozen += frozen;
        if (owned || p->fixed || region_is_segment(r))
            continue;
        bool done = fence_has_passed(s->fences, sole ? r->freed[slot] : p->freed, sole ? r->arena : p->arena);
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
    if (r->freed[slot] > s->fences->now)
        return "14: nothing was freed in the future";
    if (bit_is_set(r->home, slot) != slot_ref_is(p->home, r->number, slot))
        return "4: a page has one home, and the bit says where";
    if (sole)
        return p->maps != 1 || p->owner.region || transit ? "5: a sole page is mapped once and its slot speaks for it"
               : NULL;
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
        if (!region_is_segment(region_of(s, at.region)) &&
            p->bytes != region_page_bytes(region_of(s, at.region), at.slot))
            return "28: a page is as large as its place";
        pins += region_of(s, at.region)->pins[at.slot];
        fixed = fixed || (region_of(s, at.region)->fixed && region_of(s, at.region)->arena == p->arena);
    }
    if (maps > 1 && s->mapped_once)
        return "25: with aliases:off no page is mapped twice";
    if ((p->wakefulness && !p->leaving) || (p->copy && p->wakefulness < ASLEEP && !p->copy->is_constant))
        return "33: a page that sleeps is leaving, and others have no copy, but of what is constant";
    if (p->wakefulness == ASLEEP && !p->owner.region && !p->fixed)
        return "34: a page sleeps for a block or a graph";
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
        if (pages_maybe_free(r, w))
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
    return bytes + spare_bytes != s->reserved + s->asleep ? "9: reserved counts every page that does not sleep" : NULL;
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
