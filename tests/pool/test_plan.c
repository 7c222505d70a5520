/*
 * test_plan.c: what plan() of attempt.c decides: whether a place is filled without pages that the device is not done with, with them, at another
 * place, or not at all. The store, the heap and the fence are made by hand, and no driver is asked. tests/api/test_order.c has what comes of it.
 *
 * The pool has what is set here and nothing else: arena 1 asks; arena 2 has freed what is in flight, and a fence is due that covers it.
 */
#include "pool/shortage/attempt.c"

#include "tests/pool/heap_scene.h"

#define ALL UINT64_MAX

static cenote_pool    pool;
static struct card    card;
static struct device  device;
static struct arena   arena;
static struct request request;
static struct climb   climb;

static void open_pool(void)
{
    open_all();
    memset(&pool, 0, sizeof pool);
    memset(&card, 0, sizeof card);
    device = (struct device){.card = &card};
    arena = (struct arena){.number = 1, .stream = 1};
    pool.config.device = pool.clock.device = &device;
    pool.clock.ending = &pool.life.ending;
    pool.config.provider = CENOTE_VMM;
    pool.config.options.order = 1;
    pool.config.options.harvest_budget = -1;
    REQUIRE(index_reserve(&pool.store.by_address, 1));
    climb = (struct climb){.pool = &pool, .arena = &arena, .request = &request, .rung = RUNG_ORDER};
}

/* The store is the pool's from the moment at which a case is set up. */
static void close_pool(void)
{
    fill_close(&pool.remap.fill);
    index_close(&pool.store.by_address);
    store = pool.store.pages;
    close_all();
}

/* The page at the slot is one that arena 2 used last, and is not done with. */
static void put_in_flight(struct region *r, uint32_t slot)
{
    struct page *p = page_of(&store, r->page[slot]);
    bit_clear(r->sole, slot);
    p->arena = 2;
    p->freed = r->freed[slot] = fences_stamp(&fences);
}

static void make_fence_due(void)
{
    REQUIRE(fences_begin(&fences));
    REQUIRE(fences_add(&fences, (CUevent)&card, 0));
    fences_end(&fences, FENCE_WHOLE);
}

/* Plans for the place; if the stream may be made to wait, for the one that is found then. PLAN_ORDER: that one lacks nothing. */
static enum plan plan_twice(struct place *place, uint64_t most)
{
    struct requester asks = place_requester(&pool, &arena);
    enum plan first = plan(&climb, &asks, place, most, false);
    if (first != PLAN_ORDER)
        return first;
    asks.orderable = reach(&climb);
    return find(&climb, &asks, place) == FIT_NOW ? PLAN_ORDER : plan(&climb, &asks, place, most, true);
}

/* All is set up: finds a place of `slots` pages, and plans for it. */
static enum plan plan_for(uint64_t slots, uint64_t most, struct place *place)
{
    make_fence_due();
    pool.clock.fences = fences;
    pool.store.pages = store;
    pool.store.blocks = blocks;
    arena.heap = heap;
    arena.heap.pages = &pool.store.pages;
    arena.heap.ranges.blocks = &pool.store.blocks;
    request = (struct request){.bytes = slots * STORE_PAGE, .alignment = BLOCK_BYTES};
    request_make(&request, false);
    struct requester asks = place_requester(&pool, &arena);
    REQUIRE_EQ(arena_find(&arena, &asks, &request, NULL, place), FIT_WITH_PAGES);
    return plan_twice(place, most);
}

/* A hole of three slots, the middle one in flight; behind it a block up to the end of the region, and an empty region of two. */
static struct region *make_hole(void)
{
    struct region *r = add_region(6);
    uint32_t hole = take(3 * STORE_PAGE);
    take(3 * STORE_PAGE);
    give(hole);
    put_in_flight(r, 1);
    return r;
}

CASE(what_can_be_created_is)
{
    struct place place;
    make_hole();
    struct region *empty = add_region(4);
    EXPECT_EQ(plan_for(3, ALL, &place), PLAN_READY);
    EXPECT_EQ(place.at, empty->base);
    EXPECT_EQ(pool.remap.fill.creates, 1); /* two are free */
    EXPECT_EQ(pool.remap.fill.behind, 0);
}

