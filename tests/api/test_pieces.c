/*
 * test_pieces.c: the picture of a pool, blocks at a given address, groups that lend and groups whose blocks are whole.
 * Every picture is held against the counters: its segments are what is reserved, its blocks what is allocated.
 */
#include "tests/api/scene.h"

#define CARD (64 * MIB)
#define PIECES_MAX 4096

static cenote_piece pieces[PIECES_MAX];

static size_t draw(cenote_pool *pool, cenote_group *group)
{
    size_t count = 0, again = 0;
    DONE(cenote_pool_pieces(pool, group, NULL, 0, &count));
    REQUIRE(count <= PIECES_MAX);
    DONE(cenote_pool_pieces(pool, group, pieces, PIECES_MAX, &again));
    EXPECT_EQ(again, count);
    return count;
}

/* Pieces tile their segment, no two segments overlap, and the sums are what the counters say. */
static void expect_true_picture(cenote_pool *pool)
{
    size_t count = draw(pool, NULL);
    uint64_t size = 0, requested = 0, live = 0, pending = 0;
    for (size_t i = 0; i < count; i++) {
        const cenote_piece *p = &pieces[i];
        bool begins = i == 0 || p->segment != pieces[i - 1].segment;
        EXPECT_EQ(p->address, begins ? p->segment : pieces[i - 1].address + pieces[i - 1].size);
        for (size_t k = 0; begins && k < i; k++)
            EXPECT(p->address >= pieces[k].address + pieces[k].size || p->address < pieces[k].segment);
        size += p->size;
        live += p->state == CENOTE_PIECE_LIVE;
        pending += p->state == CENOTE_PIECE_PENDING;
        requested += p->state == CENOTE_PIECE_LIVE ? p->requested : 0;
        EXPECT(p->requested <= p->size);
    }
    cenote_stats stats = scene_stats(pool);
    EXPECT_EQ(size, stats.reserved.current);
    EXPECT_EQ(requested, stats.requested.current);
    EXPECT_EQ(live, stats.blocks.current);
    EXPECT_EQ(pending, stats.pending_blocks);
}

static const cenote_piece *piece_at(cenote_pool *pool, cenote_group *group, const void *address)
{
    size_t count = draw(pool, group);
    for (size_t i = 0; i < count; i++)
        if (pieces[i].address == (uintptr_t)address)
            return &pieces[i];
    return NULL;
}

CASE(an_empty_pool_has_no_pieces)
{
    struct scene scene;
    size_t count = 1;
    scene_open(&scene, CARD);
    DONE(cenote_pool_pieces(scene.pool, NULL, NULL, 0, &count));
    EXPECT_EQ(count, 0);
    EXPECT_EQ(cenote_pool_pieces(scene.pool, NULL, NULL, 0, NULL), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_pieces(NULL, NULL, NULL, 0, &count), CENOTE_INVALID);
    scene_close(&scene);
}

