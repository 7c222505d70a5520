/*
 * test_pages_random.c: which slot owns which page, through every move, against a model that is a few plain arrays: what each slot maps, which
 * bytes are live, and when a page was last used. Two streams' arenas and a private one share the pages.
 *
 * A step takes bytes (moving pages there over two steps, so that others come between), gives them, lets the device get on, trims, pins; or has an
 * idle unit change, where regions have them. What the arrays say of a page of several slots, they say at its first slot.
 * What the store must answer is worked out from the arrays anew each time.
 */
#include "pool/core/pick.h"

#include "tests/base/random.h"
#include "tests/harness.h"
#include "tests/pool/store.h"
#include "tests/rounds.h"

#define REGIONS    4u
#define SLOTS_MAX 72u
#define UNITS      4u       /* of live bytes in a slot */
#define PAGES_HELD 90u
#define PAGES_SEEN 4096u    /* numbers are used again */
#define LIVE_MAX  120u
#define MOVE_MAX  SLOTS_MAX

struct model_page {
    bool exists, leaving, moving, fixed;
    uint32_t arena;
    tick freed;
    uint64_t bytes;
};

struct piece {
    uint32_t region, from, to;          /* units */
    bool     moving;
    tick     taken;                     /* nothing of it was freed before that */
};

struct entry {
    uint32_t slot, page, old;           /* page 0: to be created */
    struct page_past past;
};

static struct region *regions[REGIONS];
static uint32_t maps[REGIONS][SLOTS_MAX];          /* page each slot maps */
static uint32_t live_units[REGIONS][SLOTS_MAX];
static bool     unit_is_live[REGIONS][SLOTS_MAX * UNITS];
static tick     slot_freed[REGIONS][SLOTS_MAX];
static struct model_page pages[PAGES_SEEN];
static uint32_t page_count;
static uint64_t page_bytes;                        /* of all of them */
static struct piece live[LIVE_MAX];
static uint32_t live_count;
static struct entry move[MOVE_MAX];                /* under way while count is not 0 */
static uint32_t move_count, move_region;
static uint32_t leaver;                             /* page on its way out, 0: none */
static struct random rnd;
static uint32_t turned;

/* With units each region is used up to its end. */
static void make_world(bool has_units)
{
    static const uint32_t slots[REGIONS] = {20, 72, 32, 12}, arenas[REGIONS] = {1, 1, 2, 3};
    for (uint32_t n = 0; n < REGIONS; n++) {
        regions[n] = store_region(slots[n], arenas[n], n == 3);
        if (has_units) {
            regions[n]->unit_shift = 2;
            regions[n]->top = region_end(regions[n]);
        }
    }
    memset(maps, 0, sizeof maps);
    memset(live_units, 0, sizeof live_units);
    memset(unit_is_live, 0, sizeof unit_is_live);
    memset(slot_freed, 0, sizeof slot_freed);
    memset(pages, 0, sizeof pages);
    page_count = live_count = move_count = leaver = turned = 0;
    page_bytes = 0;
}

/* ------------------------------------------------------------------------------------------------------------- what the model knows */

static bool is_sole(uint32_t page)
{
    struct slot_ref home = page_of(&store, page)->home;
    return home.region && bit_is_set(region_of(&store, home.region)->sole, home.slot);
}

/* The store's word for when a page was last used; the model's word is checked against it in page_is_right. */
static tick freed_of(uint32_t page)
{
    const struct page *p = page_of(&store, page);
    return is_sole(page) ? region_of(&store, p->home.region)->freed[p->home.slot] : p->freed;
}

/* Slots that map the page, and in *owner the number of them under live bytes. */
static uint32_t count_maps(uint32_t page, uint32_t *owners, uint32_t *pins)
{
    uint32_t count = 0;
    *owners = *pins = 0;
    for (uint32_t n = 0; n < REGIONS; n++)
        for (uint32_t slot = 0; slot < regions[n]->slots; slot++)
            if (maps[n][slot] == page) {
                count++;
                *owners += live_units[n][slot] && !bit_is_set(regions[n]->transit, slot);
                *pins += regions[n]->pins[slot];
            }
    return count;
}

static bool page_is_free(uint32_t page)
{
    uint32_t owners, pins;
    count_maps(page, &owners, &pins);
    return pages[page].exists && !pages[page].leaving && !pages[page].moving && !owners;
}

