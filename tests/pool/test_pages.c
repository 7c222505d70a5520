/*
 * test_pages.c: single decisions about pages: when one is free, which arena may use it where, what keeps a slot as it is, and what breaks each
 * rule. test_pages_random.c has the whole life of many.
 */
#include "pool/core/pages.h"

#include "tests/harness.h"
#include "tests/pool/store.h"

static struct region *first, *other;    /* of arenas 1 and 2 */

static void open_world(void)
{
    store_open();
    first = store_region(20, 1, false);
    other = store_region(8, 2, false);
}

static uint32_t missing_in(struct region *r, uint32_t from, uint32_t to, uint32_t *blocked_to)
{
    struct requester who = store_requester(r);
    return store_missing(&who, r, from, to, blocked_to);
}

CASE(a_page_is_free_when_the_last_byte_has_gone)
{
    struct region *r = first;
    uint32_t page = store_page_at(r, 2);
    pages_own(&store, r, 2, 3);
    pages_own(&store, r, 2, 3); /* another block on the same page */
    tick early = fences_stamp(&fences), late = fences_stamp(&fences);
    pages_disown(&store, r, 2, 3, late);
    EXPECT(bit_is_set(r->busy, 2));
    pages_disown(&store, r, 2, 3, early); /* it waited for other streams: an early tick that comes late */
    EXPECT(!bit_is_set(r->busy, 2));
    EXPECT(bit_is_set(r->sole, 2));
    EXPECT_EQ(r->freed[2], late);
    EXPECT_EQ(r->page[2], page);
}

CASE(two_slots_of_one_page_do_not_serve_one_range)
{
    struct region *r = first;
    uint32_t page = store_page_at(r, 0), blocked_to;
    store_map(page, r, 3);
    store_page_at(r, 1);
    store_page_at(r, 2);
    EXPECT_EQ(missing_in(r, 0, 3, &blocked_to), 0);
    EXPECT_EQ(missing_in(r, 1, 4, &blocked_to), 0);
    EXPECT_EQ(missing_in(r, 0, 4, &blocked_to), 1);
    EXPECT_EQ(blocked_to, 0);
    pages_own(&store, r, 0, 1);
    EXPECT_EQ(missing_in(r, 1, 4, &blocked_to), 1); /* it is under live bytes */
}

CASE(a_page_leaves_its_arena_when_the_device_is_through_with_it)
{
    struct region *mine = other, *theirs = first;
    uint32_t page = store_page_at(mine, 0), blocked_to;
    store_map(page, theirs, 0);
    pages_own(&store, theirs, 0, 1);
    pages_disown(&store, theirs, 0, 1, fences_stamp(&fences));
    EXPECT_EQ(missing_in(theirs, 0, 1, &blocked_to), 0); /* stream order is enough */
    EXPECT_EQ(missing_in(mine, 0, 1, &blocked_to), 1);
    EXPECT_EQ(blocked_to, 0); /* nothing is in flight through this slot */
    store_finish();
    EXPECT_EQ(missing_in(mine, 0, 1, &blocked_to), 0);
}

/* A block that did not get all its pages lay on one that has them. The program never had it: the page was last used through the other slot. */
CASE(an_abandoned_block_uses_no_page)
{
    struct region *mine = first, *theirs = other;
    uint32_t page = store_page_at(mine, 0), blocked_to;
    store_map(page, mine, 1);
    store_map(page, theirs, 0);
    pages_own(&store, mine, 0, 1);
    pages_disown(&store, mine, 0, 1, fences_stamp(&fences));
    pages_own(&store, mine, 1, 2);
    pages_disown(&store, mine, 1, 2, 0);
    EXPECT_EQ(missing_in(theirs, 0, 1, &blocked_to), 1);
    store_finish();
    EXPECT_EQ(missing_in(theirs, 0, 1, &blocked_to), 0);
}

