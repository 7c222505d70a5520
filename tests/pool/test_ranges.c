/*
 * test_ranges.c: the free ranges of a heap against a sorted array, through hundreds of thousands of adds and removes, with sizes that share
 * a bin, repeat, or lie at the edges of bins.
 */
#include "base/ranges.h"

#include "tests/base/random.h"
#include "tests/harness.h"

#define MODEL_MAX 3000u
#define STEPS      120000

struct range {
    uint64_t size, rank;                /* rank: the address, or of small ranges the age, newest first */
    uint32_t block;
};

static struct table blocks;
static struct ranges ranges;
static struct range model[MODEL_MAX];  /* in order of size, then of rank */
static uint32_t model_count;

static void open_all(void)
{
    if (!table_open(&blocks, sizeof(struct block), 1u << 20))
        abort();
    ranges = (struct ranges){.blocks = &blocks};
    model_count = 0;
}

static void close_all(void)
{
    table_close(&blocks);
}

/* The place in the model of the first range not less than (size, rank). */
static uint32_t place_of(uint64_t size, uint64_t rank)
{
    uint32_t low = 0, high = model_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        const struct range *m = &model[middle];
        if (m->size < size || (m->size == size && m->rank < rank))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint32_t block_at(uint32_t place)
{
    return place < model_count ? model[place].block : 0;
}

static void add(uint64_t size, uint64_t at)
{
    static uint64_t adds;
    uint64_t rank = size / BLOCK_BYTES < RANGE_LISTS ? UINT64_MAX - ++adds : at;
    uint32_t place = place_of(size, rank), block = table_take(&blocks);
    *block_of(&blocks, block) = (struct block){.at = at, .size = size};
    ranges_add(&ranges, block);
    memmove(&model[place + 1], &model[place], (model_count++ - place) * sizeof *model);
    model[place] = (struct range){size, rank, block};
}

static void remove_place(uint32_t place)
{
    uint32_t block = model[place].block;
    ranges_remove(&ranges, block);
    table_give(&blocks, block);
    memmove(&model[place], &model[place + 1], (--model_count - place) * sizeof *model);
}

/* A size in units of 512, of the kind a run is about. */
typedef uint64_t (*size_maker)(struct random *r);

static uint64_t few_sizes(struct random *r) { return 1 + random_below(r, 5); }
static uint64_t one_bin(struct random *r) { return (1u << 20) + random_below(r, 1u << 17); }
static uint64_t all_sizes(struct random *r) { return 1 + (random_next(r) >> (17 + random_below(r, 46))); }

/* Where bins begin and end: powers of two, their sixteenths, and one beside each. */
static uint64_t bin_edges(struct random *r)
{
    uint64_t doubling = 1ull << (3 + random_below(r, 44));
    return doubling + random_below(r, 17) * (doubling / 16) + random_below(r, 3) - 1;
}

/* One look for a size, and a few ranges on from there. */
static bool looks_right(struct random *r, size_maker make)
{
    uint64_t size = make(r) * BLOCK_BYTES;
    uint32_t place = place_of(size, 0), found = ranges_at_least(&ranges, size);
    for (int i = 0; i < 4; i++, place++) {
        if (found != block_at(place))
            return false;
        if (!found)
            return true;
        found = ranges_next(&ranges, found);
    }
    return true;
}

/* All of it, from the smallest range to the largest. */
static bool order_is_exact(void)
{
    uint32_t found = ranges_at_least(&ranges, 1);
    for (uint32_t place = 0; place < model_count; place++, found = ranges_next(&ranges, found))
        if (found != model[place].block)
            return false;
    return found == 0;
}

static bool is_empty(void)
{
    for (uint32_t word = 0; word < RANGE_BINS / 64; word++)
        if (ranges.filled[word])
            return false;
    return ranges_at_least(&ranges, 1) == 0;
}

static void churn(size_maker make, uint64_t seed)
{
    static const uint32_t adds_in_100[] = {70, 50, 30};
    struct random r = {seed};
    uint32_t wrong = 0;
    for (int phase = 0; phase < 3; phase++) {
        for (int i = 0; i < STEPS / 3; i++) {
            bool grow = random_below(&r, 100) < adds_in_100[phase];
            uint64_t at = random_next(&r) >> 16 << 9; /* two of one address: not in 2^39 draws of this generator's first ones */
            if (grow && model_count < MODEL_MAX)
                add(make(&r) * BLOCK_BYTES, at);
            else if (model_count)
                remove_place(random_below(&r, model_count));
            wrong += !looks_right(&r, make);
        }
        EXPECT(model_count || phase == 2);
        EXPECT(order_is_exact());
    }
    EXPECT_EQ(wrong, 0);
    while (model_count)
        remove_place(random_below(&r, model_count));
    EXPECT(is_empty());
}

CASE(sizes_that_repeat) { churn(few_sizes, 11); }
CASE(sizes_of_one_bin) { churn(one_bin, 12); }
CASE(sizes_of_all_bins) { churn(all_sizes, 13); }
CASE(sizes_at_the_edges_of_bins) { churn(bin_edges, 14); }

/* Each multiple of 512 up to 64 KiB, where bins of one size become bins of many: none is passed over, none comes too early. */
CASE(each_small_size_is_found_exactly)
{
    for (uint64_t units = 1; units <= 128; units++)
        add(units * BLOCK_BYTES, units << 20);
    for (uint64_t units = 1; units <= 128; units++)
        EXPECT_EQ(ranges_at_least(&ranges, units * BLOCK_BYTES), model[units - 1].block);
    EXPECT_EQ(ranges_at_least(&ranges, 129 * BLOCK_BYTES), 0);
}

CASE(the_largest_size_has_a_bin)
{
    add(1ull << 56, 1 << 20);
    EXPECT_EQ(ranges_at_least(&ranges, 512), model[0].block);
    EXPECT_EQ(ranges_at_least(&ranges, 1ull << 56), model[0].block);
    EXPECT_EQ(ranges_at_least(&ranges, (1ull << 56) + 512), 0);
    EXPECT_EQ(ranges_next(&ranges, model[0].block), 0);
}

CASE(of_equal_sizes_the_lowest_comes_first)
{
    static const uint64_t at[] = {5, 1, 4, 2, 3};
    for (int i = 0; i < 5; i++)
        add(1 << 20, at[i] << 30);
    uint32_t found = ranges_at_least(&ranges, 1 << 20);
    for (uint64_t i = 1; i <= 5; i++, found = ranges_next(&ranges, found))
        EXPECT_EQ(block_of(&blocks, found)->at, i << 30);
    EXPECT_EQ(found, 0);
}

SUITE_MAIN_AROUND("ranges", open_all, close_all)
