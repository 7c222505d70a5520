/*
 * units.c: large pages, or smaller ones? Decides it for the units (region.h) of a place that lacks pages.
 *
 * A small page loses less to a block that ends on it, and a call of the driver costs as much for it as for a large one. So a pool begins with small
 * pages, and makes those of the next GRADE once it has needed as much as units_grade_pages of them hold, in heaps that have needed an eighth of
 * that. Instead of middle pages it makes small ones while it frays (budget.c). Pages that are there already are used first, whatever their size:
 * where free pages of one grade are too few, units take those of another. Otherwise what the pool held in small pages when it grew large would be
 * lost. And if memory is short and nothing else helps, a piece that has one page and of which the place takes a part takes smaller ones.
 *
 * A PIECE is a unit, which may take one large page, or a cell of a unit that has none:
 *
 *     nothing is mapped, and no block lies there        IDLE     takes pages of the grade that is best
 *     every slot is idle or an alias that may go        LOOSE    the aliases go first, which takes calls of the driver and another attempt
 *     all others                                        stay as they are
 *
 * It chooses no pages (pick.c), and says nothing of heaps for small blocks, whose slots are no units. In a private arena no piece turns that has
 * a page of the arena's own, for that maps something and is fixed (rule 4). While a capture is open no alias goes, but idle pieces still turn: so a
 * capture draws what is free, whatever its size.
 *
 * LOCKING: the turn, and the pool's lock but where it says so.
 */
#include "base/check.h"
#include "pool/pool.h"

#define HEAP_SHARE 8                      /* chosen, as GRADE_PAGES: docs/design.md */

uint32_t units_grade_pages = GRADE_PAGES; /* a constant, which tests change */

struct piece {
    uint32_t from, to;                    /* slots */
    uint32_t level;                       /* log2 of how many */
};

/* A pass over the pieces of a place. */
struct pass {
    cenote_pool      *pool;
    struct region    *region;
    uint32_t          from, to;           /* slots under the place, to the borders of its cells */
    struct slots      under;              /* the slots under the place, whatever pages they have */
    uint32_t          grade;              /* what idle pieces become at first, */
    bool              any;                /* and whether there are some, or loose ones */
    bool              may_unmap, loosens; /* aliases may go */
    bool              splits;             /* so do pages of which the place takes a part */
    uint32_t          lack[GRADES], free[GRADES]; /* pages that the place lacks, and that could come */
    struct units_turn *turn;
};

/* log2 of the slots under a page of that grade. */
static uint32_t span_of(const struct pass *p, uint32_t grade) { return p->pool->store.pages.shifts[grade] - p->region->shift; }

static bool slot_is_idle(const struct region *r, uint32_t slot)
{
    return !r->page[slot] && !r->edges[slot] && !r->pins[slot] && !bit_is_set(r->transit, slot) && !bit_is_set(r->broken, slot);
}

/* Slot by slot without a branch: a place may have ten thousand such pieces. */
static bool is_idle(const struct region *r, struct piece piece)
{
    uint32_t any = bits_any_set(r->transit, piece.from, piece.to) || bits_any_set(r->broken, piece.from, piece.to);
    for (uint32_t slot = piece.from; slot < piece.to; slot++)
        any |= r->page[slot] | r->edges[slot] | r->pins[slot];
    return !any;
}

/* Not idle, but it would be without its aliases. */
static bool is_loose(const cenote_pool *pool, const struct region *r, struct piece piece)
{
    uint32_t slot = piece.from, aliases = 0;
    for (; slot < piece.to && (slot_is_idle(r, slot) || (!r->edges[slot] && aliases_may_go(pool, r, slot))); slot++)
        aliases += r->page[slot] != 0;
    return slot == piece.to && aliases;
}

/*
 * May the piece turn, if it is idle? A unit with the top of the region in it stays in cells, for a page does not reach beyond the top (invariant 30),
 * and whether the top will move is not known yet: the plan may fail. A cell under a page of the unit turns with the unit alone.
 */
static bool may_turn(const struct region *r, struct piece piece)
{
    uint32_t top = (uint32_t)((r->top - r->base) >> r->shift);
    if (piece.level == r->unit_shift)
        return piece.to <= top || piece.from >= top;
    return region_span_shift(r, piece.from) != r->unit_shift;
}

/* Visits the units under the place, from the end, where the rest of the place is. Where a visit is false, it visits the cells under the place. */
static void visit_pieces(struct pass *p, bool (*visit)(struct pass *, struct piece))
{
    const struct region *r = p->region;
    uint32_t cell = 1u << r->cell_shift, unit = 1u << r->unit_shift;
    for (uint32_t end = p->to, from; end > p->from; end = from) {
        from = (end - 1) >> r->unit_shift << r->unit_shift;
        struct piece whole = {from, from + unit, r->unit_shift};
        bool done = may_turn(r, whole) && visit(p, whole);
        for (uint32_t at = end; !done && at > from && at > p->from; at -= cell)
            if (may_turn(r, (struct piece){at - cell, at, r->cell_shift}))
                visit(p, (struct piece){at - cell, at, r->cell_shift});
    }
}

