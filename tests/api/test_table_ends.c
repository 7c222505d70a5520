/*
 * test_table_ends.c: the last number of each table, ring and packed field of a pool, and one past it. What comes one past has an answer of its own:
 * an error, or a place that many share, as the list says. Most tables are too large to be filled in a test; there the numbers below the last few
 * count as handed out (spend).
 *
 *     what                         holds                       one past the last
 *     blocks, slabs, uses, lanes   2^28, 2^24 each             OUT_OF_HOST_MEMORY of the allocation or use that needs one
 *     pages, regions, arenas       2^24, 2^20, 2^16            OUT_OF_HOST_MEMORY of the allocation
 *     groups, exports              2^15, 2^24                  OUT_OF_HOST_MEMORY of the call
 *     paths of tags                CENOTE_TAGS_MAX             OUT_OF_HOST_MEMORY of the push
 *     sites                        2^20 - 1                    0: not known
 *     steps of a mark              2^23 - 1                    the last one (api/stats)
 *     bytes of a block             2^48 - 1                    OUT_OF_MEMORY
 *     captures                     CAPTURES_MAX                CENOTE_CAPTURE
 *     contexts beside primary ones CONTEXTS_MAX                NOT_SUPPORTED
 *     immortal streams             IMMORTALS_MAX               the driver is asked as before
 *     streams that fences are on   TOUCH_STREAMS_MAX           fences leave them out (api/careful, api/unannounced_kinds)
 *     fences due, their events     FENCES_DUE_MAX, .._PARTS_   no further fence until one is done (pool/fence, api/lanes, api/careful)
 *     events of a pool             EVENTS_MAX                  a fence takes the place of the event
 *     pins of a page               2^32 - 1                    CENOTE_INVALID
 *     streams of a trace           RECORD_STREAMS_MAX          they share numbers (stats/records/records.h)
 */
#include <sys/resource.h>
#include <unistd.h>

#include <cenote/share.h>

#include "pool/pool.h"
#include "stats/account/sites.h"
#include "tests/api/scene.h"

#define CARD (512 * MIB)

/* Numbers of the table up to the last `left` count as handed out. Those given back before are taken first. */
static void spend(struct table *t, uint32_t left)
{
    REQUIRE(table_commit(t, t->most));
    REQUIRE(t->used + left < t->most);
    t->used = t->most - left;
    t->first_free = t->free_count = 0;
}

/* Allocations on stream A until one fails. How many did not. All are given back, and the next is served again. */
static int fill(struct scene *scene, size_t bytes, int error)
{
    static void *blocks[100];
    int count = 0, said = 0;
    while (count < 100 && !(said = cenote_alloc(scene->pool, bytes, scene->stream[A], &blocks[count])))
        count++;
    EXPECT_EQ(said, error);
    EXPECT(strstr(cenote_message(), "host memory") != NULL);
    DONE(cenote_pool_check(scene->pool));
    for (int i = 0; i < count; i++)
        DONE(cenote_free(blocks[i]));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT)); /* empty slabs are kept until then */
    DONE(cenote_alloc(scene->pool, bytes, scene->stream[A], &blocks[0]));
    DONE(cenote_free(blocks[0]));
    return count;
}

static void *warm(struct scene *scene)
{
    void *block = NULL;
    DONE(cenote_alloc(scene->pool, MIB, scene->stream[A], &block));
    return block;
}

CASE(the_last_block)
{
    struct scene scene;
    scene_open(&scene, CARD);
    void *block = warm(&scene);
    spend(&scene.pool->store.blocks, 13);
    EXPECT(fill(&scene, 700 * KIB, CENOTE_OUT_OF_HOST_MEMORY) > 3); /* some ranges between them are blocks, too */
    DONE(cenote_free(block));
    scene_close(&scene);
}

CASE(the_last_slab)
{
    struct scene scene;
    scene_open(&scene, CARD);
    void *block = warm(&scene);
    spend(&scene.pool->store.slabs, 3);
    EXPECT_EQ(fill(&scene, 8 * KIB, CENOTE_OUT_OF_HOST_MEMORY), 2 * 8 + 1); /* a number is free for each allocation, or it could fail half way */
    DONE(cenote_free(block));
    scene_close(&scene);
}

CASE(the_last_page)
{
    struct scene scene;
    scene_open(&scene, CARD);
    void *block = warm(&scene);
    spend(&scene.pool->store.pages.table, 5);
    EXPECT_EQ(fill(&scene, 2 * MIB, CENOTE_OUT_OF_HOST_MEMORY), 5); /* each ends on the page that the next one begins on */
    DONE(cenote_free(block));
    scene_close(&scene);
}