static bool page_is_right(uint32_t page)
{
    const struct model_page *m = &pages[page];
    const struct page *p = page_of(&store, page);
    uint32_t owners, pins, count = count_maps(page, &owners, &pins);
    if (p->maps != count || p->pins != pins || p->leaving != m->leaving || owners + m->moving > 1)
        return false;
    if (is_sole(page) ? count != 1 || m->leaving || m->moving : (owners || m->moving) != (p->owner.region != 0))
        return false;
    if (!page_is_free(page))
        return true;
    uint32_t arena = is_sole(page) ? region_of(&store, p->home.region)->arena : p->arena;
    if (p->fixed != m->fixed || freed_of(page) < m->freed || (arena != m->arena && !fence_is_done(&fences, m->freed)))
        return false;
    pages[page].arena = arena; /* a page that is complete may be told from now on by its slot's arena */
    return true;
}

static bool slots_are_right(uint32_t n)
{
    uint32_t edges[SLOTS_MAX] = {0};
    for (uint32_t i = 0; i < live_count; i++) {
        if (live[i].region != n)
            continue;
        uint32_t first = region_first(regions[n], live[i].from / UNITS), last = region_first(regions[n], (live[i].to - 1) / UNITS);
        edges[first]++;
        edges[last] += last != first;
    }
    for (uint32_t slot = 0; slot < regions[n]->slots; slot += region_span(regions[n], slot))
        if (regions[n]->page[slot] != maps[n][slot] || bit_is_set(regions[n]->busy, slot) != (live_units[n][slot] != 0) ||
            regions[n]->edges[slot] != edges[slot] || regions[n]->freed[slot] < slot_freed[n][slot])
            return false;
    return true;
}

/* In the middle of a move or a trim a page may be nowhere: rule 9 holds when the turn is over. */
static const char *broken_rule(void)
{
    const char *broken = pages_broken_rule(&store);
    return broken && (move_count || leaver) && strncmp(broken, "9:", 2) == 0 ? NULL : broken;
}

static bool store_is_right(void)
{
    for (uint32_t n = 0; n < REGIONS; n++)
        if (!slots_are_right(n))
            return false;
    uint32_t found = 0;
    for (uint32_t page = 1; page < store.table.used; page++)
        if (pages[page].exists) {
            found++;
            if (!page_is_right(page))
                return false;
        }
    return found == page_count && store.reserved == page_bytes && !broken_rule();
}

/* ------------------------------------------------------------------------------------------------------------- what the store answers */

static bool met[PAGES_SEEN];

/* Does the slot lack a page for its arena? By the model; pages that are there are met. */
static bool model_lacks(uint32_t n, uint32_t slot, bool may_unmap, bool *blocked)
{
    struct region *r = regions[n];
    uint32_t page = maps[n][slot];
    *blocked = bit_is_set(r->transit, slot) || bit_is_set(r->broken, slot);
    if (*blocked || !page)
        return true;
    uint32_t owners, pins;
    count_maps(page, &owners, &pins);
    const struct model_page *m = &pages[page];
    bool mine = live_units[n][slot] != 0;
    bool others = owners || m->moving || m->leaving || met[page];
    bool early = m->arena != r->arena && (m->fixed || !fence_is_done(&fences, freed_of(page)));
    if (mine || !(others || early)) {
        met[page] = true;
        return false;
    }
    *blocked = m->leaving || !may_unmap || r->fixed || r->pins[slot] || !fence_is_done(&fences, r->freed[slot]);
    return true;
}

/* A look at the slots [from, to), by both. Pages that are there are met, as fill.c has it. False if they disagree. */
static bool look(uint32_t n, uint32_t from, uint32_t to, bool may_unmap, uint32_t *missing, uint32_t *blocked_to)
{
    struct requester who = {.arena = regions[n]->arena, .may_unmap = may_unmap};
    bool same = true;
    *missing = *blocked_to = 0;
    memset(met, 0, sizeof met);
    pages_look_anew(&store);
    for (uint32_t slot = from; slot < to; slot += region_span(regions[n], slot)) {
        bool blocked, model_blocked, lacks = model_lacks(n, slot, may_unmap, &model_blocked);
        same &= pages_lack(&store, &who, regions[n], slot, &blocked) == lacks && blocked == model_blocked;
        if (!lacks)
            page_of(&store, maps[n][slot])->met = store.epoch;
        *missing += lacks;
        *blocked_to = model_blocked ? slot + 1 : *blocked_to;
    }
    return same;
}