/* Its own slot is gone; the one that is left, of another arena, must not speak for it yet. */
CASE(the_last_mapping_does_not_outrun_the_device)
{
    uint32_t page = store_page_at(other, 0), blocked_to;
    store_map(page, first, 0);
    pages_own(&store, other, 0, 1);
    pages_disown(&store, other, 0, 1, fences_stamp(&fences));
    pages_unlink(&store, other, 0);
    EXPECT(!bit_is_set(first->sole, 0));
    EXPECT_EQ(missing_in(first, 0, 1, &blocked_to), 1);
    store_finish();
    EXPECT_EQ(missing_in(first, 0, 1, &blocked_to), 0);
    EXPECT_EQ(pages_broken_rule(&store), NULL);
}

/* Fences are on streams, and that of the first region's arena has had no event since the page was freed in the other one. */
static void only_the_other_stream_is_done(tick freed)
{
    static struct progress stream[3];
    static struct horizon horizon[3];
    static const struct table arenas = {.items = (char *)horizon, .item_size = sizeof *horizon};
    for (uint32_t i = 1; i < 3; i++) {
        stream[i] = (struct progress){.freed = i == 2 ? freed : 0, .done = i == 2 ? freed : 0};
        horizon[i] = (struct horizon){.lane = i, .stream = &stream[i]};
    }
    fences.arenas = &arenas;
    fences.begun = fences.done = freed;
}

/* The device is done with the page, and it stays so whichever arena has it next: no event may come that says it of that one's stream. */
CASE(a_page_that_is_done_stays_so_in_another_arena)
{
    uint32_t page = store_page_at(first, 0), moved = store_page_at(other, 1);
    store_map(page, other, 0);
    pages_own(&store, other, 0, 2);
    tick freed = fences_stamp(&fences);
    pages_disown(&store, other, 0, 2, freed);
    only_the_other_stream_is_done(freed);
    EXPECT(fence_has_passed(&fences, freed, 2) && !fence_has_passed(&fences, freed, 1));
    pages_unlink(&store, other, 0); /* what is left is its place in the first region */
    EXPECT(bit_is_set(first->sole, 0));
    EXPECT(fence_has_passed(&fences, first->freed[0], 1));

    struct page_past past = pages_lift(&store, moved, (struct slot_ref){first->number, 3});
    pages_drop(&store, moved, past);
    EXPECT_EQ(page_of(&store, moved)->arena, 2);
    EXPECT_EQ(other->freed[1], freed);
    store_map(moved, first, 3);
    pages_own(&store, first, 3, 4);
    pages_disown(&store, first, 3, 4, 0); /* the block did not get all its pages */
    EXPECT(fence_has_passed(&fences, page_of(&store, moved)->freed, page_of(&store, moved)->arena));
    EXPECT_EQ(pages_broken_rule(&store), NULL);
}

CASE(a_move_that_did_not_happen_changes_nothing)
{
    struct region *fixed = store_region(4, 3, true);
    uint32_t page = store_page_at(other, 0);
    store_map(page, other, 1);
    pages_own(&store, other, 0, 1);
    pages_disown(&store, other, 0, 1, fences_stamp(&fences));
    store_finish();
    struct page before = *page_of(&store, page);
    struct page_past past = pages_lift(&store, page, (struct slot_ref){fixed->number, 0});
    EXPECT(slot_ref_is(page_of(&store, page)->owner, fixed->number, 0));
    pages_drop(&store, page, past);
    EXPECT_EQ(page_of(&store, page)->arena, before.arena);
    EXPECT_EQ(page_of(&store, page)->fixed, before.fixed);
    EXPECT_EQ(page_of(&store, page)->owner.region, 0);
    EXPECT_EQ(page_of(&store, page)->freed, before.freed);
}

