/* test_pick.c: which free pages are picked, in which order, and which never are; and the sums over all pages. */
#include "pool/core/pick.h"

#include "tests/base/random.h"
#include "tests/harness.h"
#include "tests/pool/store.h"

#define PAGES 200u

static struct region *mine, *theirs;    /* of arenas 1 and 2 */
static struct requester me;

static void open_world(void)
{
    store_open();
    mine = store_region(PAGES, 1, false);
    theirs = store_region(8, 2, false);
    me = store_requester(mine);
    pages_look_anew(&store);
}

static void use(struct region *r, uint32_t slot)
{
    pages_own(&store, r, slot, slot + 1);
}

static void let_go(struct region *r, uint32_t slot)
{
    pages_disown(&store, r, slot, slot + 1, fences_stamp(&fences));
}

/* A page at the slot that was used and freed. */
static uint32_t freed_page(struct region *r, uint32_t slot)
{
    uint32_t page = store_page_at(r, slot);
    use(r, slot);
    let_go(r, slot);
    return page;
}

static struct pick picks[2 * PAGES];

static uint32_t pick(const struct requester *who, tick latest, uint32_t most)
{
    struct picker picker = {.who = who, .latest = latest, .most = most, .picks = picks};
    pick_pages(&store, &picker);
    return picker.count;
}

static bool is_picked(const struct requester *who, uint32_t page)
{
    uint32_t count = pick(who, UINT64_MAX, PAGES);
    for (uint32_t i = 0; i < count; i++)
        if (picks[i].page == page)
            return true;
    return false;
}

/* Freed in any order, picked in that order; for every `most`. */
CASE(oldest_first)
{
    uint32_t order[PAGES];
    struct random r = {71};
    for (uint32_t slot = 0; slot < PAGES; slot++) {
        store_page_at(mine, slot);
        use(mine, slot);
        order[slot] = slot;
    }
    for (uint32_t left = PAGES; left > 1; left--) {
        uint32_t which = random_below(&r, left), held = order[which];
        order[which] = order[left - 1];
        order[left - 1] = held;
    }
    for (uint32_t i = 0; i < PAGES; i++)
        let_go(mine, order[i]);
    uint32_t wrong = 0;
    for (uint32_t most = 0; most <= PAGES + 1; most++) {
        uint32_t count = pick(&me, UINT64_MAX, most);
        wrong += count != (most < PAGES ? most : PAGES);
        for (uint32_t i = 0; i < count; i++)
            wrong += picks[i].page != mine->page[order[i]] || picks[i].freed != i + 1;
    }
    EXPECT_EQ(wrong, 0);
}

/* A range that moved as a whole moves in the same order again. */
CASE(of_one_tick_the_lower_number_comes_first)
{
    for (uint32_t slot = 0; slot < 20; slot++)
        store_page_at(mine, 19 - slot);
    pages_own(&store, mine, 0, 20);
    pages_disown(&store, mine, 0, 20, fences_stamp(&fences));
    for (uint32_t most = 1; most <= 20; most++) {
        EXPECT_EQ(pick(&me, UINT64_MAX, most), most);
        for (uint32_t i = 0; i < most; i++)
            EXPECT_EQ(picks[i].page, mine->page[19 - i]);
    }
}

CASE(pages_freed_later_than_asked_stay)
{
    uint32_t old = freed_page(mine, 0);
    tick between = fences.now;
    freed_page(mine, 1);
    EXPECT_EQ(pick(&me, between, PAGES), 1);
    EXPECT_EQ(picks[0].page, old);
    EXPECT_EQ(pick(&me, between - 1, PAGES), 0);
    EXPECT_EQ(pick(&me, between + 1, PAGES), 2);
}

CASE(spares_go_before_all_others)
{
    freed_page(mine, 0);
    uint32_t spare = store_spare();
    EXPECT_EQ(pick(&me, UINT64_MAX, PAGES), 2);
    EXPECT_EQ(picks[0].page, spare);
    EXPECT_EQ(pick(&me, 0, PAGES), 1); /* also where nothing may be harvested */
    EXPECT_EQ(picks[0].page, spare);
}

/* A page of another arena is dropped as a spare while its last use is not complete. */
CASE(spares_of_other_arenas_wait_for_the_device)
{
    uint32_t page = freed_page(theirs, 0);
    struct requester they = store_requester(theirs);
    pages_unlink(&store, theirs, 0);
    pages_add_spare(&store, page);
    EXPECT(!is_picked(&me, page));
    EXPECT(!is_picked(NULL, page));
    EXPECT(is_picked(&they, page));
    store_finish();
    EXPECT(is_picked(&me, page));
    EXPECT(is_picked(NULL, page));
}

CASE(own_pages_need_no_fence_and_those_of_others_do)
{
    uint32_t own = freed_page(mine, 0), other = freed_page(theirs, 0);
    EXPECT(is_picked(&me, own));
    EXPECT(!is_picked(&me, other));
    EXPECT(!is_picked(NULL, own));
    store_finish();
    EXPECT(is_picked(&me, other));
    EXPECT(is_picked(NULL, own));
    EXPECT(is_picked(NULL, other));
}