CASE(pages_that_stay_where_the_place_is)
{
    struct place place;
    struct region *r = make_hole();
    add_region(4);
    EXPECT_EQ(plan_for(3, 0, &place), PLAN_READY);
    EXPECT_EQ(place.at, r->base);
    EXPECT_EQ(pool.remap.fill.stays, 1);
    EXPECT_EQ(pool.remap.fill.creates + pool.remap.fill.harvests, 0);
    EXPECT_EQ(pool.remap.fill.behind, r->freed[1]);
}

/* Slots 0 and 2 map one page, so that a place which begins with the page that stays cannot be filled: the one behind it still can. */
CASE(the_place_stays_if_none_is_found_with_pages_that_stay)
{
    struct place place;
    struct region *r = add_region(6);
    uint32_t hole = take(5 * STORE_PAGE);
    take(STORE_PAGE);
    give(hole);
    unmap(r, 2);
    store_map(r->page[0], r, 2);
    unmap(r, 4);
    put_in_flight(r, 1);
    unmap(r, 3);
    EXPECT_EQ(plan_for(3, STORE_PAGE, &place), PLAN_READY);
    EXPECT_EQ(place.at, region_slot_at(r, 2));
    EXPECT_EQ(pool.remap.fill.creates, 1);
    EXPECT_EQ(pool.remap.fill.harvests, 1);
    EXPECT_EQ(pool.remap.fill.behind, r->freed[1]);
}

/*
 * Slots 0, 1 and 3 lack their pages, and that of slot 2 is in flight: with it the place below the line lacks two pages, and the pinned one behind,
 * of which a slot lies beyond the line, lacks none.
 */
CASE(a_complete_place_beyond_the_line_needs_no_plan)
{
    struct place place;
    struct region *r = add_region(16);
    uint32_t low = take(6 * STORE_PAGE);
    take(STORE_PAGE);
    uint32_t high = take(7 * STORE_PAGE);
    give(low);
    give(high);
    heap.need = 8 * STORE_PAGE + STORE_PAGE / 2;
    unmap(r, 0);
    unmap(r, 1);
    unmap(r, 3);
    put_in_flight(r, 2);
    for (uint32_t slot = 7; slot < 14; slot++)
        page_of(&store, r->page[slot])->pins++;
    EXPECT_EQ(plan_for(3, 0, &place), PLAN_ORDER);
    EXPECT_EQ(climb.at, region_slot_at(r, 7));
}

CASE(no_stream_waits_below_that_rung_or_if_it_may_not)
{
    struct place place;
    make_hole();
    add_region(4);
    climb.rung = RUNG_CALLBACK;
    EXPECT_EQ(plan_for(3, 0, &place), PLAN_OVER_LIMIT);
    climb.rung = RUNG_ORDER;
    climb.no_order = CUDA_ERROR_UNKNOWN;
    EXPECT_EQ(plan_twice(&place, 0), PLAN_OVER_LIMIT);
    climb.no_order = CUDA_SUCCESS;
    pool.config.options.order = 0;
    EXPECT_EQ(plan_twice(&place, 0), PLAN_OVER_LIMIT);
    pool.config.options.order = 1;
    pool.account.stats.active.current = STORE_PAGE; /* pending: it may come earlier, and one page is missing */
    EXPECT_EQ(plan_twice(&place, 0), PLAN_OVER_LIMIT);
    pool.account.stats.active.current--;
    EXPECT_EQ(plan_twice(&place, 0), PLAN_READY);
}

/* With order:2 a stream waits rather than that the pool holds more than was ever live. */
CASE(before_the_pool_grows)
{
    struct place place;
    struct region *r = make_hole();
    add_region(4);
    climb.rung = RUNG_BUDGET;
    pool.config.options.order = 2;
    store.reserved = 64 * STORE_PAGE;
    EXPECT_EQ(plan_for(3, ALL, &place), PLAN_READY);
    EXPECT_EQ(place.at, r->base);
    EXPECT_EQ(pool.remap.fill.stays, 1);
}

SUITE_MAIN_AROUND("plan", open_pool, close_pool)