static void set_grade(struct pass *p, struct piece piece, uint32_t grade)
{
    struct region *r = p->region;
    uint32_t span = span_of(p, grade), slot = piece.from;
    while (slot < piece.to && region_span_shift(r, slot) == span)
        slot += 1u << r->cell_shift;
    if (slot < piece.to)
        region_set_span(r, piece.from, piece.to, span);
}

/* Idle pieces become what is best for the pool. A unit as a whole does if it takes a large page, or had one; else its cells do. */
static bool set_idle(struct pass *p, struct piece piece)
{
    const struct region *r = p->region;
    bool idle = is_idle(r, piece), whole = piece.level > r->cell_shift;
    bool takes = idle && (!whole || p->grade == GRADE_LARGE || region_span_shift(r, piece.from) == piece.level);
    if (takes)
        set_grade(p, piece, span_of(p, p->grade) <= piece.level ? p->grade : GRADE_MIDDLE);
    p->any = p->any || idle || (p->may_unmap && is_loose(p->pool, r, piece));
    return takes;
}

/* Free pages of that grade that could move there, `most` at most. */
static uint32_t count_free(struct pages *s, const struct requester *who, uint32_t grade, uint32_t most)
{
    struct picker k = {.who = who, .only_shift = s->shifts[grade], .latest = s->fences.now, .most = most};
    pages_pick(s, &k);
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
            p->lack[pages_grade_at(s, r, slot)]++;
            bytes += region_page_bytes(r, slot);
        } else {
            page_of(s, r->page[slot])->met = s->epoch;
        }
    }
    return bytes;
}

/* So many places for pages of 2^span slots the piece has under the place. */
static uint32_t places(const struct pass *p, struct piece piece, uint32_t span)
{
    uint32_t from = piece.from > p->under.from ? piece.from : p->under.from, to = piece.to < p->under.to ? piece.to : p->under.to;
    return from < to ? ((to - 1) >> span) - (from >> span) + 1 : 0;
}

/* Pages of each grade that the place lacks in the piece. Are those of one too few? */
static bool has_too_few(const struct pass *p, struct piece piece, uint32_t lacks[GRADES])
{
    const struct pages *s = &p->pool->store.pages;
    const struct region *r = p->region;
    bool too_few = false;
    for (uint32_t slot = piece.from, end; slot < piece.to; slot = end) {
        uint32_t grade = pages_grade_at(s, r, slot);
        end = slot + region_span(r, slot);
        if (!places(p, (struct piece){slot, end, 0}, region_span_shift(r, slot)) || (r->page[slot] && page_of(s, r->page[slot])->met == s->epoch))
            continue;
        lacks[grade]++;
        too_few = too_few || p->lack[grade] > p->free[grade];
    }
    return too_few;
}

/* The grade of which there are more free pages than the place takes, so many that the piece could take those instead. GRADES: none. */
static uint32_t grade_for(const struct pass *p, struct piece piece)
{
    uint32_t now = region_span_shift(p->region, piece.from);
    bool joins = piece.level > p->region->cell_shift && now != piece.level; /* else its cells turn one by one */
    for (uint32_t grade = GRADES; grade-- > 0;) {
        uint32_t span = span_of(p, grade);
        if (span != now && span <= piece.level && (!joins || span == piece.level) && p->free[grade] >= p->lack[grade] + places(p, piece, span))
            return grade;
    }
    return GRADES;
}

/*
 * The place lacks pages of the size that the piece has, and takes a part of it, so that less is missing with pages of the size that is made. A page
 * that lies there and that the place could use serves another piece then.
 */
static bool should_split(const struct pass *p, struct piece piece)
{
    uint32_t now = region_span_shift(p->region, piece.from), made = span_of(p, p->grade);
    uint32_t grade = pages_grade_at(&p->pool->store.pages, p->region, piece.from);
    bool is_cut = now == piece.level && made < now && places(p, piece, made) << made < 1u << now;
    return p->splits && is_cut && p->lack[grade] > p->free[grade];
}