CASE(the_last_region)
{
    struct scene scene;
    void *block[3];
    scene_open(&scene, CARD);
    DONE(cenote_alloc(scene.pool, 20 * MIB, scene.stream[A], &block[0]));
    spend(&scene.pool->store.pages.regions, 1);
    DONE(cenote_alloc(scene.pool, 20 * MIB, scene.stream[B], &block[1]));
    EXPECT_EQ(scene.pool->store.pages.regions.used, REGIONS_MAX + 1);
    EXPECT_EQ(cenote_alloc(scene.pool, 20 * MIB, scene.stream[C], &block[2]), CENOTE_OUT_OF_HOST_MEMORY);
    DONE(cenote_alloc(scene.pool, 20 * MIB, scene.stream[B], &block[2]));
    for (int i = 0; i < 3; i++)
        DONE(cenote_free(block[i]));
    scene_close(&scene);
}

CASE(the_last_use_and_the_last_lane)
{
    struct scene scene;
    CUstream stream[4];
    scene_open(&scene, CARD);
    void *block = warm(&scene), *other = warm(&scene);
    for (int i = 0; i < 4; i++)
        DONE(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    spend(&scene.pool->clock.uses.table, 2);
    DONE(cenote_use(block, stream[0]));
    DONE(cenote_use(other, stream[1]));
    EXPECT_EQ(cenote_use(other, stream[2]), CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(scene.pool->clock.uses.table.used, USES_MAX + 1);
    DONE(cenote_free(block));
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    spend(&scene.pool->clock.lanes.table, 1);
    DONE(cenote_use(other, stream[3]));
    DONE(cenote_free(other));
    other = warm(&scene);
    EXPECT_EQ(scene.pool->clock.lanes.table.used, LANES_MAX + 1);
    EXPECT_EQ(cenote_use(other, stream[2]), CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(cenote_alloc(scene.pool, MIB, stream[2], &block), CENOTE_OUT_OF_HOST_MEMORY);
    DONE(cenote_free(other));
    for (int i = 0; i < 4; i++)
        DONE(cuStreamDestroy(stream[i]));
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    scene_close(&scene);
}

/* With announced:0 the last arena knows how far its stream is, too. */
CASE(the_last_arena)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    void *block[SCENE_STREAMS];
    options.announced = 0;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
    spend(&scene.pool->store.arenas, 2);
    DONE(cenote_alloc(scene.pool, 20 * MIB, scene.stream[A], &block[A]));
    DONE(cenote_alloc(scene.pool, 20 * MIB, scene.stream[B], &block[B]));
    EXPECT_EQ(scene.pool->store.arenas.used, ARENAS_MAX + 1);
    EXPECT(arena_of(scene.pool, ARENAS_MAX)->number == ARENAS_MAX && arena_of(scene.pool, ARENAS_MAX)->handle == scene.stream[B]);
    EXPECT_EQ(cenote_alloc(scene.pool, 20 * MIB, scene.stream[C], &block[C]), CENOTE_OUT_OF_HOST_MEMORY);
    DONE(cenote_free(block[B]));
    DONE(cenote_stream_retire(scene.pool, scene.stream[A]));
    DONE(cenote_free(block[A]));
    DONE(cuCtxSynchronize());
    EXPECT(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT) == 0 && scene_stats(scene.pool).reserved.current == 0);
    EXPECT(horizon_of(&scene.pool->clock.fences, &arena_of(scene.pool, ARENAS_MAX)->horizon) > 0);
    DONE(cenote_alloc(scene.pool, 20 * MIB, scene.stream[C], &block[C])); /* the other arena was given back */
    DONE(cenote_free(block[C]));
    DONE(cenote_stream_retire(scene.pool, scene.stream[C]));
    scene_close(&scene);
}

CASE(the_last_group)
{
    struct scene scene;
    cenote_group *group[3] = {NULL};
    scene_open(&scene, CARD);
    spend(&scene.pool->groups.table, 2);
    DONE(cenote_group_create(scene.pool, "last but one", 0, NULL, &group[0]));
    DONE(cenote_group_create(scene.pool, "last", 0, NULL, &group[1]));
    EXPECT_EQ(group[1]->number, GROUPS_MAX);
    EXPECT_EQ(cenote_group_create(scene.pool, "one more", 0, NULL, &group[2]), CENOTE_OUT_OF_HOST_MEMORY);
    void *block;
    DONE(group_alloc(group[1], MIB, 512, scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group[0]));
    DONE(cenote_group_create(scene.pool, "one more", 0, NULL, &group[2]));
    DONE(cenote_group_destroy(group[1]));
    DONE(cenote_group_destroy(group[2]));
    scene_close(&scene);
}

CASE(the_last_export)
{
    struct scene scene;
    cenote_share share;
    scene_open(&scene, CARD);
    void *block[2] = {warm(&scene), warm(&scene)};
    spend(&scene.pool->exports.table, 1);
    DONE(cenote_export(block[0], &share));
    EXPECT_EQ(scene.pool->exports.table.used, EXPORTS_MAX + 1);
    EXPECT_EQ(cenote_export(block[1], &share), CENOTE_OUT_OF_HOST_MEMORY);
    DONE(cenote_free(block[0])); /* its export has ended */
    DONE(cenote_export(block[1], &share));
    DONE(cenote_free(block[1]));
    scene_close(&scene);
}

CASE(the_last_capture)
{
    struct scene scene;
    CUstream stream[CAPTURES_MAX + 1];
    scene_open(&scene, CARD);
    for (int i = 0; i <= CAPTURES_MAX; i++)
        DONE(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < CAPTURES_MAX; i++)
        DONE(cenote_capture_begin(scene.pool, NULL, stream[i]));
    EXPECT_EQ(cenote_capture_begin(scene.pool, NULL, stream[CAPTURES_MAX]), CENOTE_CAPTURE);
    for (int i = 0; i < CAPTURES_MAX; i++)
        DONE(cenote_capture_end(scene.pool, NULL, stream[i]));
    DONE(cenote_capture_begin(scene.pool, NULL, stream[CAPTURES_MAX]));
    DONE(cenote_capture_end(scene.pool, NULL, stream[CAPTURES_MAX]));
    for (int i = 0; i <= CAPTURES_MAX; i++)
        DONE(cuStreamDestroy(stream[i]));
    scene_close(&scene);
}

CASE(the_last_context)
{
    struct scene scene;
    static CUcontext context[CONTEXTS_MAX + 1];
    static cenote_pool *pool[CONTEXTS_MAX + 1];
    cenote_options options = scene_options();
    scene_open(&scene, CARD);
    for (int i = 0; i <= CONTEXTS_MAX; i++) {
        DONE(cuCtxCreate(&context[i], NULL, 0, 0));
        DONE(cuCtxPopCurrent(NULL));
        EXPECT_EQ(cenote_pool_create_in(context[i], &options, &pool[i]), i < CONTEXTS_MAX ? 0 : CENOTE_NOT_SUPPORTED);
    }
    for (int i = 0; i <= CONTEXTS_MAX; i++) {
        DONE(i < CONTEXTS_MAX ? cenote_pool_destroy(pool[i]) : 0);
        DONE(cuCtxDestroy(context[i]));
    }
    scene_close(&scene);
}

CASE(the_last_immortal_stream)
{
    enum { MANY = IMMORTALS_MAX + 10 };
    struct scene scene;
    static CUstream stream[MANY];
    void *block;
    scene_open(&scene, CARD);
    for (int i = 0; i < MANY; i++) {
        DONE(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
        DONE(cenote_stream_set_immortal(scene.pool, stream[i]));
    }
    for (int i = MANY - 20; i < MANY; i++) {
        DONE(cenote_alloc(scene.pool, MIB, stream[i], &block));
        DONE(cenote_use(block, stream[0]));
        DONE(cenote_free(block));
    }
    DONE(cuCtxSynchronize());
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    for (int i = 0; i < MANY; i++)
        DONE(cuStreamDestroy(stream[i]));
    scene_close(&scene);
}

/* The use gets no event, and the block comes back with a fence. */
CASE(the_last_event)
{
    struct scene scene;
    scene_open(&scene, CARD);
    void *block = warm(&scene);
    DONE(cenote_stream_set_immortal(scene.pool, scene.stream[B]));
    DONE(cenote_use(block, scene.stream[B]));
    uint32_t made = scene.pool->clock.events.made;
    scene.pool->clock.events.made = EVENTS_MAX;
    DONE(cenote_free(block));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 1);
    scene.pool->clock.events.made = made;
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).pending_blocks, 0);
    scene_close(&scene);
}

