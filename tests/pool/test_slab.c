/* test_slab.c: items of every class, bins, and what an address inside a slab leads to. Slabs are cut from a region of no heap. */
#include "pool/core/slab.h"

#include "tests/base/random.h"
#include "tests/harness.h"
#include "tests/pool/store.h"

static struct table table;
static struct slabs slabs;
static struct region *region;

static void open_all(void)
{
    store_open();
    region = store_region(256, 1, false);
    if (!table_open(&table, sizeof(struct slab), 1024))
        abort();
    slabs = (struct slabs){.table = &table};
}

static void close_all(void)
{
    table_close(&table);
    store_close();
}

/* The number of a new slab at the n-th granule of the region. */
static uint32_t open_slab(uint32_t class, uint32_t granule)
{
    uint64_t at = region->base + (uint64_t)granule * SLAB_ALIGNMENT;
    slab_open(&slabs, class, region, at, 1000 + granule);
    return slab_at_address(region, at);
}

static uint32_t item_of(uint32_t slab, uint64_t at)
{
    return (uint32_t)((at - slab_of(&table, slab)->at) / slab_of(&table, slab)->item_bytes);
}

CASE(sizes_fit_the_granules)
{
    for (uint32_t class = 0; class < CLASS_COUNT; class++) {
        uint64_t items = slab_bytes(class) / class_bytes(class);
        EXPECT_EQ(slab_bytes(class) % class_bytes(class), 0);
        EXPECT(items >= SLAB_ITEMS_MIN && items <= SLAB_ITEMS_MAX);
        EXPECT_EQ(slab_bytes(class) % 512, 0);
        EXPECT(items == SLAB_ITEMS_MIN || slab_bytes(class) <= SLAB_ALIGNMENT);
    }
}

/* Every item of every class is handed out once, lies in the slab, and remembers what was asked for. */
CASE(each_item_is_handed_out_once)
{
    for (uint32_t class = 0; class < CLASS_COUNT; class++) {
        uint32_t slab = open_slab(class, class * 4), items = (uint32_t)(slab_bytes(class) / class_bytes(class));
        bool seen[SLAB_ITEMS_MAX] = {false};
        for (uint32_t i = 0; i < items; i++) {
            EXPECT_EQ(slabs_broken_rule(&slabs), NULL);
            uint64_t at = slab_take(&slabs, class, class_bytes(class) - i, 0);
            uint32_t item = item_of(slab, at);
            REQUIRE(item < items);
            EXPECT_EQ(at, slab_of(&table, slab)->at + (uint64_t)item * class_bytes(class));
            EXPECT(!seen[item]);
            EXPECT_EQ(slab_of(&table, slab)->requested[item], class_bytes(class) - i);
            seen[item] = true;
        }
        EXPECT_EQ(slab_take(&slabs, class, 1, 0), 0);
        EXPECT_EQ(slabs.bins[class], 0);
    }
}

CASE(addresses_lead_to_their_slab)
{
    for (uint32_t class = 0; class < CLASS_COUNT; class++) {
        uint32_t slab = open_slab(class, 3);
        uint64_t at = slab_of(&table, slab)->at;
        EXPECT_EQ(slab_of(&table, slab)->block, 1003);
        EXPECT_EQ(slab_of(&table, slab)->region, region->number);
        EXPECT_EQ(slab_at_address(region, at), slab);
        EXPECT_EQ(slab_at_address(region, at + slab_bytes(class) - 1), slab);
        EXPECT_EQ(slab_at_address(region, at - 1), 0);
        EXPECT_EQ(slab_at_address(region, at + slab_bytes(class) + SLAB_ALIGNMENT - 1), 0);
        EXPECT_EQ(slab_close(&slabs, slab, region), 1003);
        EXPECT_EQ(slab_at_address(region, at), 0);
        EXPECT_EQ(slab_at_address(region, at + slab_bytes(class) - 1), 0);
        EXPECT_EQ(slab_take(&slabs, class, 1, 0), 0);
    }
}

CASE(a_full_slab_comes_back_at_the_front)
{
    uint32_t first = open_slab(0, 0);
    uint64_t at = slab_take(&slabs, 0, 1, 0);
    for (uint32_t i = 1; i < SLAB_ITEMS_MAX; i++)
        slab_take(&slabs, 0, 1, 0);
    EXPECT_EQ(slabs.bins[0], 0);
    uint32_t second = open_slab(0, 1);
    EXPECT_EQ(slabs.bins[0], second);
    EXPECT(!slab_give(&slabs, first, item_of(first, at)));
    EXPECT_EQ(slabs.bins[0], first);
    EXPECT_EQ(slab_of(&table, first)->after, second);
    EXPECT_EQ(slab_take(&slabs, 0, 1, 0), at); /* nearly full ones are filled first */
    EXPECT_EQ(slabs.bins[0], second);
    EXPECT_EQ(slabs_broken_rule(&slabs), NULL);
}

