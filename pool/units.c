/*
 * units.c: one large page, or small ones? Decides it for the units (region.h) of a place that lacks pages.
 *
 * A small page loses less to a block that ends on it, and a call of the driver costs as much for it as for a large one. So a pool begins with small
 * pages, and makes large ones once it has needed as much as units_split_pages of them hold. Pages that are there already are used first, whatever
 * their size: where free pages of the one size are too few, units take those of the other. Otherwise what the pool held as small pages when it grew
 * large would be lost.
 *
 *     unit maps nothing, and no block lies there        IDLE     wide or split, as it is best
 *     every slot is idle or an alias that may go        LOOSE    the aliases go first, which takes calls of the driver and another attempt
 *     all others                                        stay as they are
 *
 * It chooses no pages (pick.c), and says nothing of heaps for small blocks, whose slots are no units. In a private arena no unit turns that has
 * a page of the arena's own, for that maps something and is fixed (rule 4). While a capture is open no alias goes, but idle units still turn: so a
 * capture draws what is free, whatever its size.
 *
 * LOCKING: the turn, and the pool's lock but where it says so.
 */
#include "pool/pool.h"

uint32_t units_split_pages = 128; /* chosen: docs/design.md; a constant, which tests change */

struct units {              /* those of a place */
    struct region *region;
    uint32_t       from, to;
};

static struct units units_of(struct region *r, struct slots under)
{
    return (struct units){r, under.from >> r->unit_shift, ((under.to - 1) >> r->unit_shift) + 1};
}

static bool is_wide(const struct region *r, uint32_t unit) { return bit_is_set(r->wide, unit); }

static bool slot_is_idle(const struct region *r, uint32_t slot)
{
    return !r->page[slot] && !r->edges[slot] && !r->pins[slot] && !bit_is_set(r->transit, slot) && !bit_is_set(r->broken, slot);
}

static bool unit_is_idle(const struct region *r, uint32_t unit)
{
    uint32_t slot = unit << r->unit_shift, end = slot + (1u << r->unit_shift);
    while (slot < end && slot_is_idle(r, slot))
        slot++;
    return slot == end;
}

/* Not idle, but it would be without its aliases. */
static bool unit_is_loose(const cenote_pool *pool, const struct region *r, uint32_t unit)
{
    uint32_t slot = unit << r->unit_shift, end = slot + (1u << r->unit_shift), aliases = 0;
    for (; slot < end && (slot_is_idle(r, slot) || (!r->edges[slot] && aliases_may_go(pool, r, slot))); slot++)
        aliases += r->page[slot] != 0;
    return slot == end && aliases;
}

/* All idle units become wide, or split. How many are there? */
static uint32_t set_idle(const struct units *u, bool wide)
{
    uint32_t idle = 0;
    for (uint32_t unit = u->from; unit < u->to; unit++) {
        if (!unit_is_idle(u->region, unit))
            continue;
        if (is_wide(u->region, unit) != wide)
            region_set_wide(u->region, unit, wide);
        idle++;
    }
    return idle;
}

/* So many idle units become wide, or split; from the end, where the rest of the place is. How many did not? */
static uint32_t turn_idle(const struct units *u, bool wide, uint32_t count)
{
    for (uint32_t unit = u->to; unit-- > u->from && count;)
        if (is_wide(u->region, unit) != wide && unit_is_idle(u->region, unit)) {
            region_set_wide(u->region, unit, wide);
            count--;
        }
    return count;
}

/* Free pages of that size that could move there, `most` at most. */
static uint32_t count_free(struct pages *s, const struct requester *who, uint32_t shift, uint32_t most)
{
    struct picker k = {.who = who, .only_shift = shift, .latest = s->fences.now, .most = most};
    pages_pick(s, &k);
    return k.count;
}