CASE(blocks_of_all_kinds_are_in_the_picture)
{
    struct scene scene;
    struct held small[5], large, shared, gap;
    scene_open(&scene, CARD);
    for (int i = 0; i < 5; i++)
        REQUIRE(held_take(&small[i], scene.pool, 700, scene.stream[A]));
    REQUIRE(held_take(&gap, scene.pool, 300 * KIB, scene.stream[A]));
    REQUIRE(held_take(&large, scene.pool, 5 * MIB + 100, scene.stream[A]));
    REQUIRE(held_take(&shared, scene.pool, 3 * MIB, scene.stream[B]));
    expect_true_picture(scene.pool);

    held_give(&small[1]);
    held_give(&small[3]);
    held_give(&gap);
    DONE(cenote_use(small[4].at, scene.stream[B])); /* freed later it waits, as any block does */
    order(scene.stream[A], scene.stream[B]);
    held_linger(&small[4], scene.stream[B]);
    held_give(&small[4]);
    DONE(cenote_use(shared.at, scene.stream[A]));
    held_linger(&shared, scene.stream[A]);
    held_give(&shared);
    expect_true_picture(scene.pool);
    const cenote_piece *p = piece_at(scene.pool, NULL, large.at);
    REQUIRE(p != NULL);
    EXPECT_EQ(p->state, CENOTE_PIECE_LIVE);
    EXPECT_EQ(p->requested, 5 * MIB + 100);
    EXPECT_EQ((uintptr_t)p->stream, (uintptr_t)scene.stream[A]);
    p = piece_at(scene.pool, NULL, shared.at);
    EXPECT(p && p->state == CENOTE_PIECE_PENDING && p->requested == 3 * MIB);
    p = piece_at(scene.pool, NULL, small[4].at);
    EXPECT(p && p->state == CENOTE_PIECE_PENDING && p->requested == 700);
    p = piece_at(scene.pool, NULL, small[1].at);
    EXPECT(p && p->state == CENOTE_PIECE_FREE);

    DONE(cuCtxSynchronize());
    held_give(&small[0]);
    held_give(&small[2]);
    held_give(&large);
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(draw(scene.pool, NULL), 0);
    scene_close(&scene);
}

/* Pages go from stream to stream and into a group; their old places keep them as aliases, and each counts once. */
CASE(pages_that_moved_count_once)
{
    struct scene scene;
    struct held a, b, c;
    cenote_group *group = NULL;
    void *block;
    uint64_t bytes;
    size_t all, ours;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&a, scene.pool, 40 * MIB, scene.stream[A]));
    held_give(&a);
    DONE(cuCtxSynchronize());
    REQUIRE(held_take(&b, scene.pool, 50 * MIB, scene.stream[B]));
    expect_true_picture(scene.pool);
    held_give(&b);
    DONE(cuCtxSynchronize());
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 60 * MIB, 512, scene.stream[C], &block));
    c = held_of(block, 60 * MIB, scene.stream[C]);
    expect_true_picture(scene.pool);
    held_give(&c);
    expect_true_picture(scene.pool);
    DONE(cenote_group_reserved(group, &bytes));
    EXPECT_EQ(bytes, 60 * MIB); /* bound to the group, wherever else they are mapped */
    ours = draw(scene.pool, group);
    EXPECT(ours > 0);
    for (size_t i = 0; i < ours; i++)
        EXPECT_EQ(pieces[i].group, group);
    all = draw(scene.pool, NULL);
    EXPECT(all >= ours);
    DONE(cenote_group_destroy(group));
    expect_true_picture(scene.pool);
    scene_close(&scene);
}