/* The free pages of a grade are too few: the piece takes those of another. If it is loose, it does after the next attempt, which takes one grade. */
static bool turn_piece(struct pass *p, struct piece piece)
{
    uint32_t lacks[GRADES] = {0}, grade = has_too_few(p, piece, lacks) ? grade_for(p, piece) : GRADES;
    struct units_turn *turn = p->turn;
    if (grade == GRADES && should_split(p, piece))
        grade = p->grade;
    if (grade == GRADES)
        return false;
    bool idle = is_idle(p->region, piece), agrees = !turn->count || (turn->grade == grade && turn->level == piece.level);
    if (!idle && !(p->loosens && agrees && is_loose(p->pool, p->region, piece)))
        return false;
    for (uint32_t i = 0; i < GRADES; i++) {
        CHECK(p->lack[i] >= lacks[i]);
        p->lack[i] -= lacks[i];
    }
    p->lack[grade] += places(p, piece, span_of(p, grade));
    if (idle)
        set_grade(p, piece, grade);
    else
        *turn = (struct units_turn){p->region, p->from, p->to, turn->count + 1, piece.level, grade};
    return true;
}

/* Of pages that a pool makes which has needed so much, for a heap that is about to need `more`. */
uint32_t units_grade(const cenote_pool *pool, const struct heap *h, uint64_t need, uint64_t more)
{
    const struct pages *s = &pool->store.pages;
    uint64_t held = h->live + more > h->need ? h->live + more : h->need;
    uint32_t grade = GRADE_LARGE;
    while (grade && (need <= (uint64_t)units_grade_pages << s->shifts[grade] || held < (uint64_t)units_grade_pages / HEAP_SHARE << s->shifts[grade]))
        grade--;
    return grade == GRADE_MIDDLE && pool->remap.frays ? GRADE_SMALL : grade;
}

/* Does a pool that has needed so much make middle pages, where its heaps have needed enough? */
bool units_are_middle(const cenote_pool *pool, uint64_t need)
{
    const uint32_t *shifts = pool->store.pages.shifts;
    return need > (uint64_t)units_grade_pages << shifts[GRADE_MIDDLE] && need <= (uint64_t)units_grade_pages << shifts[GRADE_LARGE];
}

/* The largest grade of which the pool has pages. */
uint32_t units_top(const cenote_pool *pool)
{
    uint32_t grade = GRADE_LARGE;
    while (grade && !pool->store.pages.held[grade])
        grade--;
    return grade;
}

/*
 * Before a plan for the place, which lacks pages. `news`: bytes that the pool grows by rather than have pages move. The slots under the place may be
 * others then. True: with units_loosen more pieces could take pages that are free, or smaller ones, and with them another attempt is due.
 */
bool units_choose(cenote_pool *pool, const struct requester *who, struct place *place, uint32_t grade, uint64_t news, struct units_turn *turn)
{
    struct pages *s = &pool->store.pages;
    struct region *r = region_of(s, place->region);
    *turn = (struct units_turn){.region = r};
    if (!r->unit_shift || (grade == GRADE_LARGE && s->held[GRADE_LARGE] == s->reserved && !r->small_cells))
        return false;
    uint32_t cells = r->cell_shift, from = place->under.from >> cells << cells, to = (((place->under.to - 1) >> cells) + 1) << cells;
    struct slots under = {(uint32_t)((place->at - r->base) >> r->shift), (uint32_t)((place->at + place->size - 1 - r->base) >> r->shift) + 1};
    struct pass p = {.pool = pool, .region = r, .from = from, .to = to, .under = under, .grade = grade, .may_unmap = who->may_unmap, .turn = turn};
    visit_pieces(&p, set_idle);
    place->under = slots_under(r, place->at, place->size);
    if (!p.any || news >= count_lack(&p, who, place->under))
        return false;
    for (uint32_t i = 0; i < GRADES; i++) /* of equal grades the first counts */
        p.free[i] = i && s->shifts[i] == s->shifts[i - 1] ? 0 : count_free(s, who, i, p.lack[i] + ((to - from) >> span_of(&p, i)) + 2);
    visit_pieces(&p, turn_piece);
    p.loosens = who->may_unmap && !who->orderable;
    p.splits = p.loosens && who->splits;
    if (p.loosens)
        visit_pieces(&p, turn_piece);
    place->under = slots_under(r, place->at, place->size);
    return turn->count;
}

/* Takes the aliases out of loose pieces, so that they are idle. False: there were none, or the driver refuses. LOCKING: not the pool's lock. */
bool units_loosen(cenote_pool *pool, const struct units_turn *turn)
{
    struct region *r = turn->region;
    uint32_t left = turn->count, size = 1u << turn->level;
    for (uint32_t slot = turn->from >> turn->level << turn->level; slot < turn->to && left; slot += size) {
        struct piece piece = {slot, slot + size, turn->level};
        lock_take(&pool->lock);
        bool turned = r->shift + region_span_shift(r, slot) == pool->store.pages.shifts[turn->grade];
        bool goes = !turned && may_turn(r, piece) && is_loose(pool, r, piece);
        lock_give(&pool->lock);
        for (uint32_t i = slot; goes && i < slot + size; i++)
            goes = !r->page[i] || aliases_drop_at(pool, r, i);
        left -= goes;
    }
    return left != turn->count;
}
