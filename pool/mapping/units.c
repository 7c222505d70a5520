/*
 * units.c: a large page, or small ones? Decides it for the units (region.h) of a place that lacks pages.
 *
 * A small page loses less to a block that ends on it, and a call of the driver costs as much for it as for a large one.
 * So a pool begins with small pages, and makes large ones once it has needed as much as units_grade_pages of them hold.
 * Pages that are there already are used first, whatever their size: where free pages of one size are too few, units
 * take those of the other. Otherwise what the pool held in small pages when it grew large would be lost. And if memory
 * is short and nothing else helps, a unit that has a large page and of which the place takes a part takes small ones.
 *
 *     nothing is mapped in the unit, and no block lies there    IDLE     takes the pages that are best
 *     every slot is idle or an alias that may go                LOOSE    the aliases go first: calls
 *                                                               of the driver, and another attempt
 *     all others                                                stay as they are
 *
 * It chooses no pages (pick.c), and says nothing of heaps for small blocks, whose slots are no units. In a private
 * arena no unit changes that has a page of the arena's own, for that maps something and is fixed (rule 4). While a
 * capture is open no alias goes, but idle units still change: so a capture draws what is free, whatever its size.
 *
 * LOCKING: the turn, and the pool's lock but where it says so.
 */
#include "pool/mapping/units.h"

#include "base/check.h"
#include "pool/mapping/aliases.h"

uint32_t units_grade_pages = GRADE_PAGES; /* a constant, which tests change */

/* A pass over the units of a place. */
struct pass {
    cenote_pool       *pool;
    struct region     *region;
    struct slots       under;              /* the slots under the place, whatever pages they have */
    uint32_t           from, to;           /* the units that these are in */
    uint32_t           grade;              /* what idle units become at first, */
    bool               any;                /* and whether there are some, or loose ones */
    bool               may_unmap, loosens; /* aliases may go */
    bool               splits;             /* so do large pages of which the place takes a part */
    uint32_t           lack[GRADES], free[GRADES]; /* pages that the place lacks, and that could come */
    struct loosening *loosening;
};

static uint32_t first_of(const struct region *r, uint32_t unit) { return unit << r->unit_shift; }

static enum grade grade_in(const struct region *r, uint32_t unit) { return pages_grade_at(r, first_of(r, unit)); }

static bool slot_is_idle(const struct region *r, uint32_t slot)
{
    return !r->page[slot] && !r->edges[slot] && !r->pins[slot] && !bit_is_set(r->transit, slot) &&
           !bit_is_set(r->broken, slot);
}

/* Slot by slot without a branch: a place may have ten thousand such units. */
static bool is_idle(const struct region *r, uint32_t unit)
{
    uint32_t from = first_of(r, unit), to = first_of(r, unit + 1);
    uint32_t any = bits_any_set(r->transit, from, to) || bits_any_set(r->broken, from, to);
    for (uint32_t slot = from; slot < to; slot++)
        any |= r->page[slot] | r->edges[slot] | r->pins[slot];
    return !any;
}

/* Not idle, but it would be without its aliases. */
static bool is_loose(const cenote_pool *pool, const struct region *r, uint32_t unit)
{
    uint32_t slot = first_of(r, unit), end = first_of(r, unit + 1), aliases = 0;
    for (; slot < end && (slot_is_idle(r, slot) || (!r->edges[slot] && aliases_may_go(pool, r, slot))); slot++)
        aliases += r->page[slot] != 0;
    return slot == end && aliases;
}

/*
 * The unit with the top of the region in it takes small pages, for no page reaches beyond the top (invariant 30).
 * Whether the top will move is not known yet: the plan may fail.
 */
static bool has_top(const struct region *r, uint32_t unit)
{
    uint32_t top = (uint32_t)((r->top - r->base) >> r->shift);
    return first_of(r, unit) < top && top < first_of(r, unit + 1);
}

/* Visits the units under the place, from the end, where the rest of the place is. */
static void visit_units(struct pass *p, void (*visit)(struct pass *, uint32_t))
{
    for (uint32_t unit = p->to; unit-- > p->from;)
        if (!has_top(p->region, unit))
            visit(p, unit);
}

static void set_grade(struct pass *p, uint32_t unit, enum grade grade)
{
    if (grade_in(p->region, unit) != grade)
        region_join(p->region, unit, grade == GRADE_LARGE);
}

/* An idle unit becomes what is best for the pool. */
static void set_idle(struct pass *p, uint32_t unit)
{
    bool idle = is_idle(p->region, unit);
    if (idle)
        set_grade(p, unit, p->grade);
    p->any = p->any || idle || (p->may_unmap && is_loose(p->pool, p->region, unit));
}

/* Free pages of that grade that could move there, `most` at most. */
static uint32_t count_free(struct pages *s, const struct requester *who, uint32_t grade, uint32_t most)
{
    struct picker k = {.who = who, .only_shift = s->shifts[grade], .latest = s->fences->now, .most = most};
    pick_pages(s, &k);
    return k.count;
}

/* Pages that the place lacks, and what they hold. Those that it has are met, so that they do not count as free. */
static uint64_t count_lack(struct pass *p, const struct requester *who, struct slots under)
{
    struct pages *s = &p->pool->store.pages;
    struct region *r = p->region;
    uint64_t bytes = 0;
    bool blocked;
    pages_look_anew(s);
    for (uint32_t slot = under.from; slot < under.to; slot += region_span(r, slot)) {
        if (pages_lack(s, who, r, slot, &blocked)) {
            p->lack[pages_grade_at(r, slot)]++;
            bytes += region_page_bytes(r, slot);
        } else {
            page_of(s, r->page[slot])->met = s->epoch;
        }
    }
    return bytes;
}