CASE(what_lay_in_a_group_is_put_back)
{
    struct scene scene;
    struct held held[6];
    cenote_group *group = NULL;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &group));
    const size_t sizes[6] = {512, 3 * MIB, 700, 5 * MIB + 1, 1000, 2 * MIB};
    for (int i = 0; i < 6; i++) {
        void *block;
        DONE(group_alloc(group, sizes[i], 512, scene.stream[A], &block));
        held[i] = held_of(block, sizes[i], scene.stream[A]);
    }
    for (int i = 0; i < 6; i++)
        held_give(&held[i]);
    void *other;
    DONE(group_alloc(group, 9 * MIB, 512, scene.stream[A], &other)); /* lies across where they were */
    EXPECT_EQ(alloc_at(scene.pool, group, held[1].at, sizes[1], scene.stream[A]), CENOTE_INVALID);
    DONE(cenote_free(other));
    for (int i = 5; i >= 0; i--) {
        DONE(alloc_at(scene.pool, group, held[i].at, sizes[i], scene.stream[A]));
        held[i] = held_of(held[i].at, sizes[i], scene.stream[A]);
    }
    EXPECT_EQ(alloc_at(scene.pool, group, held[2].at, sizes[2], scene.stream[A]), CENOTE_INVALID);
    expect_true_picture(scene.pool);
    for (int i = 0; i < 6; i++)
        held_give(&held[i]);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(an_address_that_is_none)
{
    struct scene scene;
    struct held a, b;
    cenote_group *group = NULL;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&a, scene.pool, 6 * MIB, scene.stream[A]));
    REQUIRE(held_take(&b, scene.pool, 6 * MIB, scene.stream[A]));
    DONE(cenote_group_create(scene.pool, "x", 0, NULL, &group));
    held_give(&a);
    EXPECT_EQ(alloc_at(scene.pool, NULL, (void *)1, MIB, scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(scene.pool, NULL, a.at + 1, MIB, scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(scene.pool, NULL, a.at, 0, scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(scene.pool, NULL, a.at, 7 * MIB, scene.stream[A]), CENOTE_INVALID); /* into the next */
    EXPECT_EQ(alloc_at(scene.pool, NULL, a.at, MIB, scene.stream[B]), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(scene.pool, group, a.at, MIB, scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(scene.pool, NULL, &scene, MIB, scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(scene.pool, NULL, a.at + 60 * MIB, MIB, scene.stream[A]), CENOTE_INVALID);
    DONE(alloc_at(scene.pool, NULL, a.at + 2 * MIB, 700, scene.stream[A])); /* small ones, too: no slab is in the way */
    DONE(cenote_free(a.at + 2 * MIB));
    DONE(cenote_group_destroy(group));
    held_give(&b);
    scene_close(&scene);
}

/* The other pool has an arena of the same number, and few blocks: their books know nothing of this one's. */
CASE(an_address_that_is_free_in_another_pool)
{
    struct scene scene;
    cenote_options options = scene_options();
    cenote_pool *other = NULL;
    enum { BLOCKS = 4000, BYTES = 12 * KIB };
    static void *block[BLOCKS];
    void *mine = NULL;
    scene_open(&scene, CARD);
    DONE(cenote_pool_create(0, &options, &other));
    DONE(cenote_alloc(other, MIB, (cenote_stream)scene.stream[A], &mine));
    for (int i = 0; i < BLOCKS; i++)
        DONE(cenote_alloc(scene.pool, BYTES, (cenote_stream)scene.stream[A], &block[i]));
    for (int i = 0; i < BLOCKS; i += 2)
        DONE(cenote_free(block[i]));
    for (int i = 0; i < BLOCKS; i += 2)
        EXPECT_EQ(alloc_at(other, NULL, block[i], BYTES, (cenote_stream)scene.stream[A]), CENOTE_INVALID);
    for (int i = 0; i < BLOCKS; i += 2)
        DONE(alloc_at(scene.pool, NULL, block[i], BYTES, (cenote_stream)scene.stream[A]));
    for (int i = 0; i < BLOCKS; i++)
        DONE(cenote_free(block[i]));
    DONE(cenote_free(mine));
    DONE(cenote_pool_check(other));
    DONE(cenote_pool_destroy(other));
    scene_close(&scene);
}

/* Its pages went to another stream meanwhile: others come in their place, or it fails and nothing is lost. */
CASE(an_address_whose_pages_went_away)
{
    struct scene scene;
    struct held a, b;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&a, scene.pool, 40 * MIB, scene.stream[A]));
    held_give(&a);
    DONE(cuCtxSynchronize());
    REQUIRE(held_take(&b, scene.pool, 60 * MIB, scene.stream[B]));
    EXPECT_EQ(alloc_at(scene.pool, NULL, a.at, 40 * MIB, scene.stream[A]), CENOTE_OUT_OF_MEMORY);
    held_linger(&b, scene.stream[B]);
    held_give(&b);
    DONE(alloc_at(scene.pool, NULL, a.at, 40 * MIB, scene.stream[A]));
    a = held_of(a.at, 40 * MIB, scene.stream[A]);
    held_give(&a);
    scene_close(&scene);
}

/* Another block has what lay there: in a private group its mapping stays. A wait for the device would not help. */
CASE(put_back_where_a_mapping_stays)
{
    struct scene scene;
    cenote_group *group;
    void *first, *beside, *other;
    scene_open(&scene, 64 * MIB);
    DONE(cenote_group_create(scene.pool, "g", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 4 * MIB, 512, scene.stream[A], &first));
    DONE(group_alloc(group, 4 * MIB, 512, scene.stream[A], &beside));
    DONE(cenote_free(first));
    DONE(cuCtxSynchronize());
    DONE(group_alloc(group, 20 * MIB, 512, scene.stream[A], &other));
    EXPECT_EQ(alloc_at(scene.pool, group, first, 4 * MIB, scene.stream[A]), CENOTE_INVALID);
    DONE(cenote_free(other));
    DONE(alloc_at(scene.pool, group, first, 4 * MIB, scene.stream[A]));
    DONE(cenote_free(first));
    DONE(cenote_free(beside));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* Small blocks come from slabs; each goes back to its place, wherever in what order, and nothing is put where another lies. */
CASE(small_blocks_are_put_back)
{
    enum { MANY = 300 };
    static const size_t sizes[] = {1, 512, 513, 1000, 4096, 5000, 6144, 8192};
    struct scene scene;
    struct held held[MANY];
    cenote_group *group = NULL;
    void *block;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "ordinary", 0, NULL, &group));
    for (int round = 0; round < 2; round++) {
        cenote_group *from = round ? group : NULL;
        for (int i = 0; i < MANY; i++) {
            size_t bytes = sizes[i % 8];
            DONE(from ? group_alloc(from, bytes, 512, scene.stream[A], &block) : cenote_alloc(scene.pool, bytes, scene.stream[A], &block));
            held[i] = held_of(block, bytes, scene.stream[A]);
        }
        for (int i = 0; i < MANY; i += 1 + i % 3)
            held_give(&held[i]);
        for (int i = 0; i < MANY; i++)
            EXPECT_EQ(alloc_at(scene.pool, from, held[i].at, held[i].bytes + 512, scene.stream[A]), CENOTE_INVALID); /* never so large */
        for (int i = 0; i < MANY; i++) /* free or not: of another stream */
            EXPECT_EQ(alloc_at(scene.pool, from, held[i].at, held[i].bytes, scene.stream[B]), CENOTE_INVALID);
        for (int i = 0; i < MANY; i += 1 + i % 3) {
            DONE(alloc_at(scene.pool, from, held[i].at, held[i].bytes, scene.stream[A]));
            held[i] = held_of(held[i].at, held[i].bytes, scene.stream[A]);
        }
        for (int i = 0; i < MANY; i++) {
            EXPECT_EQ(alloc_at(scene.pool, from, held[i].at, held[i].bytes, scene.stream[A]), CENOTE_INVALID);
            EXPECT_EQ(alloc_at(scene.pool, from, held[i].at, held[i].bytes, scene.stream[B]), CENOTE_INVALID);
            EXPECT(strstr(cenote_message(), "not free memory of this stream and group") != NULL);
        }
        expect_true_picture(scene.pool);
        for (int i = 0; i < MANY; i++)
            held_give(&held[i]);
    }
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* The slab is gone, or empty and only kept for speed: then the place is its heap's. A block that other streams still use is not free. */
CASE(small_blocks_are_put_back_without_their_slab)
{
    struct scene scene;
    struct held small, large;
    cenote_block found;
    scene_open(&scene, CARD);
    REQUIRE(held_take(&small, scene.pool, 3000, scene.stream[A]));
    void *at = small.at;
    held_give(&small);
    EXPECT_EQ(alloc_at(scene.pool, NULL, (char *)at + 512, 3000, scene.stream[A]), CENOTE_OK); /* no item begins there: the slab goes */
    DONE(cenote_free((char *)at + 512));
    DONE(alloc_at(scene.pool, NULL, at, 64 * KIB, scene.stream[A]));
    large = held_of(at, 64 * KIB, scene.stream[A]);
    held_give(&large);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    DONE(alloc_at(scene.pool, NULL, at, 3000, scene.stream[A]));
    DONE(cenote_find(at, &found));
    EXPECT_EQ(found.requested, 3000);
    DONE(cenote_free_sized(at, 3000));

    sim_set_lag(MSEC);
    REQUIRE(held_take(&small, scene.pool, 3000, scene.stream[A]));
    order(scene.stream[A], scene.stream[B]);
    held_linger(&small, scene.stream[B]);
    DONE(cenote_use(small.at, scene.stream[B]));
    DONE(cenote_free(small.at));
    EXPECT_EQ(alloc_at(scene.pool, NULL, small.at, 3000, scene.stream[A]), CENOTE_INVALID);
    DONE(cuStreamSynchronize(scene.stream[B]));
    sim_advance(10 * MSEC);
    DONE(alloc_at(scene.pool, NULL, small.at, 3000, scene.stream[A])); /* a search finds it free */
    DONE(cenote_free(small.at));
    scene_close(&scene);
}

CASE(a_group_that_lends)
{
    struct scene scene;
    struct held fill, borrowed;
    cenote_group *group = NULL;
    cenote_block found;
    void *block;
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "lender", CENOTE_GROUP_PRIVATE, NULL, &group));
    DONE(group_alloc(group, 20 * MIB, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    REQUIRE(held_take(&fill, scene.pool, 44 * MIB, scene.stream[A]));
    EXPECT(!held_take(&borrowed, scene.pool, 10 * MIB, scene.stream[A])); /* not asked to */
    EXPECT_EQ(cenote_group_set_flags(group, CENOTE_GROUP_LEND), CENOTE_INVALID);
    EXPECT_EQ(cenote_group_set_flags(group, CENOTE_GROUP_PRIVATE | 0x80), CENOTE_INVALID);
    DONE(cenote_group_set_flags(group, CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND));
    EXPECT(!held_take(&borrowed, scene.pool, 10 * MIB, scene.stream[B])); /* another stream's order */
    REQUIRE(held_take(&borrowed, scene.pool, 10 * MIB, scene.stream[A]));
    DONE(cenote_find(borrowed.at, &found));
    EXPECT_EQ(found.group, group);
    EXPECT(piece_at(scene.pool, group, borrowed.at)->lent);
    EXPECT(!piece_at(scene.pool, NULL, fill.at)->lent);
    EXPECT(!held_take(&(struct held){0}, scene.pool, 12 * MIB, scene.stream[A])); /* the rest is too little */
    expect_true_picture(scene.pool);
    held_give(&borrowed);
    DONE(group_alloc(group, 10 * MIB, 512, scene.stream[A], &block));
    EXPECT_EQ(block, borrowed.at);
    EXPECT(!piece_at(scene.pool, group, block)->lent); /* its own again */
    DONE(cenote_free(block));
    held_give(&fill);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(blocks_that_are_whole_share_no_page)
{
    struct scene scene;
    cenote_group *group = NULL;
    void *block[4];
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "whole", CENOTE_GROUP_WHOLE, NULL, &group));
    for (int i = 0; i < 4; i++) {
        DONE(group_alloc(group, i % 2 ? 100 : 3 * MIB, 512, scene.stream[A], &block[i]));
        EXPECT_EQ((uintptr_t)block[i] % (2 * MIB), 0);
    }
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 2 * (4 + 2) * MIB);
    EXPECT_EQ(scene_stats(scene.pool).allocated.current, 6 * MIB + 2 * 512);
    expect_true_picture(scene.pool);
    for (int i = 0; i < 4; i++)
        DONE(cenote_free(block[i]));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------ segments of the program's own */

static int taken, given;

static void *take(size_t bytes, cenote_stream stream, void *arg)
{
    CUdeviceptr at = 0;
    (void)stream, (void)arg;
    taken++;
    return cuMemAlloc(&at, bytes) ? NULL : (void *)(uintptr_t)at;
}

static void give(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)bytes, (void)stream, (void)arg;
    given++;
    DONE(cuMemFree(device_address(memory)));
}