/* Mapped once, but its mapping is being changed, or it is lifted for another slot: the slot does not speak for it yet. */
CASE(a_page_on_its_way_is_not_sole)
{
    struct region *r = first;
    uint32_t page = store_page_at(r, 0);
    store_map(page, r, 3);
    bit_set(r->transit, 0);
    pages_unlink(&store, r, 3);
    EXPECT(!bit_is_set(r->sole, 0));
    bit_clear(r->transit, 0);
    pages_settle(&store, page);
    EXPECT(bit_is_set(r->sole, 0));
    EXPECT_EQ(pages_broken_rule(&store), NULL);

    store_map(page, r, 3);
    struct page_past past = pages_lift(&store, page, (struct slot_ref){r->number, 5});
    pages_unlink(&store, r, 3);
    EXPECT(!bit_is_set(r->sole, 0));
    pages_drop(&store, page, past);
    EXPECT(bit_is_set(r->sole, 0));
    EXPECT_EQ(pages_broken_rule(&store), NULL);
}

CASE(a_page_counts_the_pins_of_slots_that_come_and_go)
{
    uint32_t page = store_page_at(first, 0);
    first->pins[1] = 2;
    store_map(page, first, 1);
    EXPECT_EQ(page_of(&store, page)->pins, 2);
    EXPECT_EQ(pages_broken_rule(&store), NULL);
    pages_unlink(&store, first, 1);
    EXPECT_EQ(page_of(&store, page)->pins, 0);
    EXPECT_EQ(pages_broken_rule(&store), NULL);
}

/* A page that is on its way back to the driver serves no request, not even at its home; if the driver refuses it, it does again. */
CASE(a_leaving_page_serves_nobody)
{
    uint32_t page = store_page_at(first, 0), blocked_to;
    store_map(page, first, 5);
    EXPECT_EQ(missing_in(first, 0, 1, &blocked_to) + missing_in(first, 5, 6, &blocked_to), 0);
    pages_leave(&store, page);
    EXPECT_EQ(missing_in(first, 0, 1, &blocked_to), 1);
    EXPECT_EQ(missing_in(first, 5, 6, &blocked_to), 1);
    pages_stay(&store, page);
    EXPECT_EQ(missing_in(first, 0, 1, &blocked_to) + missing_in(first, 5, 6, &blocked_to), 0);
    EXPECT_EQ(pages_broken_rule(&store), NULL);
}

/* The slot's page is live elsewhere, so that another has to be mapped there; when may it be unmapped? */
CASE(what_keeps_a_slot_from_being_unmapped)
{
    struct region *r = first;
    struct requester captured = {.arena = r->arena, .may_unmap = false};
    uint32_t page = store_page_at(r, 0), blocked_to;
    pages_own(&store, r, 0, 1);
    pages_disown(&store, r, 0, 1, fences_stamp(&fences));
    store_map(page, r, 5);
    pages_own(&store, r, 5, 6);
    EXPECT_EQ(missing_in(r, 0, 1, &blocked_to), 1);
    EXPECT_EQ(blocked_to, 1); /* in flight */
    store_finish();
    EXPECT_EQ(missing_in(r, 0, 1, &blocked_to), 1);
    EXPECT_EQ(blocked_to, 0);
    EXPECT_EQ(store_missing(&captured, r, 0, 1, &blocked_to), 1);
    EXPECT_EQ(blocked_to, 1);
    r->pins[0] = 1;
    missing_in(r, 0, 1, &blocked_to);
    EXPECT_EQ(blocked_to, 1);
    r->pins[0] = 0;
    r->fixed = true;
    missing_in(r, 0, 1, &blocked_to);
    EXPECT_EQ(blocked_to, 0); /* mapped before a private group took the region over */
    page_of(&store, page)->fixed = true;
    missing_in(r, 0, 1, &blocked_to);
    EXPECT_EQ(blocked_to, 1);
}