/* By the model: may the page be picked now, and as what tick? `who` NULL: to go back to the driver. */
static bool may_be_picked(uint32_t page, const struct requester *who, tick *freed)
{
    const struct model_page *m = &pages[page];
    uint32_t owners, pins, count = count_maps(page, &owners, &pins);
    bool done = fence_is_done(&fences, freed_of(page));
    *freed = who && !count ? 0 : freed_of(page);
    if (!page_is_free(page) || pins)
        return false;
    if (who)
        return !met[page] && (m->arena == who->arena || (!m->fixed && done));
    return !m->fixed && done;
}

/* Fills in `picks`, of one size if `shift` is not 0, and says whether they are the oldest ones, in order. */
static bool pick(const struct requester *who, uint32_t shift, tick latest, uint32_t most, struct pick *picks, uint32_t *count)
{
    struct pick expected[PAGES_SEEN];
    uint32_t eligible = 0;
    struct picker picker = {.who = who, .only_shift = shift, .latest = latest, .most = most, .picks = picks};
    pick_pages(&store, &picker);
    *count = picker.count;
    for (uint32_t page = 1; page < store.table.used; page++) {
        tick freed;
        if (!may_be_picked(page, who, &freed) || freed > latest || (shift && pages[page].bytes != 1ull << shift))
            continue;
        uint32_t i = eligible++;
        for (; i && expected[i - 1].freed > freed; i--) /* of one tick in the order of their numbers */
            expected[i] = expected[i - 1];
        expected[i] = (struct pick){freed, page};
    }
    if (picker.count != (eligible < most ? eligible : most))
        return false;
    for (uint32_t i = 0; i < picker.count; i++)
        if (picks[i].page != expected[i].page || picks[i].freed != expected[i].freed)
            return false;
    return true;
}

/* -------------------------------------------------------------------------------------------------------------------------- the steps */

static uint32_t below(uint32_t end) { return random_below(&rnd, end); }

/* The slots under the units [from, to), to the borders of their pages. */
static uint32_t first_slot(uint32_t n, uint32_t from) { return region_first(regions[n], from / UNITS); }
static uint32_t end_slot(uint32_t n, uint32_t to) { return first_slot(n, to - 1) + region_span(regions[n], (to - 1) / UNITS); }

static void add_piece(uint32_t n, uint32_t from, uint32_t to, bool moving)
{
    live[live_count++] = (struct piece){n, from, to, moving, fences.now};
    for (uint32_t unit = from; unit < to; unit++) {
        unit_is_live[n][unit] = true;
        live_units[n][region_first(regions[n], unit / UNITS)]++;
    }
    pages_own(&store, regions[n], first_slot(n, from), end_slot(n, to));
}

static bool slot_is_moving(uint32_t n, uint32_t slot)
{
    for (uint32_t i = 0; i < move_count; i++)
        if (move_region == n && move[i].slot == slot)
            return true;
    return false;
}

static void remove_piece(uint32_t which, tick freed)
{
    struct piece gone = live[which];
    uint32_t n = gone.region, first = first_slot(n, gone.from), end = end_slot(n, gone.to);
    live[which] = live[--live_count];
    for (uint32_t unit = gone.from; unit < gone.to; unit++) {
        unit_is_live[n][unit] = false;
        live_units[n][region_first(regions[n], unit / UNITS)]--;
    }
    for (uint32_t slot = first; slot < end; slot += region_span(regions[n], slot)) {
        struct model_page *m = &pages[maps[n][slot]];
        slot_freed[n][slot] = slot_freed[n][slot] > freed ? slot_freed[n][slot] : freed;
        if (slot_is_moving(n, slot)) /* nothing came there */
            continue;
        m->freed = m->freed > freed ? m->freed : freed;
        m->arena = regions[n]->arena;
    }
    pages_disown(&store, regions[n], first, end, freed);
}

/* A page that was just created, mapped by no slot yet. */
static uint32_t create(uint64_t bytes)
{
    uint32_t page = pages_add(&store, 1 + store.table.used, bytes);
    pages_add_spare(&store, page);
    pages[page] = (struct model_page){.exists = true, .bytes = bytes};
    page_count++;
    page_bytes += bytes;
    return page;
}