CASE(blocks_that_are_whole_have_a_segment_each)
{
    const cenote_source source = {take, give, NULL};
    for (unsigned flags = 0; flags <= CENOTE_GROUP_WHOLE; flags += CENOTE_GROUP_WHOLE) {
        struct scene scene;
        cenote_group *group = NULL;
        void *block[3];
        taken = given = 0;
        scene_open(&scene, 256 * MIB);
        DONE(cenote_group_create(scene.pool, "nccl", flags, &source, &group));
        for (int i = 0; i < 3; i++)
            DONE(group_alloc(group, 3 * MIB, 512, scene.stream[A], &block[i]));
        EXPECT_EQ(taken, flags ? 3 : 1);
        expect_true_picture(scene.pool);
        DONE(cenote_free(block[1]));
        DONE(group_alloc(group, 2 * MIB, 512, scene.stream[A], &block[1])); /* smaller: the segment serves again, uncut */
        EXPECT_EQ(taken, flags ? 3 : 1);
        expect_true_picture(scene.pool);
        for (int i = 0; i < 3; i++)
            DONE(cenote_free(block[i]));
        DONE(cenote_group_destroy(group));
        DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
        EXPECT_EQ(given, taken);
        scene_close(&scene);
    }
}

/* Where segments are, from the notices of a watch function. */
#define SEGMENTS 64
static struct segment {
    char  *at;
    size_t bytes;
} segments[SEGMENTS];

