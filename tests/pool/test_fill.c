/*
 * test_fill.c: the filling of ranges, on a card that keeps books: in the plain cases what is taken from where, and then every driver call
 * of a plan failing, one at a time and all from it on. Whatever fails, no page is lost, none is counted twice, and books and card agree.
 */
#include "pool/core/fill.h"

#include "base/memory.h"
#include "tests/harness.h"
#include "tests/pool/card.h"
#include "tests/pool/store.h"

static struct fill fill;

static void open_all(void)
{
    store_open();
    card_open(STORE_PAGE);
    fill = (struct fill){0};
}

static void close_all(void)
{
    fill_close(&fill);
    store_close();
}

/* A page that the card knows, too, mapped at a slot or, with `r` NULL, a spare. */
static uint32_t new_page(struct region *r, uint32_t slot)
{
    uint32_t page = store_spare();
    page_of(&store, page)->handle = card_create();
    if (r) {
        store_map(page, r, slot);
        card_map(region_slot_at(r, slot), page_of(&store, page)->handle);
    }
    return page;
}

static void use(struct region *r, uint32_t from, uint32_t to)
{
    pages_own(&store, r, from, to);
}

static void let_go(struct region *r, uint32_t from, uint32_t to)
{
    pages_disown(&store, r, from, to, fences_stamp(&fences));
}

/* Plans for the range as its arena, harvesting. */
static enum plan plan(struct region *r, uint32_t from, uint32_t to)
{
    struct requester who = store_requester(r);
    return fill_plan(&fill, &store, &who, r, from, to, 0, UINT64_MAX);
}

/* What attempt.c does around the driver's part; a failure leaves the range free. */
static CUresult run(struct region *r, uint32_t from, uint32_t to)
{
    pages_own(&store, r, from, to);
    CUmemAccessDesc own = device_access(&card_device);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = own.location};
    CUresult result = fill_create(&fill, &card_device, &prop);
    if (!result)
        result = fill_unmap(&fill, &card_device);
    if (!result)
        result = fill_map(&fill, &card_device, &own, 1);
    while (fill_publish(&fill, &store, result, 3)) {}
    if (result)
        pages_disown(&store, r, from, to, 0);
    return result;
}

/* Every mapping the store believes in is on the card, with access, and the other way round; so is every page. */
static bool card_agrees(void)
{
    uint32_t mapped = 0, pages = 0;
    for (uint32_t number = 1; number < store.regions.used; number++) {
        const struct region *r = region_of(&store, number);
        for (uint32_t slot = 0; slot < r->slots; slot++) {
            if (!r->page[slot])
                continue;
            mapped++;
            pages += bit_is_set(r->home, slot);
            if (!bit_is_set(r->broken, slot) && card_at(region_slot_at(r, slot)) != page_of(&store, r->page[slot])->handle)
                return false;
        }
    }
    for (uint32_t page = store.spare; page; page = page_of(&store, page)->next_spare)
        pages++;
    return mapped == card_mapped() && pages == card_pages() && store.reserved == pages * STORE_PAGE && !card.mistakes;
}

/* No page lies under two slots of the range, and none is missing. */
static bool range_is_whole(const struct region *r, uint32_t from, uint32_t to)
{
    for (uint32_t slot = from; slot < to; slot++) {
        if (!r->page[slot] || bit_is_set(r->transit, slot))
            return false;
        for (uint32_t other = from; other < slot; other++)
            if (r->page[other] == r->page[slot])
                return false;
    }
    return true;
}

#define EXPECT_SOUND()                                \
    do {                                              \
        EXPECT_TEXT_EQ(pages_broken_rule(&store), NULL); \
        EXPECT(card_agrees());                        \
    } while (0)

CASE(a_page_that_stays_is_not_moved_within_the_range)
{
    struct region *r = store_region(4, 1, false);
    new_page(r, 0);
    new_page(r, 1);
    use(r, 0, 2);
    let_go(r, 0, 2);
    REQUIRE_EQ(plan(r, 0, 4), PLAN_READY);
    EXPECT_EQ(fill.creates, 2);
    EXPECT_EQ(fill.harvests, 0);
    REQUIRE_EQ(run(r, 0, 4), CUDA_SUCCESS);
    EXPECT(range_is_whole(r, 0, 4));
    EXPECT_SOUND();
}