CASE(a_few_empty_slabs_are_kept_and_no_more)
{
    uint32_t held[SLABS_EMPTY_KEPT + 1];
    for (uint32_t i = 0; i <= SLABS_EMPTY_KEPT; i++) { /* of different classes: the count is the arena's */
        held[i] = open_slab(i % CLASS_COUNT, i);
        EXPECT_EQ(slab_take(&slabs, i % CLASS_COUNT, 512, 0), slab_of(&table, held[i])->at);
    }
    EXPECT_EQ(slabs.empty, 0);
    for (uint32_t i = 0; i < SLABS_EMPTY_KEPT; i++)
        EXPECT(!slab_give(&slabs, held[i], 0));
    EXPECT(slab_give(&slabs, held[SLABS_EMPTY_KEPT], 0));
    EXPECT_EQ(slab_close(&slabs, held[SLABS_EMPTY_KEPT], region), 1000 + SLABS_EMPTY_KEPT);
    EXPECT_EQ(slabs.empty, SLABS_EMPTY_KEPT);
    EXPECT_EQ(slabs_broken_rule(&slabs), NULL);
}

CASE(the_rule_sees_what_is_wrong)
{
    uint32_t slab = open_slab(2, 0);
    struct slab sound = *slab_of(&table, slab), *s = slab_of(&table, slab);
    EXPECT_EQ(slabs_broken_rule(&slabs), NULL);
    s->free_items--;
    EXPECT(slabs_broken_rule(&slabs));
    *s = sound;
    s->pending[0] = 1;
    EXPECT(slabs_broken_rule(&slabs));
    *s = sound;
    s->free[1] = s->pending[1] = 1;
    s->free_items++;
    EXPECT(slabs_broken_rule(&slabs));
    *s = sound;
    s->free[0] = s->free[1] = 0; /* a full slab in a bin */
    s->free_items = 0;
    EXPECT(slabs_broken_rule(&slabs));
    *s = sound;
    s->class = 3;
    EXPECT(slabs_broken_rule(&slabs));
    *s = sound;
    s->before = slab;
    EXPECT(slabs_broken_rule(&slabs));
    *s = sound;
    slabs.empty = 0;
    EXPECT(slabs_broken_rule(&slabs));
}

/* ---------------------------------------------------------------------------------------------------------------------- random */

#define ITEMS_MAX 2000u
#define GRANULES   256u

struct item {
    uint64_t at;
    uint32_t class;
};

static struct item live[ITEMS_MAX];
static uint32_t live_count;
static bool     granule_used[GRANULES];
static uint32_t slabs_empty;                        /* without a live item */

/* Live items in the slab at `at`. */
static uint32_t items_in(uint64_t at)
{
    uint32_t items = 0;
    for (uint32_t i = 0; i < live_count; i++)
        items += live[i].at >= at && live[i].at < at + SLAB_ALIGNMENT;
    return items;
}

static bool take_random(struct random *r)
{
    uint32_t bytes = 1 + random_below(r, random_below(r, 4) ? 2048 : CLASS_BYTES_MAX), class = class_of(bytes);
    bool had = slabs.bins[class] != 0;
    uint64_t at = slab_take(&slabs, class, bytes, 0);
    if (had != (at != 0))
        return false;
    if (!at) {
        uint32_t granule = 0;
        while (granule < GRANULES && granule_used[granule])
            granule++;
        if (granule == GRANULES)
            return true; /* the region is full */
        granule_used[granule] = true;
        open_slab(class, granule);
        slabs_empty++;
        at = slab_take(&slabs, class, bytes, 0);
    }
    for (uint32_t i = 0; i < live_count; i++)
        if (at < live[i].at + class_bytes(live[i].class) && live[i].at < at + class_bytes(class))
            return false; /* overlaps a live item */
    slabs_empty -= !items_in(at / SLAB_ALIGNMENT * SLAB_ALIGNMENT);
    live[live_count++] = (struct item){at, class};
    return true;
}

static bool give_random(struct random *r)
{
    uint32_t which = random_below(r, live_count), class = live[which].class, slab = slab_at_address(region, live[which].at);
    if (!slab || slab_of(&table, slab)->class != class)
        return false;
    bool empty = slab_give(&slabs, slab, item_of(slab, live[which].at));
    live[which] = live[--live_count];
    uint64_t at = slab_of(&table, slab)->at;
    if (items_in(at))
        return !empty;
    slabs_empty++;
    if (empty != (slabs_empty > SLABS_EMPTY_KEPT))
        return false;
    if (!empty)
        return true;
    uint32_t granule = (uint32_t)((at - region->base) / SLAB_ALIGNMENT);
    granule_used[granule] = false;
    slabs_empty--;
    return slab_close(&slabs, slab, region) == 1000 + granule;
}

CASE(random_takes_and_gives)
{
    static const uint32_t takes_in_100[] = {70, 50, 30};
    struct random r = {31};
    uint32_t wrong = 0;
    live_count = slabs_empty = 0;
    memset(granule_used, 0, sizeof granule_used);
    for (int i = 0; i < 60000; i++) {
        bool take = random_below(&r, 100) < takes_in_100[i / 20000];
        if (take && live_count < ITEMS_MAX)
            wrong += !take_random(&r);
        else if (live_count)
            wrong += !give_random(&r);
        wrong += slabs_broken_rule(&slabs) != NULL;
    }
    EXPECT_EQ(wrong, 0);
    while (live_count)
        wrong += !give_random(&r);
    EXPECT_EQ(table.used - 1 - table.free_count, SLABS_EMPTY_KEPT);
    EXPECT_EQ(slabs.empty, SLABS_EMPTY_KEPT);
    EXPECT_EQ(wrong, 0);
}

SUITE_MAIN_AROUND("slab", open_all, close_all)