static void note_segment(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)arg;
    for (int i = 0; i < SEGMENTS; i++)
        if (notice->change == CENOTE_MAPPED ? !segments[i].at : notice->change == CENOTE_UNMAPPING && segments[i].at == notice->address) {
            segments[i] = (struct segment){notice->change == CENOTE_MAPPED ? notice->address : NULL, notice->bytes};
            return;
        }
}

static int segment_of(const void *at)
{
    int i = 0;
    while (i < SEGMENTS && !((const char *)at >= segments[i].at && (const char *)at < segments[i].at + segments[i].bytes))
        i++;
    return i;
}

/* At addresses that are aligned to nothing but 512. */
static void *take_crooked(size_t bytes, cenote_stream stream, void *arg)
{
    char *memory = take(bytes + 512, stream, arg);
    return memory ? memory + 512 : NULL;
}

static void give_crooked(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    give((char *)memory - 512, bytes + 512, stream, arg);
}

static void *group_block(cenote_group *group, size_t bytes, size_t alignment, CUstream stream)
{
    void *block = NULL;
    DONE(group_alloc(group, bytes, alignment, stream, &block));
    EXPECT_EQ((uintptr_t)block % alignment, 0);
    EXPECT(segment_of(block) < SEGMENTS);
    return block;
}