CASE(what_is_missing_is_created)
{
    struct region *r = store_region(8, 1, false);
    REQUIRE_EQ(plan(r, 2, 7), PLAN_READY);
    EXPECT(bits_all_set(r->transit, 2, 7));
    EXPECT_EQ(fill.creates, 5);
    EXPECT_EQ(store.reserved, 0); /* they do not exist yet */
    REQUIRE_EQ(run(r, 2, 7), CUDA_SUCCESS);
    EXPECT(range_is_whole(r, 2, 7));
    EXPECT(bits_all_set(r->sole, 2, 7));
    EXPECT_EQ(card.grants, 1); /* neighbours get access in one call */
    EXPECT_SOUND();
}

CASE(spares_come_before_free_pages_and_those_before_new_ones)
{
    struct region *r = store_region(8, 1, false), *other = store_region(4, 1, false);
    uint32_t spare = new_page(NULL, 0), free_page = new_page(other, 0);
    use(other, 0, 1);
    let_go(other, 0, 1);
    REQUIRE_EQ(plan(r, 0, 3), PLAN_READY);
    EXPECT_EQ(fill.creates, 1);
    EXPECT_EQ(fill.harvests, 1);
    REQUIRE_EQ(run(r, 0, 3), CUDA_SUCCESS);
    EXPECT_EQ(r->page[0], spare);
    EXPECT_EQ(r->page[1], free_page);
    EXPECT_EQ(other->page[0], free_page); /* the alias stays */
    EXPECT_EQ(card.creates, 1);
    EXPECT_EQ(card.unmaps, 0);
    EXPECT_SOUND();
}

CASE(without_harvest_free_pages_stay)
{
    struct region *r = store_region(8, 1, false), *other = store_region(4, 1, false);
    struct requester who = store_requester(r);
    new_page(other, 0);
    use(other, 0, 1);
    let_go(other, 0, 1);
    uint32_t spare = new_page(NULL, 0);
    REQUIRE_EQ(fill_plan(&fill, &store, &who, r, 0, 2, UINT64_MAX, UINT64_MAX), PLAN_READY);
    EXPECT_EQ(fill.harvests, 0);
    EXPECT_EQ(fill.creates, 1);
    REQUIRE_EQ(run(r, 0, 2), CUDA_SUCCESS);
    EXPECT_EQ(r->page[0], spare);
    EXPECT_SOUND();
}

/* As many new pages as the pool may grow by, and moves for the rest. */
CASE(what_the_pool_may_grow_by_is_created_and_the_rest_moves)
{
    struct region *r = store_region(8, 1, false), *other = store_region(4, 1, false);
    struct requester who = store_requester(r);
    for (uint32_t slot = 0; slot < 4; slot++)
        new_page(other, slot);
    use(other, 0, 4);
    let_go(other, 0, 4);
    new_page(NULL, 0);
    REQUIRE_EQ(fill_plan(&fill, &store, &who, r, 0, 4, 3 * STORE_PAGE - 1, UINT64_MAX), PLAN_READY);
    EXPECT_EQ(fill.harvests, 1);
    EXPECT_EQ(fill.creates, 2);
    REQUIRE_EQ(run(r, 0, 4), CUDA_SUCCESS);
    REQUIRE_EQ(fill_plan(&fill, &store, &who, r, 4, 8, STORE_PAGE, UINT64_MAX), PLAN_READY);
    EXPECT_EQ(fill.harvests, 3);
    EXPECT_EQ(fill.creates, 1);
    REQUIRE_EQ(run(r, 4, 8), CUDA_SUCCESS);
    EXPECT_SOUND();
}