CASE(old_epochs_are_wiped_when_the_epoch_wraps)
{
    struct region *r = first;
    uint32_t page = store_page_at(r, 0), blocked_to;
    store_map(page, r, 3);
    store.epoch = 0;
    EXPECT_EQ(missing_in(r, 0, 1, &blocked_to), 0); /* meets the page in epoch 1 */
    store.epoch = UINT32_MAX;
    EXPECT_EQ(missing_in(r, 3, 4, &blocked_to), 0);
}

CASE(regions_have_numbers_and_are_counted)
{
    uint64_t before = store.addresses;
    struct region *r = store_region(5, 1, false);
    EXPECT_EQ(region_of(&store, r->number), r);
    EXPECT_EQ(store.addresses, before + 5 * STORE_PAGE);
    pages_remove_region(&store, r);
    EXPECT_EQ(store.addresses, before);
}

/* One broken state for each rule, on a store with an aliased page at slots 0 and 3, sole pages at 1 and 2, and a spare. */
CASE(each_rule_sees_what_is_wrong)
{
    struct region *r = first;
    uint32_t page = store_page_at(r, 0);
    store_map(page, r, 3);
    uint32_t sole = store_page_at(r, 1);
    store_page_at(r, 2);
    uint32_t spare = store_spare();
    pages_own(&store, r, 3, 4);
    EXPECT_EQ(pages_broken_rule(&store), NULL);

#define EXPECT_BROKEN(rule, change, undo)                       \
    do {                                                        \
        change;                                                 \
        const char *broken = pages_broken_rule(&store);         \
        EXPECT(broken && strncmp(broken, rule, strlen(rule)) == 0); \
        undo;                                                   \
        EXPECT_EQ(pages_broken_rule(&store), NULL);             \
    } while (0)

    struct page *p = page_of(&store, page), *q = page_of(&store, sole);
    EXPECT_BROKEN("1:", bit_set(r->sole, 9), bit_clear(r->sole, 9));
    EXPECT_BROKEN("1:", bit_set(r->home, 9), bit_clear(r->home, 9));
    EXPECT_BROKEN("2:", bit_set(r->busy, 9), bit_clear(r->busy, 9));
    EXPECT_BROKEN("3:", bit_set(r->busy, 0), bit_clear(r->busy, 0));
    EXPECT_BROKEN("3:", bit_clear(r->busy, 3), bit_set(r->busy, 3));
    EXPECT_BROKEN("4:", bit_clear(r->home, 0), bit_set(r->home, 0));
    EXPECT_BROKEN("4:", bit_set(r->home, 3), bit_clear(r->home, 3));
    EXPECT_BROKEN("5:", q->owner.region = 1, q->owner.region = 0);
    EXPECT_BROKEN("5:", bit_set(r->sole, 0), bit_clear(r->sole, 0));
    EXPECT_BROKEN("5:", bit_set(r->transit, 1), bit_clear(r->transit, 1));
    EXPECT_BROKEN("6:", p->maps = 3, p->maps = 2);
    EXPECT_BROKEN("6:", p->maps = 1, p->maps = 2);
    EXPECT_BROKEN("6:", r->next_alias[3].slot = 2; r->next_alias[3].region = 1, r->next_alias[3].slot = r->next_alias[3].region = 0);
    EXPECT_BROKEN("7:", r->pins[3] = 1, r->pins[3] = 0);
    EXPECT_BROKEN("8:", page_of(&store, spare)->maps = 1, page_of(&store, spare)->maps = 0);
    EXPECT_BROKEN("9:", store.reserved -= STORE_PAGE, store.reserved += STORE_PAGE);
    EXPECT_BROKEN("9:", store.reserved += STORE_PAGE, store.reserved -= STORE_PAGE);
    EXPECT_BROKEN("14:", r->freed[1] = fences.now + 1, r->freed[1] = 0);

    bit_clear(r->busy, 3); /* what is on its way is owned and not yet under live bytes */
    bit_set(r->transit, 3);
    EXPECT_EQ(pages_broken_rule(&store), NULL);
}

SUITE_MAIN_AROUND("pages", open_world, store_close)