/* None of the others lies in the segment of the first. */
static void expect_alone(void *const *blocks, int count)
{
    for (int i = 1; i < count; i++)
        EXPECT(segment_of(blocks[0]) != segment_of(blocks[i]));
}

static void scene_of_segments(unsigned provider, const cenote_source *source)
{
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_group *group = NULL;
    void *blocks[5];
    options.provider = provider;
    taken = given = 0;
    memset(segments, 0, sizeof segments);
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_pool_watch(scene.pool, CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, note_segment, NULL));
    DONE(cenote_group_create(scene.pool, "later", 0, source, &group));
    blocks[1] = group_block(group, 300 * KIB, 512, scene.stream[A]);
    blocks[2] = group_block(group, 700, 512, scene.stream[A]); /* in a slab */
    void *gap = group_block(group, 400 * KIB, 512, scene.stream[A]);
    DONE(cenote_free(gap));

    DONE(cenote_group_set_flags(group, CENOTE_GROUP_WHOLE));
    bool is_crooked = source && source->take == take_crooked; /* its memory begins where a block with an alignment cannot */
    if (is_crooked)
        EXPECT_EQ(group_alloc(group, 400 * KIB, 256 * KIB, scene.stream[A], &blocks[0]), CENOTE_INVALID);
    blocks[0] = group_block(group, 400 * KIB, is_crooked ? 512 : 256 * KIB, scene.stream[A]);
    blocks[3] = group_block(group, 700, 512, scene.stream[A]);
    expect_alone(blocks, 4);
    EXPECT_EQ(alloc_at(scene.pool, group, gap, 400 * KIB, scene.stream[A]), CENOTE_INVALID); /* beside others */
    void *at = blocks[3];
    DONE(cenote_free(at));
    DONE(alloc_at(scene.pool, group, at, 700, scene.stream[A]));
    expect_true_picture(scene.pool);
    DONE(cenote_pool_check(scene.pool));

    DONE(cenote_group_set_flags(group, 0)); /* those that are there keep what they were promised */
    for (int i = 0; i < 4; i++) {
        blocks[4] = group_block(group, i % 2 ? 100 * KIB : 512, 512, scene.stream[A]);
        expect_alone(blocks, 5);
        DONE(cenote_free(blocks[4]));
    }
    for (int i = 0; i < 4; i++)
        DONE(cenote_free(blocks[i]));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    EXPECT_EQ(given, taken);
    scene_close(&scene);
}