/* The slot's page is under live bytes elsewhere: its mapping here is replaced. */
CASE(a_page_that_is_owned_elsewhere_is_unmapped_here)
{
    struct region *r = store_region(2, 1, false), *other = store_region(2, 1, false);
    uint32_t page = new_page(r, 0);
    use(r, 0, 1);
    let_go(r, 0, 1);
    store_finish();
    REQUIRE_EQ(plan(other, 0, 1), PLAN_READY);
    REQUIRE_EQ(run(other, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(other->page[0], page);
    REQUIRE_EQ(plan(r, 0, 1), PLAN_READY);
    EXPECT_EQ(fill.unmaps, 1);
    REQUIRE_EQ(run(r, 0, 1), CUDA_SUCCESS);
    EXPECT(r->page[0] != page);
    EXPECT(bit_is_set(other->sole, 0)); /* mapped once again */
    EXPECT_EQ(card.unmaps, 1);
    EXPECT_SOUND();
}

CASE(over_the_limit_nothing_is_planned)
{
    struct region *r = store_region(8, 1, false), *other = store_region(2, 1, false);
    struct requester who = store_requester(r);
    new_page(other, 0);
    use(other, 0, 1);
    let_go(other, 0, 1);
    uint64_t before = store.reserved;
    EXPECT_EQ(fill_plan(&fill, &store, &who, r, 0, 4, 0, 3 * STORE_PAGE - 1), PLAN_OVER_LIMIT);
    EXPECT(!bits_any_set(r->transit, 0, 8));
    EXPECT(bit_is_set(other->sole, 0));
    EXPECT_EQ(store.reserved, before);
    EXPECT_SOUND();
    EXPECT_EQ(fill_plan(&fill, &store, &who, r, 0, 4, 0, 3 * STORE_PAGE), PLAN_READY);
    EXPECT_EQ(run(r, 0, 4), CUDA_SUCCESS);
    EXPECT_SOUND();
}

/* The steps of a large plan, with other threads between them: of three pages that were picked they take the two that come first. */
CASE(pages_that_were_taken_between_the_steps_are_created)
{
    struct region *r = store_region(4, 1, false), *other = store_region(3, 1, false);
    struct requester who = store_requester(r);
    for (uint32_t slot = 0; slot < 3; slot++)
        new_page(other, slot);
    use(other, 0, 3);
    let_go(other, 0, 3);
    REQUIRE(fill_hold(&fill, &store, &who, r, 0, 4, 0));
    fill_pick(&fill, &store, &who, GRADE_SMALL);
    while (pick_some(&store, &fill.pickers[GRADE_SMALL], 1)) {}
    pick_sort(&fill.pickers[GRADE_SMALL]);
    fill_picked(&fill, &store, GRADE_SMALL);
    EXPECT_EQ(fill.creates, 1);
    use(other, 0, 2);
    while (fill_lift(&fill, &store, &who, 1)) {}
    EXPECT_EQ(fill.creates, 3);
    EXPECT_EQ(fill.create_bytes, 3 * STORE_PAGE); /* no limit is passed, and the table has room */
    EXPECT_EQ(fill.harvests, 1);
    REQUIRE_EQ(run(r, 0, 4), CUDA_SUCCESS);
    EXPECT_EQ(card.creates, 3);
    EXPECT(range_is_whole(r, 0, 4));
    EXPECT_SOUND();
}

CASE(without_host_memory_nothing_is_planned)
{
    struct region *r = store_region(8, 1, false);
    memory_fail(1, true);
    EXPECT_EQ(plan(r, 0, 4), PLAN_NO_MEMORY);
    memory_fail(2, true);
    EXPECT_EQ(plan(r, 0, 4), PLAN_NO_MEMORY);
    memory_fail(0, false);
    EXPECT(!bits_any_set(r->transit, 0, 8));
    EXPECT_EQ(store.reserved, 0);
    EXPECT_SOUND();
    EXPECT_EQ(plan(r, 0, 4), PLAN_READY);
    EXPECT_EQ(run(r, 0, 4), CUDA_SUCCESS);
    EXPECT_SOUND();
}

/* There is room for the plan, and none for the pages it would create. */
CASE(without_room_for_new_pages_nothing_is_planned)
{
    struct region *r = store_region(5000, 1, false);
    memory_fail(3, true);
    EXPECT_EQ(plan(r, 0, 5000), PLAN_NO_MEMORY);
    memory_fail(0, false);
    EXPECT(!bits_any_set(r->transit, 0, 5000));
    EXPECT_SOUND();
}

/* --------------------------------------------------------------------------------------------- every call fails once, or for good */

/*
 * A range of twelve slots that needs everything at once: slots 1 and 2 keep their pages, 4 and 5 map pages that are live elsewhere, the
 * rest is empty. There are two spares and three free pages to harvest; five pages have to be created.
 */
#define RANGE 12u

static struct region *target, *elsewhere;

static void set_the_scene(void)
{
    target = store_region(RANGE, 1, false);
    elsewhere = store_region(8, 1, false);
    for (uint32_t slot = 4; slot < 6; slot++)
        new_page(target, slot);
    use(target, 4, 6);
    let_go(target, 4, 6);
    store_finish();
    if (plan(elsewhere, 0, 2) || run(elsewhere, 0, 2))
        abort();
    for (uint32_t slot = 1; slot < 3; slot++)
        new_page(target, slot);
    use(target, 1, 3);
    let_go(target, 1, 3);
    for (uint32_t slot = 4; slot < 7; slot++)
        new_page(elsewhere, slot);
    use(elsewhere, 4, 7);
    let_go(elsewhere, 4, 7);
    new_page(NULL, 0);
    new_page(NULL, 0);
}

/* Once more from nothing, with the calls [from, to) of the driver's part failing. */
static CUresult fill_with_failures(uint32_t from, uint32_t to)
{
    close_all();
    open_all();
    set_the_scene();
    uint32_t pages = card_pages();
    REQUIRE_EQ(plan(target, 0, RANGE), PLAN_READY);
    EXPECT_EQ(fill.creates, 5);
    EXPECT_EQ(fill.harvests, 3);
    EXPECT_EQ(fill.unmaps, 2);
    card_fail(from, to);
    CUresult result = run(target, 0, RANGE);
    EXPECT_EQ(card_pages(), pages + fill.creates); /* what was created is kept */
    return result;
}

CASE(the_scene_needs_every_kind_of_call)
{
    EXPECT_EQ(fill_with_failures(0, 0), CUDA_SUCCESS);
    EXPECT_EQ(card.calls, 5 + 2 + 10 + 2);
    EXPECT(range_is_whole(target, 0, RANGE));
    EXPECT_SOUND();
}

/* After a failure of any call nothing new is mapped, nothing is lost, and the next attempt succeeds. */
CASE(a_call_that_fails_once_leaves_nothing_behind)
{
    fill_with_failures(0, 0);
    uint32_t calls = card.calls;
    for (uint32_t n = 1; n <= calls; n++) {
        EXPECT_EQ(fill_with_failures(n, n), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT(!bits_any_set(target->transit, 0, RANGE));
        EXPECT(!bits_any_set(target->broken, 0, RANGE));
        EXPECT(!bits_any_set(target->busy, 0, RANGE));
        for (uint32_t slot = 6; slot < RANGE; slot++)
            EXPECT_EQ(target->page[slot], 0);
        EXPECT_SOUND();

        card_fail(0, 0);
        store_finish(); /* the range counts as freed now: what it maps may be unmapped only after that */
        REQUIRE_EQ(plan(target, 0, RANGE), PLAN_READY);
        EXPECT_EQ(run(target, 0, RANGE), CUDA_SUCCESS);
        EXPECT(range_is_whole(target, 0, RANGE));
        EXPECT_SOUND();
    }
}

/* When undoing fails too, the slots that stay mapped are broken and their pages are free for others. */
CASE(calls_that_fail_for_good_lose_slots_but_no_pages)
{
    fill_with_failures(0, 0);
    uint32_t calls = card.calls, lost = 0;
    for (uint32_t n = 1; n <= calls; n++) {
        EXPECT_EQ(fill_with_failures(n, UINT32_MAX), CUDA_ERROR_OUT_OF_MEMORY);
        uint32_t broken = 0;
        for (uint32_t slot = 0; slot < RANGE; slot++) {
            bool is_broken = bit_is_set(target->broken, slot);
            broken += is_broken;
            EXPECT(!is_broken || target->page[slot]);
            EXPECT(!is_broken || !page_of(&store, target->page[slot])->owner.region);
        }
        lost += broken;
        EXPECT(!bits_any_set(target->transit, 0, RANGE));
        EXPECT_SOUND();

        card_fail(0, 0);
        struct region *third = store_region(3, 1, false);
        uint32_t pages = card_pages();
        REQUIRE_EQ(plan(third, 0, 3), PLAN_READY);
        EXPECT_EQ(run(third, 0, 3), CUDA_SUCCESS);
        EXPECT_EQ(card_pages(), pages);
        EXPECT_SOUND();
    }
    EXPECT_EQ(lost, 9 * 10 / 2 + 2 * 10); /* one more after each cuMemMap that succeeded */
}

/* With aliases:off two of three slots take pages from `elsewhere`, which leave it first, and of those that are done alone. */
static CUresult move_with_failures(uint32_t from, uint32_t to)
{
    close_all();
    open_all();
    store.mapped_once = true;
    target = store_region(3, 1, false);
    elsewhere = store_region(3, 1, false);
    for (uint32_t slot = 0; slot < 3; slot++)
        new_page(elsewhere, slot);
    use(elsewhere, 0, 2);
    use(elsewhere, 2, 3);
    let_go(elsewhere, 0, 2);
    store_finish();
    let_go(elsewhere, 2, 3);
    REQUIRE_EQ(plan(target, 0, 3), PLAN_READY);
    EXPECT_EQ(fill.creates, 1);
    EXPECT_EQ(fill.leaves, 2);
    card_fail(from, to);
    return run(target, 0, 3);
}

CASE(pages_leave_their_old_slots_first)
{
    EXPECT_EQ(move_with_failures(0, 0), CUDA_SUCCESS);
    EXPECT(range_is_whole(target, 0, 3));
    EXPECT(bits_all_set(target->sole, 0, 3));
    EXPECT(!elsewhere->page[0] && !elsewhere->page[1] && elsewhere->page[2]);
    EXPECT_SOUND();
    for (uint32_t n = 1, calls = card.calls; n <= 2 * calls; n++) {
        EXPECT_EQ(move_with_failures((n + 1) / 2, n % 2 ? (n + 1) / 2 : UINT32_MAX), CUDA_ERROR_OUT_OF_MEMORY);
        EXPECT(!bits_any_set(target->transit, 0, 3));
        EXPECT_SOUND();
        card_fail(0, 0);
        store_finish();
        struct region *third = store_region(2, 1, false);
        REQUIRE_EQ(plan(third, 0, 2), PLAN_READY);
        EXPECT_EQ(run(third, 0, 2), CUDA_SUCCESS);
        EXPECT_SOUND();
    }
}

/* While a capture is open spares alone are taken. */
CASE(no_page_leaves_its_slot_while_a_capture_is_open)
{
    struct region *r = store_region(2, 1, false), *other = store_region(1, 2, false);
    struct requester who = {.arena = 1};
    store.mapped_once = true;
    new_page(other, 0);
    use(other, 0, 1);
    let_go(other, 0, 1);
    store_finish();
    new_page(NULL, 0);
    REQUIRE_EQ(fill_plan(&fill, &store, &who, r, 0, 2, 0, UINT64_MAX), PLAN_READY);
    EXPECT_EQ(fill.creates, 1);
    EXPECT_EQ(fill.leaves, 0);
    REQUIRE_EQ(run(r, 0, 2), CUDA_SUCCESS);
    EXPECT_SOUND();
}

CASE(room_grows_with_the_range_and_is_given_back)
{
    size_t before = memory_in_use();
    struct region *r = store_region(400, 1, false);
    REQUIRE_EQ(plan(r, 0, 10), PLAN_READY);
    EXPECT_EQ(run(r, 0, 10), CUDA_SUCCESS);
    REQUIRE_EQ(plan(r, 10, 400), PLAN_READY);
    EXPECT_EQ(run(r, 10, 400), CUDA_SUCCESS);
    EXPECT(range_is_whole(r, 0, 400));
    EXPECT_SOUND();
    EXPECT(fill.most >= 390);
    size_t with_room = memory_in_use();
    fill_close(&fill);
    EXPECT(memory_in_use() < with_room);
    EXPECT(memory_in_use() >= before);
}

SUITE_MAIN_AROUND("fill", open_all, close_all)