CASE(the_last_pin)
{
    struct scene scene;
    scene_open(&scene, CARD);
    void *block = warm(&scene);
    DONE(cenote_pin(block, MIB));
    struct region *r = addresses_find((uint64_t)(uintptr_t)block);
    uint32_t slot = region_slot(r, (uint64_t)(uintptr_t)block);
    struct page *p = page_of(&scene.pool->store.pages, r->page[slot]);
    r->pins[slot] = p->pins = UINT32_MAX - 1;
    scene.pool->groups.pins = UINT32_MAX - 1;
    DONE(cenote_pin(block, MIB));
    EXPECT_EQ(cenote_pin(block, MIB), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "unpin") != NULL);
    EXPECT(r->pins[slot] == UINT32_MAX && p->pins == UINT32_MAX && scene.pool->groups.pins == UINT32_MAX);
    DONE(cenote_pool_check(scene.pool));
    scene.pool->groups.pins += UINT32_MAX; /* as many on another page: the pool counts the pins of all */
    DONE(cenote_unpin(block, MIB));
    EXPECT_EQ(cenote_pool_destroy(scene.pool), CENOTE_BUSY);
    EXPECT_EQ(scene.pool->groups.pins, 2ull * UINT32_MAX - 1);
    r->pins[slot] = p->pins = 1;
    scene.pool->groups.pins = 1;
    DONE(cenote_unpin(block, MIB));
    DONE(cenote_free(block));
    scene_close(&scene);
}