/* Whatever the segment is, however the block is aligned in it, and whatever the group was before and becomes afterwards. */
CASE(whole_blocks_among_others_have_a_segment_each)
{
    static const cenote_source straight = {take, give, NULL}, crooked = {take_crooked, give_crooked, NULL};
    scene_of_segments(CENOTE_VMM, &straight);
    scene_of_segments(CENOTE_VMM, &crooked);
    scene_of_segments(CENOTE_PLAIN, NULL);
    scene_of_segments(CENOTE_ASYNC, NULL);
    scene_of_segments(CENOTE_GUARD, NULL);
    scene_of_segments(CENOTE_GUARD, &crooked);
}

/* Among pages, where an earlier block lay that shared its pages, no block comes to lie that must not. */
CASE(whole_blocks_are_not_put_back_beside_others)
{
    struct scene scene;
    cenote_group *group = NULL;
    void *blocks[3];
    scene_open(&scene, CARD);
    DONE(cenote_group_create(scene.pool, "later", 0, NULL, &group));
    for (int i = 0; i < 3; i++)
        DONE(group_alloc(group, 5 * MIB, 512, scene.stream[A], &blocks[i]));
    DONE(cenote_free(blocks[1]));
    DONE(cenote_group_set_flags(group, CENOTE_GROUP_WHOLE));
    EXPECT_EQ(alloc_at(scene.pool, group, blocks[1], 2 * MIB, scene.stream[A]), CENOTE_INVALID);
    DONE(alloc_at(scene.pool, group, (char *)blocks[1] + MIB, 2 * MIB, scene.stream[A])); /* a page of its own */
    DONE(cenote_free((char *)blocks[1] + MIB));
    DONE(cenote_free(blocks[0]));
    DONE(cenote_free(blocks[2]));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* A group so large that its pages are added up in portions. */
CASE(the_memory_of_a_very_large_group)
{
    struct scene scene;
    cenote_group *group = NULL;
    void *block = NULL, *other = NULL;
    uint64_t bytes = 0;
    scene_open(&scene, 1024 * GIB);
    DONE(cenote_group_create(scene.pool, "large", 0, NULL, &group));
    DONE(group_alloc(group, 100 * GIB, 512, scene.stream[A], &block));
    DONE(cenote_alloc(scene.pool, GIB, scene.stream[A], &other));
    DONE(cenote_group_reserved(group, &bytes));
    EXPECT_EQ(bytes, 100 * GIB);
    DONE(cenote_free(other));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

SCENES_MAIN("api: pieces")