/* The slots that lack a page go into transit, some with a page lifted for them, the others wait for a new one. */
static void begin_move(uint32_t n, uint32_t from, uint32_t to, struct pick *picks, uint32_t pick_count)
{
    struct requester who = store_requester(regions[n]);
    bool blocked;
    move_region = n;
    move_count = 0;
    pages_look_anew(&store);
    for (uint32_t slot = from; slot < to; slot += region_span(regions[n], slot))
        if (pages_lack(&store, &who, regions[n], slot, &blocked))
            move[move_count++] = (struct entry){.slot = slot, .old = maps[n][slot]};
    for (uint32_t i = 0; i < move_count; i++) {
        struct entry *e = &move[i];
        bit_set(regions[n]->transit, e->slot);
        uint32_t which = pick_count ? below(pick_count) : 0; /* any of them, not only the oldest */
        if (pick_count && below(5) && pages[picks[which].page].bytes == region_page_bytes(regions[n], e->slot)) {
            e->page = picks[which].page;
            picks[which] = picks[--pick_count];
            e->past = pages_lift(&store, e->page, (struct slot_ref){regions[n]->number, e->slot});
            pages[e->page].moving = true;
        }
    }
}

/* What fill.c does with one entry in the end. `created`, `unmapped`, `mapped`: how far the driver came; `done`: all the way. */
static void end_entry(struct entry *e, bool created, bool unmapped, bool mapped, bool done)
{
    struct region *r = regions[move_region];
    struct slot_ref target = {r->number, e->slot};
    bit_clear(r->transit, e->slot);
    if (unmapped && e->old) {
        pages_unlink(&store, r, e->slot);
        maps[move_region][e->slot] = 0;
    }
    if (!e->page && created) {
        e->page = create(region_page_bytes(r, e->slot));
        e->past = pages_lift(&store, e->page, target);
    } else if (!e->page) {
        return;
    }
    struct model_page *m = &pages[e->page];
    m->moving = false;
    if (mapped) {
        if (!done)
            bit_set(r->broken, e->slot);
        pages_link(&store, e->page, r, e->slot);
        maps[move_region][e->slot] = e->page;
    }
    if (!done) {
        pages_drop(&store, e->page, e->past);
        return;
    }
    pages_settle(&store, e->page);
    m->arena = r->arena;
    m->fixed = r->fixed;
}

static void end_move(void)
{
    uint32_t which = 0;
    while (!live[which].moving)
        which++;
    bool done = below(4) != 0, lost = !done && below(8) == 0; /* lost: what was mapped could not be unmapped again */
    uint32_t created = below(move_count + 1), unmapped = created == move_count ? below(move_count + 1) : 0;
    uint32_t mapped = lost && unmapped == move_count ? below(move_count + 1) : 0;
    for (uint32_t i = 0; i < move_count; i++)
        end_entry(&move[i], done || i < created, done || i < unmapped, done || i < mapped, done);
    if (done)
        live[which].moving = false;
    else
        remove_piece(which, fences.now);
    move_count = 0;
}

/* Live bytes come to a random free range, if it can be used now or be made so. */
static bool take(void)
{
    uint32_t n = below(REGIONS), units = regions[n]->slots * UNITS, from = below(units), to = from, blocked_to, missing, count;
    for (uint32_t most = 1 + below(below(3) ? 10 : 80); to < units && to - from < most && !unit_is_live[n][to]; to++)
        ;
    if (to == from || live_count == LIVE_MAX)
        return true;
    uint32_t first = first_slot(n, from), end = end_slot(n, to), shift = STORE_SHIFT + region_span_shift(regions[n], first);
    if (!look(n, first, end, below(8) != 0, &missing, &blocked_to))
        return false;
    if (!missing)
        add_piece(n, from, to, false);
    if (!missing || blocked_to || move_count || leaver)
        return true;
    struct pick picks[MOVE_MAX];
    struct requester who = store_requester(regions[n]);
    if (!pick(&who, below(3) ? shift : 0, below(3) ? fences.now : below((uint32_t)fences.now + 1), missing, picks, &count))
        return false;
    if (page_count + missing - count > PAGES_HELD)
        return true;
    begin_move(n, first, end, picks, count);
    add_piece(n, from, to, true);
    return true;
}

static void give(void)
{
    uint32_t which = live_count ? below(live_count) : 0;
    if (!live_count || live[which].moving)
        return;
    tick freed = fences_stamp(&fences);
    if (below(6) == 0) /* it was freed earlier and waited for other streams */
        freed -= below((uint32_t)(freed - live[which].taken));
    remove_piece(which, freed);
}