/* The slots of the unit that are under the place. */
static struct slots common(const struct pass *p, uint32_t unit)
{
    uint32_t from = first_of(p->region, unit), to = first_of(p->region, unit + 1);
    return (struct slots){from > p->under.from ? from : p->under.from, to < p->under.to ? to : p->under.to};
}

/* So many pages of that grade the place would take in the unit. */
static uint32_t pages_in(const struct pass *p, uint32_t unit, enum grade grade)
{
    struct slots slots = common(p, unit);
    return grade == GRADE_LARGE ? 1 : slots.to - slots.from;
}

/* Pages that the place lacks in the unit. */
static uint32_t lacks_in(const struct pass *p, uint32_t unit)
{
    const struct pages *s = &p->pool->store.pages;
    const struct region *r = p->region;
    struct slots slots = common(p, unit);
    uint32_t lacks = 0;
    for (uint32_t slot = region_first(r, slots.from); slot < slots.to; slot += region_span(r, slot))
        lacks += !r->page[slot] || page_of(s, r->page[slot])->met != s->epoch;
    return lacks;
}

/*
 * The place lacks large pages, and takes a part of the unit, so that less is missing with small ones. A page that lies
 * there and that the place could use serves another unit then.
 */
static bool should_split(const struct pass *p, uint32_t unit)
{
    bool takes_part = pages_in(p, unit, GRADE_SMALL) < 1u << p->region->unit_shift;
    return p->splits && takes_part && grade_in(p->region, unit) == GRADE_LARGE && p->grade == GRADE_SMALL;
}

/*
 * Free pages of its grade are too few: the unit takes those of the other.
 * If it is loose, it does after the next attempt, which takes one grade.
 */
static void change_unit(struct pass *p, uint32_t unit)
{
    enum grade now = grade_in(p->region, unit), other = now == GRADE_LARGE ? GRADE_SMALL : GRADE_LARGE;
    uint32_t lacks = lacks_in(p, unit), takes = pages_in(p, unit, other);
    bool too_few = lacks && p->lack[now] > p->free[now], has_others = p->free[other] >= p->lack[other] + takes;
    struct loosening *loosening = p->loosening;
    if (!(too_few && has_others) && !(p->lack[now] > p->free[now] && should_split(p, unit)))
        return;
    bool idle = is_idle(p->region, unit), agrees = !loosening->count || loosening->grade == other;
    if (!idle && !(p->loosens && agrees && is_loose(p->pool, p->region, unit)))
        return;
    CHECK(p->lack[now] >= lacks);
    p->lack[now] -= lacks;
    p->lack[other] += takes;
    if (idle)
        set_grade(p, unit, other);
    else
        *loosening = (struct loosening){p->region, p->from, p->to, loosening->count + 1, other};
}

/* Of pages that a pool makes which has needed so much. */
uint32_t units_grade(const cenote_pool *pool, uint64_t need)
{
    return need > (uint64_t)units_grade_pages << pool->store.pages.shifts[GRADE_LARGE] ? GRADE_LARGE : GRADE_SMALL;
}

/*
 * Before a plan for the place, which lacks pages. `news`: bytes that the pool grows by rather than have pages move. The
 * slots under the place may be others then. True: with units_loosen more units could take pages that are free, or small
 * ones, and with them another attempt is due.
 */
bool units_choose(cenote_pool *pool, const struct requester *who, struct place *place, uint32_t grade, uint64_t news,
                  struct loosening *loose)
{
    struct pages *s = &pool->store.pages;
    struct region *r = region_of(s, place->region);
    struct slots under = {(uint32_t)((place->at - r->base) >> r->shift),
                          (uint32_t)((place->at + place->size - 1 - r->base) >> r->shift) + 1};
    uint32_t from = under.from >> r->unit_shift, to = ((under.to - 1) >> r->unit_shift) + 1;
    *loose = (struct loosening){.region = r};
    if (!r->unit_shift ||
        (grade == GRADE_LARGE && s->held[GRADE_LARGE] == s->reserved && bits_all_set(r->joined, from, to)))
        return false;
    struct pass p = {
        .pool = pool, .region = r, .from = from, .to = to, .under = under, .grade = grade, .may_unmap = who->may_unmap};
    p.loosening = loose;
    visit_units(&p, set_idle);
    place->under = slots_under(r, place->at, place->size);
    if (!p.any || news >= count_lack(&p, who, place->under))
        return false;
    for (uint32_t i = 0; i < GRADES; i++)
        p.free[i] = count_free(s, who, i, p.lack[i] + ((to - from) << (i == GRADE_SMALL ? r->unit_shift : 0)) + 2);
    visit_units(&p, change_unit);
    p.loosens = who->may_unmap && !who->orderable;
    p.splits = p.loosens && who->splits;
    if (p.loosens)
        visit_units(&p, change_unit);
    place->under = slots_under(r, place->at, place->size);
    return loose->count;
}

/*
 * Takes the aliases out of loose units, so that they are idle. False: there
 * were none, or the driver refuses. LOCKING: not the pool's lock.
 */
bool units_loosen(cenote_pool *pool, const struct loosening *loose)
{
    struct region *r = loose->region;
    uint32_t left = loose->count;
    for (uint32_t unit = loose->from; unit < loose->to && left; unit++) {
        lock_take(&pool->lock);
        bool goes = grade_in(r, unit) != loose->grade && !has_top(r, unit) && is_loose(pool, r, unit);
        lock_give(&pool->lock);
        for (uint32_t slot = first_of(r, unit); goes && slot < first_of(r, unit + 1); slot++)
            goes = !r->page[slot] || aliases_drop_at(pool, r, slot);
        left -= goes;
    }
    return left != loose->count;
}