CASE(the_most_bytes)
{
    struct scene scene;
    void *block;
    scene_open(&scene, CARD);
    EXPECT_EQ(cenote_alloc(scene.pool, BYTES_MAX, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(cenote_alloc(scene.pool, BYTES_MAX + 1, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(cenote_alloc(scene.pool, SIZE_MAX, scene.stream[A], &block), CENOTE_OUT_OF_MEMORY);
    scene_close(&scene);
}

/* Where a program limits addresses, the message says that addresses are what lacks. */
CASE(a_limit_of_addresses)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    struct rlimit before;
    unsigned long pages = 0;
    scene_open_card(&scene, &shape);
    FILE *file = fopen("/proc/self/statm", "r");
    REQUIRE(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    DONE(getrlimit(RLIMIT_AS, &before));
    DONE(setrlimit(RLIMIT_AS, &(struct rlimit){(uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) + 20 * GIB, before.rlim_max}));
    int error = cenote_pool_create(0, NULL, &scene.pool);
    DONE(setrlimit(RLIMIT_AS, &before));
    EXPECT_EQ(error, CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT(strstr(cenote_message(), "RLIMIT_AS") && strstr(cenote_message(), "ulimit -v"));
    DONE(cenote_pool_create(0, NULL, &scene.pool));
    scene_close(&scene);
}

/* The last cases, as what is used up stays so. A tag and a site are parts of a mark, with other parts above them. */
CASE(the_last_site)
{
    struct scene scene;
    cenote_options options = scene_options();
    struct sim_shape shape = scene_card(CARD);
    uint64_t mark = 0, wrong = 0;
    options.sites = 1;
    scene_open_with(&scene, &shape, &options);
    for (uint32_t site = 1; site <= MARK_SITES_MAX; site++) {
        mark = site_mark((const void *)((uintptr_t)site << 4), 1);
        wrong += mark != (uint64_t)site << MARK_SITE_AT;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(mark, (uint64_t)MARK_SITES_MAX << MARK_SITE_AT);
    EXPECT_EQ(site_mark((const void *)((uintptr_t)(MARK_SITES_MAX + 1) << 4), 1), 0);
    EXPECT_EQ(site_mark((const void *)((uintptr_t)MARK_SITES_MAX << 4), 1), mark);
    void *block = warm(&scene);
    cenote_piece pieces[8];
    size_t count = 0;
    DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 8, &count));
    for (size_t i = 0; i < count && i < 8; i++)
        EXPECT(pieces[i].lent == 0 && pieces[i].site == 0);
    EXPECT(count > 0);
    DONE(cenote_free(block));
    scene_close(&scene);
}

CASE(the_last_tag)
{
    struct scene scene;
    char name[16];
    uint64_t wrong = 0;
    static cenote_row rows[8];
    size_t count = 0;
    scene_open(&scene, CARD);
    for (int number = 1; number <= CENOTE_TAGS_MAX; number++) {
        snprintf(name, sizeof name, "%d", number);
        DONE(cenote_tag_push(name));
        wrong += label_now() != (uint64_t)number;
        if (number < CENOTE_TAGS_MAX)
            DONE(cenote_tag_pop());
    }
    EXPECT_EQ(wrong, 0);
    void *block = warm(&scene);
    EXPECT_EQ(cenote_tag_push("one more"), CENOTE_OUT_OF_HOST_MEMORY);
    DONE(cenote_tag_pop());
    EXPECT_EQ(cenote_tag_push("one more"), CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT_EQ(cenote_tag_pop(), CENOTE_INVALID);
    DONE(cenote_pool_rows(scene.pool, CENOTE_BY_TAG, rows, 8, &count));
    EXPECT(count == 1 && rows[0].key == CENOTE_TAGS_MAX && !strcmp(rows[0].name, "16383"));
    DONE(cenote_pool_rows(scene.pool, CENOTE_BY_PHASE, rows, 8, &count));
    EXPECT(count == 1 && rows[0].key == 0);
    DONE(cenote_free(block));
    scene_close(&scene);
}

SCENES_MAIN("table ends")