/* A page goes: chosen in one step, then a mapping a step, then released or, refused, a spare or where it was. */
static bool trim(void)
{
    struct pick picks[3];
    uint32_t count;
    if (!leaver) {
        if (move_count || below(4))
            return true;
        memset(met, 0, sizeof met);
        if (!pick(NULL, 0, UINT64_MAX, 1 + below(3), picks, &count))
            return false;
        if (count) {
            leaver = picks[below(count)].page;
            pages_leave(&store, leaver);
            pages[leaver].leaving = true;
        }
        return true;
    }
    struct page *p = page_of(&store, leaver);
    bool refused = below(6) == 0;
    if (p->maps && !refused) {
        struct slot_ref home = p->home;
        bit_clear(region_of(&store, home.region)->broken, home.slot);
        pages_unlink(&store, region_of(&store, home.region), home.slot);
        maps[home.region - 1][home.slot] = 0;
        return true;
    }
    pages[leaver].leaving = false;
    if (refused) {
        pages_stay(&store, leaver);
    } else {
        p->leaving = false;
        pages_remove(&store, leaver);
        pages[leaver].exists = false;
        page_count--;
        page_bytes -= pages[leaver].bytes;
    }
    leaver = 0;
    return true;
}

/* cenote_pin and cenote_unpin of one slot under live bytes. */
static void pin(void)
{
    uint32_t n = below(REGIONS), slot = region_first(regions[n], below(regions[n]->slots));
    if (!live_units[n][slot] || bit_is_set(regions[n]->transit, slot))
        return;
    uint32_t by = !regions[n]->pins[slot] ? 1 : below(3) ? UINT32_MAX : 1;
    regions[n]->pins[slot] += by;
    page_of(&store, maps[n][slot])->pins += by;
}

/* As aliases.c does it: a mapping goes, and a free page that has no other is a spare. */
static void drop_alias(uint32_t n, uint32_t slot)
{
    struct region *r = regions[n];
    uint32_t page = maps[n][slot];
    bool stays = !page || live_units[n][slot] || r->pins[slot] || bit_is_set(r->transit, slot) || bit_is_set(r->broken, slot);
    if (stays || pages[page].fixed || pages[page].leaving || !fence_is_done(&fences, r->freed[slot]))
        return;
    bool is_free = page_is_free(page);
    if (is_free && !fence_is_done(&fences, freed_of(page)))
        return;
    if (is_free)
        pages_leave(&store, page);
    pages_unlink(&store, r, slot);
    maps[n][slot] = 0;
    if (is_free)
        pages_stay(&store, page);
}

/* Slots of an idle unit that changes have the latest of their ticks. What was the word for a slot may be for several now. */
static void turn(void)
{
    uint32_t n = below(REGIONS), level = regions[n]->unit_shift, from = below(regions[n]->slots) >> level << level;
    if (!level)
        return;
    for (uint32_t slot = from; slot < from + (1u << level); slot += region_span(regions[n], slot))
        drop_alias(n, slot);
    if (!store_turn(regions[n], from))
        return;
    for (uint32_t slot = 0; slot < regions[n]->slots; slot++)
        slot_freed[n][region_first(regions[n], slot)] = slot_freed[n][region_first(regions[n], slot)] > slot_freed[n][slot] ?
                                                        slot_freed[n][region_first(regions[n], slot)] : slot_freed[n][slot];
    turned++;
}

static bool step(void)
{
    uint32_t kind = below(100);
    if (kind < 40)
        return take();
    if (kind < 72)
        give();
    else if (kind < 82 && move_count)
        end_move();
    else if (kind < 90)
        fences_all_done(&fences, fences.now - below(fences.now < 30 ? 1 : 30));
    else if (kind < 96)
        return trim();
    else if (kind < 98)
        pin();
    else
        turn();
    return true;
}

static void moves(bool has_units)
{
    uint32_t steps = 0, count = (uint32_t)rounds(200000);
    make_world(has_units);
    rnd = (struct random){61};
    for (bool right = true; right && steps < count; steps++) {
        right = step() && store_is_right();
        if (!right)
            printf(" wrong after step %u: %s ", steps, broken_rule() ? broken_rule() : "the model knows better");
        EXPECT(right);
    }
    EXPECT_EQ(steps, count);
}

CASE(random_moves) { moves(false); }

CASE(random_moves_of_pages_of_three_sizes)
{
    moves(true);
    EXPECT(turned > 100);
}

SUITE_MAIN_AROUND("pages at random", store_open, store_close)