/* The same where the page is mapped twice, and struct page speaks for it. */
CASE(aliased_pages_are_judged_by_their_last_use)
{
    uint32_t page = freed_page(theirs, 0);
    store_finish();
    store_map(page, theirs, 1);
    use(theirs, 1);
    EXPECT(!is_picked(&me, page));
    let_go(theirs, 1);
    EXPECT(!is_picked(&me, page));
    store_finish();
    EXPECT(is_picked(&me, page));
    EXPECT_EQ(pick(&me, UINT64_MAX, PAGES), 1); /* once, not at each of its slots */
    EXPECT_EQ(picks[0].freed, fences.now);
}

CASE(live_pages_are_never_picked)
{
    uint32_t page = freed_page(mine, 0);
    store_finish();
    use(mine, 0);
    EXPECT(!is_picked(&me, page));
    EXPECT(!is_picked(NULL, page));
}

CASE(pinned_pages_are_never_picked)
{
    uint32_t page = freed_page(mine, 0);
    store_finish();
    mine->pins[0] = page_of(&store, page)->pins = 1;
    EXPECT(!is_picked(&me, page));
    EXPECT(!is_picked(NULL, page));
    mine->pins[0] = page_of(&store, page)->pins = 0;
    EXPECT(is_picked(&me, page));
}

CASE(pages_of_a_private_arena_stay_in_it)
{
    struct region *fixed = store_region(4, 3, true);
    struct requester owner = store_requester(fixed);
    uint32_t page = freed_page(fixed, 0);
    store_finish();
    EXPECT(page_of(&store, page)->fixed);
    EXPECT(is_picked(&owner, page));
    EXPECT(!is_picked(&me, page));
    EXPECT(!is_picked(NULL, page));
}

CASE(leaving_pages_are_never_picked)
{
    uint32_t page = freed_page(mine, 0);
    store_finish();
    pages_leave(&store, page);
    EXPECT(!is_picked(&me, page));
    EXPECT(!is_picked(NULL, page));
    pages_stay(&store, page);
    EXPECT(is_picked(&me, page));
    EXPECT(bit_is_set(mine->sole, 0));
}

/* What the range that is being filled uses itself. */
CASE(pages_that_were_met_are_not_picked)
{
    uint32_t page = freed_page(mine, 0), blocked_to;
    store_map(page, mine, 4); /* aliased: a look says that it met it */
    EXPECT(is_picked(&me, page));
    EXPECT_EQ(store_missing(&me, mine, 0, 2, &blocked_to), 1);
    EXPECT(!is_picked(&me, page));
    pages_look_anew(&store);
    EXPECT(is_picked(&me, page));
}

CASE(segments_are_picked_by_who_asks_for_them)
{
    struct region *segment = store_segment(10 << 20, 1);
    uint32_t page = freed_page(mine, 0);
    use(segment, 0);
    let_go(segment, 0);
    store_finish();
    EXPECT(!is_picked(&me, segment->page[0]));
    EXPECT(!is_picked(NULL, segment->page[0]));
    store_spare();
    struct picker picker = {.latest = UINT64_MAX, .segments = true, .most = PAGES, .picks = picks};
    pick_pages(&store, &picker);
    EXPECT_EQ(picker.count, 1); /* and neither pages nor spares */
    EXPECT_EQ(picks[0].page, segment->page[0]);
    EXPECT(picks[0].page != page);
}

static struct pages_sums sums_of_all(void)
{
    struct pages_sums sums = {0};
    pages_sum_spares(&store, &sums);
    for (uint32_t number = 1; number < store.regions.used; number++)
        for (uint32_t from = 0; region_of(&store, number) && from < region_of(&store, number)->slots; from++)
            pages_sum_slots(&store, region_of(&store, number), from, from + 1, &sums);
    return sums;
}

CASE(sums)
{
    freed_page(mine, 0);                                    /* free, complete below */
    uint32_t aliased = freed_page(mine, 1);
    store_map(aliased, mine, 65);
    uint32_t pinned = freed_page(mine, 2);
    mine->pins[2] = page_of(&store, pinned)->pins = 1;
    store_spare();
    store_finish();
    store_page_at(mine, 3);
    use(mine, 3);                                           /* owned */
    freed_page(mine, 4);                                    /* not complete */
    store_segment(10 << 20, 1);                             /* free, cannot be harvested */
    struct pages_sums sums = sums_of_all();
    EXPECT_EQ(sums.owned, 1);
    EXPECT_EQ(sums.free, 6);
    EXPECT_EQ(sums.aliased, 1);
    EXPECT_EQ(sums.frozen, 1);
    EXPECT_EQ(sums.harvestable, 3 * STORE_PAGE);
    use(mine, 65);
    sums = sums_of_all();
    EXPECT_EQ(sums.owned, 2);
    EXPECT_EQ(sums.free, 5);
    EXPECT_EQ(sums.harvestable, 2 * STORE_PAGE);
}

SUITE_MAIN_AROUND("pick", open_world, store_close)