/* Pages that the place lacks: [false] small ones, [true] large ones. Those that it has are met, so that they do not count as free. */
static void count_lack(struct pages *s, const struct requester *who, const struct region *r, struct slots under, uint32_t lack[2])
{
    bool blocked;
    lack[false] = lack[true] = 0;
    pages_look_anew(s);
    for (uint32_t slot = under.from; slot < under.to; slot += region_span(r, slot))
        if (pages_lack(s, who, r, slot, &blocked))
            lack[region_is_wide(r, slot)]++;
        else
            page_of(s, r->page[slot])->met = s->epoch;
}

/*
 * The free pages of one size are too few, and there are others: which units take those? *wide: they become wide. How many: so many that no page has
 * to be created, if there are enough.
 */
static uint32_t count_turns(struct pages *s, const struct requester *who, const struct region *r, struct slots under, uint64_t news, bool *wide)
{
    uint32_t lack[2], slots = 1u << r->unit_shift, units = ((under.to - 1) >> r->unit_shift) - (under.from >> r->unit_shift) + 1;
    count_lack(s, who, r, under, lack);
    if (news >= ((uint64_t)lack[false] << r->shift) + ((uint64_t)lack[true] << r->shift << r->unit_shift))
        return 0; /* the pool grows instead */
    uint32_t large = count_free(s, who, r->shift + r->unit_shift, lack[true] + units);
    uint32_t small = count_free(s, who, r->shift, lack[false] + units * slots);
    *wide = lack[true] <= large;
    uint32_t missing = *wide ? (lack[false] > small ? (lack[false] - small + slots - 1) / slots : 0) : lack[true] - large;
    uint32_t there = *wide ? large - lack[true] : small > lack[false] ? (small - lack[false]) / slots : 0;
    return missing < there ? missing : there;
}

/* Does a pool that has needed so much make large pages? */
bool units_are_wide(const cenote_pool *pool, uint64_t need)
{
    return need > (uint64_t)units_split_pages << pool->store.pages.shift;
}

/*
 * Before a plan for the place, which lacks pages. `news`: bytes that the pool grows by rather than have pages move. The slots under the place may be
 * others then. True: with units_loosen more units could take pages that are free, and with them another attempt is due.
 */
bool units_choose(cenote_pool *pool, const struct requester *who, struct place *place, uint64_t need, uint64_t news, struct units_turn *turn)
{
    struct pages *s = &pool->store.pages;
    struct region *r = region_of(s, place->region);
    bool wide = units_are_wide(pool, need);
    *turn = (struct units_turn){.region = r};
    if (!r->unit_shift || (wide && !s->small && !r->split_units))
        return false;
    struct units u = units_of(r, place->under);
    bool any = set_idle(&u, wide);
    for (uint32_t unit = u.from; unit < u.to && !any && who->may_unmap; unit++)
        any = unit_is_loose(pool, r, unit);
    place->under = slots_under(r, place->at, place->size);
    if (!any || who->orderable)
        return false;
    uint32_t turns = count_turns(s, who, r, place->under, news, &turn->wide);
    turn->count = turn_idle(&u, turn->wide, turns);
    turn->from = u.from;
    turn->to = u.to;
    place->under = slots_under(r, place->at, place->size);
    return turn->count && who->may_unmap;
}

/* Takes the aliases out of loose units, so that they are idle. False: there were none, or the driver refuses. LOCKING: not the pool's lock. */
bool units_loosen(cenote_pool *pool, const struct units_turn *turn)
{
    struct region *r = turn->region;
    uint32_t left = turn->count;
    for (uint32_t unit = turn->from; unit < turn->to && left; unit++) {
        lock_take(&pool->lock);
        bool goes = is_wide(r, unit) != turn->wide && unit_is_loose(pool, r, unit);
        lock_give(&pool->lock);
        uint32_t slot = unit << r->unit_shift, end = slot + (1u << r->unit_shift);
        for (; goes && slot < end; slot++)
            goes = !r->page[slot] || aliases_drop_at(pool, r, slot);
        left -= goes;
    }
    return left != turn->count;
}
