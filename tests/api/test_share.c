/*
 * test_share.c: memory shared between processes that share one simulated machine: contents, lifetimes, what is refused, and what it costs
 * in addresses and descriptors. test_share_peers.c has those that do not behave.
 */
#include "tests/api/pair.h"

#include <cenote/sleep.h>

#include "driver/driver.h"
#include "share/share.h"

/* --------------------------------------------------------------------------------------------------------------------- contents */

/* Both write, both see it. */
static void both_ways(unsigned provider, size_t bytes)
{
    struct pair p;
    cenote_share share;
    uint64_t there;
    void *here = NULL;
    open_pair_with(&p, provider);
    DONE(other_take(&p.other, bytes, 7, &share, &there));
    DONE(import(&share, &here));
    EXPECT_EQ(differ(here, 7, bytes), 0);
    fill(here, 8, bytes);
    EXPECT_EQ(other_differ(&p.other, there, 8, bytes), 0);
    DONE(other_fill(&p.other, there, 9, bytes));
    EXPECT_EQ(differ(here, 9, bytes), 0);
    DONE(cenote_import_close(here));
    DONE(other_give(&p.other, there));
    close_pair(&p);
}

CASE(a_block_of_many_pages) { both_ways(CENOTE_VMM, 37 * MIB + 512); }
CASE(a_small_block) { both_ways(CENOTE_VMM, 4096); }
CASE(a_block_of_a_plain_segment) { both_ways(CENOTE_PLAIN, 5 * MIB); }
CASE(a_small_block_of_a_plain_segment) { both_ways(CENOTE_PLAIN, 1024); }

CASE(what_is_exported_here_is_imported_there)
{
    struct pair p;
    cenote_share share;
    struct held held;
    uint64_t there;
    open_pair(&p);
    REQUIRE(held_take(&held, p.scene.pool, 5 * MIB, NULL));
    DONE(cenote_export(held.at + 3 * MIB + 8, &share)); /* an address inside */
    fill(held.at, 1, 5 * MIB);
    fill(held.at + 3 * MIB + 8, 2, MIB);
    DONE(other_import(&p.other, &share, &there));
    EXPECT_EQ(other_differ(&p.other, there, 2, MIB), 0);
    EXPECT_EQ(other_differ(&p.other, there - MIB, 1, MIB), 0);
    EXPECT_EQ(other_differ(&p.other, there + MIB, 1, MIB - 512), 0);
    DONE(other_close(&p.other, there));
    DONE(cenote_free(held.at));
    close_pair(&p);
}

CASE(neighbours_keep_their_contents)
{
    struct pair p;
    cenote_share shares[3];
    uint64_t there[3];
    void *here;
    open_pair(&p);
    for (uint64_t i = 0; i < 3; i++)
        DONE(other_take(&p.other, 3 * MIB, 10 + i, &shares[i], &there[i]));
    DONE(import(&shares[1], &here));
    fill(here, 99, 3 * MIB);
    EXPECT_EQ(other_differ(&p.other, there[0], 10, 3 * MIB), 0);
    EXPECT_EQ(other_differ(&p.other, there[1], 99, 3 * MIB), 0);
    EXPECT_EQ(other_differ(&p.other, there[2], 12, 3 * MIB), 0);
    DONE(cenote_import_close(here));
    close_pair(&p);
}

/* -------------------------------------------------------------------------------------------------------- found again, let go of */

CASE(the_same_block_twice_is_one_mapping)
{
    struct pair p;
    cenote_share share;
    uint64_t there;
    void *first, *second;
    open_pair(&p);
    DONE(other_take(&p.other, 9 * MIB, 7, &share, &there));
    DONE(import(&share, &first));
    uint64_t mappings = books().mappings;
    DONE(import(&share, &second));
    EXPECT_EQ(first, second);
    EXPECT_EQ(books().mappings, mappings);
    EXPECT(mappings >= 5);
    DONE(cenote_import_close(first));
    EXPECT_EQ(differ(second, 7, 9 * MIB), 0);
    EXPECT_EQ(cenote_import_close((char *)second + 512), CENOTE_NOT_OURS);
    DONE(cenote_import_close(second));
    EXPECT_EQ(books().mappings, 0);
    EXPECT_EQ(books().reserved, 0);
    EXPECT_EQ(books().handles, 0);
    EXPECT_EQ(cenote_import_close(second), CENOTE_NOT_OURS);
    EXPECT_EQ(cenote_import_close(NULL), CENOTE_NOT_OURS);
    close_pair(&p);
}

CASE(small_blocks_of_one_page_are_one_mapping)
{
    struct pair p;
    cenote_share shares[50];
    uint64_t there[50];
    void *here[50];
    open_pair(&p);
    for (uint64_t i = 0; i < 50; i++) {
        DONE(other_take(&p.other, 2048, 100 + i, &shares[i], &there[i]));
        DONE(import(&shares[i], &here[i]));
    }
    EXPECT_EQ(books().mappings, 1);
    EXPECT_EQ(books().reserved, 2 * MIB);
    for (uint64_t i = 0; i < 50; i++)
        EXPECT_EQ(differ(here[i], 100 + i, 2048), 0);
    for (int i = 0; i < 50; i++)
        DONE(cenote_import_close(here[i]));
    EXPECT_EQ(books().mappings, 0);
    close_pair(&p);
}

/* A receiver may remember by the message: memory that is exported anew must not look like the old. */
CASE(a_freed_block_is_gone_and_the_next_has_another_name)
{
    struct pair p;
    cenote_share old, new;
    uint64_t there, again;
    void *here;
    open_pair(&p);
    DONE(other_take(&p.other, 5 * MIB, 1, &old, &there));
    DONE(other_give(&p.other, there));
    EXPECT_EQ(import(&old, &here), CENOTE_GONE);
    DONE(other_take(&p.other, 5 * MIB, 2, &new, &again));
    EXPECT_EQ(there, again);
    EXPECT(memcmp(&old, &new, sizeof old) != 0);
    EXPECT_EQ(import(&old, &here), CENOTE_GONE);
    EXPECT(strstr(cenote_message(), "process that exported") != NULL);
    DONE(import(&new, &here));
    EXPECT_EQ(differ(here, 2, 5 * MIB), 0);
    DONE(cenote_import_close(here));
    close_pair(&p);
}

/* The page of a freed block sleeps as others do. What comes in its place is exported as other memory, whatever an importer still has. */
CASE(a_page_sleeps_when_its_export_has_ended)
{
    struct scene scene;
    cenote_share share;
    cenote_sleep slept = {.group = NULL};
    struct held held;
    void *old, *new;
    scene_open(&scene, 64 * MIB);
    for (int round = 0; round < 2; round++) {
        REQUIRE(held_take(&held, scene.pool, 2 * MIB, scene.stream[A]));
        DONE(cuCtxSynchronize());
        fill(held.at, 70 + (uint64_t)round, 2 * MIB);
        DONE(cenote_export(held.at, &share));
        DONE(import(&share, round ? &new : &old));
        DONE(cenote_pool_pause(scene.pool, &slept));
        EXPECT_EQ(slept.pages, 0); /* it is exported */
        EXPECT_EQ(differ(round ? new : old, 70 + (uint64_t)round, 2 * MIB), 0);
        DONE(cenote_free(held.at));
        REQUIRE(held_take(&held, scene.pool, 2 * MIB, scene.stream[A]));
        DONE(cenote_pool_pause(scene.pool, &slept));
        EXPECT_EQ(slept.pages, 2 * MIB);
        DONE(cenote_pool_resume(scene.pool, &slept));
        held_give(&held);
    }
    DONE(cenote_import_close(new));
    DONE(cenote_import_close(old));
    scene_close(&scene);
}

/* The first page is the one that is mapped here still, the others have moved on: what was mapped before must not serve. */
CASE(other_pages_behind_the_same_first_one)
{
    struct scene scene;
    cenote_share old, new;
    struct held a, edge, other, again;
    void *here, *there;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&a, scene.pool, 6 * MIB, scene.stream[A]));
    DONE(cenote_export(a.at, &old));
    DONE(import(&old, &here));
    held_give(&a);
    DONE(cenote_pool_trim(scene.pool, UINT64_MAX, CENOTE_TRIM_WAIT));
    REQUIRE(held_take(&edge, scene.pool, MIB, scene.stream[A])); /* keeps the first page */
    REQUIRE(held_take(&other, scene.pool, 4 * MIB, scene.stream[B]));
    EXPECT_EQ(edge.at, a.at);
    EXPECT_EQ(scene_stats(scene.pool).pages_harvested, 2);
    held_give(&edge);
    REQUIRE(held_take(&again, scene.pool, 6 * MIB, scene.stream[A]));
    EXPECT_EQ(again.at, a.at);
    DONE(cuCtxSynchronize());
    fill(again.at, 77, 6 * MIB);
    DONE(cenote_export(again.at, &new));
    DONE(import(&new, &there));
    EXPECT(there != here);
    EXPECT_EQ(differ(there, 77, 6 * MIB), 0);
    DONE(cenote_import_close(here));
    DONE(cenote_import_close(there));
    DONE(cenote_free(again.at));
    held_give(&other);
    scene_close(&scene);
}

CASE(exporting_twice_says_the_same)
{
    struct scene scene;
    cenote_share first, second;
    struct held held;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    DONE(cenote_export(held.at, &first));
    DONE(cenote_export(held.at, &second));
    EXPECT(memcmp(&first, &second, sizeof first) == 0);
    held_give(&held);
    EXPECT_EQ(cenote_export(held.at, &first), CENOTE_DOUBLE_FREE);
    EXPECT_EQ(cenote_export(NULL, &first), CENOTE_INVALID);
    EXPECT_EQ(cenote_export(&scene, &first), CENOTE_NOT_OURS);
    EXPECT_EQ(cenote_export(held.at, NULL), CENOTE_INVALID);
    scene_close(&scene);
}

/* A block that waits for another stream after its free is gone for others at once. */
CASE(a_pending_block_is_gone)
{
    struct scene scene;
    cenote_share share;
    struct held held;
    void *here;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    DONE(cenote_export(held.at, &share));
    DONE(cenote_use(held.at, scene.stream[B]));
    held_linger(&held, scene.stream[B]);
    DONE(cenote_free(held.at));
    EXPECT_EQ(import(&share, &here), CENOTE_GONE);
    scene_close(&scene);
}

CASE(ones_own_block_can_be_imported)
{
    struct scene scene;
    cenote_share share;
    struct held held;
    void *here;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    held_expect(&held, scene.stream[A]);
    DONE(cuCtxSynchronize());
    DONE(cenote_export(held.at, &share));
    DONE(import(&share, &here));
    EXPECT(here != held.at);
    fill(here, 5, 3 * MIB);
    EXPECT_EQ(differ(held.at, 5, 3 * MIB), 0);
    DONE(cenote_import_close(here));
    DONE(cenote_free(held.at));
    scene_close(&scene);
}

/* --------------------------------------------------------------------------------------------------------------- one side dies */

CASE(the_sender_dies_first)
{
    struct pair p;
    cenote_share share, unseen;
    uint64_t there;
    void *here, *none = NULL;
    open_pair(&p);
    DONE(other_take(&p.other, 7 * MIB, 7, &share, &there));
    DONE(other_take(&p.other, 7 * MIB, 8, &unseen, &there));
    DONE(import(&share, &here));
    other_kill(&p.other);
    EXPECT_EQ(differ(here, 7, 7 * MIB), 0);
    fill(here, 8, 7 * MIB);
    EXPECT_EQ(import(&unseen, &none), CENOTE_GONE);
    EXPECT(strstr(cenote_message(), "is gone") != NULL);
    EXPECT(!none);
    EXPECT_EQ(differ(here, 8, 7 * MIB), 0);
    DONE(cenote_import_close(here));
    scene_close(&p.scene);
}

CASE(the_receiver_dies_first)
{
    struct pair p;
    cenote_share share;
    struct held held;
    uint64_t there;
    open_pair(&p);
    REQUIRE(held_take(&held, p.scene.pool, 7 * MIB, NULL));
    DONE(cenote_export(held.at, &share));
    DONE(other_import(&p.other, &share, &there));
    other_kill(&p.other);
    other_start(&p.other, shape_text, CENOTE_VMM);
    DONE(other_import(&p.other, &share, &there));
    EXPECT_EQ(other_differ(&p.other, there, held.pattern, MIB), 0);
    DONE(other_close(&p.other, there));
    held_give(&held);
    DONE(cenote_pool_trim(p.scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(p.scene.pool).reserved.current, 0);
    close_pair(&p);
}

CASE(the_sender_frees_while_the_receiver_still_looks)
{
    struct pair p;
    cenote_share share;
    uint64_t there;
    void *here;
    open_pair(&p);
    DONE(other_take(&p.other, 7 * MIB, 7, &share, &there));
    DONE(import(&share, &here));
    DONE(other_give(&p.other, there));
    EXPECT_EQ(differ(here, 7, 7 * MIB), 0); /* nothing is unmapped under it */
    DONE(cenote_import_close(here));
    close_pair(&p);
}

/* -------------------------------------------------------------------------------------------------------------- thousands, and cost */

#define MANY 4000

/* No descriptor is kept for a block or a page; 1,024 would not do. (The simulated card itself keeps one for each page it has shared.) */
CASE(thousands_of_blocks_with_few_descriptors)
{
    static cenote_share shares[MANY];
    static uint64_t there[MANY];
    static void *here[MANY];
    const size_t bytes = 300 * KIB;
    struct rlimit before, few = {1024, 1024};
    struct pair p;
    open_pair(&p);
    getrlimit(RLIMIT_NOFILE, &before);
    few.rlim_max = before.rlim_max;
    REQUIRE(!setrlimit(RLIMIT_NOFILE, &few));
    DONE(other_ask(&p.other, LIMIT_FILES, 1024).error);
    uint64_t before_there = other_ask(&p.other, FILES, 0).bytes;
    for (int i = 0; i < MANY; i++)
        DONE(other_take(&p.other, bytes, (uint64_t)i * 3 + 1, &shares[i], &there[i]));
    for (int i = 0; i < MANY; i++)
        REQUIRE_EQ(import(&shares[i], &here[i]), CENOTE_OK);
    for (int i = 0; i < MANY; i++)
        EXPECT_EQ(differ(here[i], (uint64_t)i * 3 + 1, bytes), 0);
    uint64_t pages = MANY * bytes / (2 * MIB) + 1;
    EXPECT(pages > 512); /* or one descriptor for each on top of the card's would go unnoticed */
    EXPECT(other_ask(&p.other, FILES, 0).bytes - before_there <= pages + 2);
    EXPECT(books().reserved <= 3 * pages * 2 * MIB); /* each page alone, and one more pair where a block crosses */
    for (int i = 0; i < MANY; i++)
        DONE(cenote_import_close(here[i]));
    EXPECT_EQ(books().reserved, 0);
    EXPECT_EQ(books().handles, 0);
    EXPECT_EQ(books().violations, 0);
    setrlimit(RLIMIT_NOFILE, &before);
    close_pair(&p);
}

CASE(addresses_are_those_of_the_pages)
{
    struct pair p;
    cenote_share share;
    uint64_t there;
    void *here;
    open_pair(&p);
    DONE(other_take(&p.other, 40 * MIB, 7, &share, &there));
    DONE(import(&share, &here));
    EXPECT(books().reserved <= 42 * MIB);
    DONE(cenote_import_close(here));
    close_pair(&p);
}

/* ---------------------------------------------------------------------------------------------------------------------- other kinds */

CASE(async_memory_cannot_be_shared)
{
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_share share;
    void *block;
    options.provider = CENOTE_ASYNC;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &block));
    EXPECT_EQ(cenote_export(block, &share), CENOTE_NOT_SUPPORTED);
    EXPECT(strstr(cenote_message(), "async") != NULL);
    DONE(cenote_free(block));
    scene_close(&scene);
}

CASE(memory_of_the_programs_own_source_is_not_ours_to_share)
{
    struct scene scene;
    cenote_source source = {take_source, give_source, NULL};
    cenote_share share;
    cenote_group *group;
    void *block;
    scene_open(&scene, 256 * MIB);
    DONE(cenote_group_create(scene.pool, "own", 0, &source, &group));
    DONE(group_alloc(group, MIB, 512, scene.stream[A], &block));
    EXPECT_EQ(cenote_export(block, &share), CENOTE_NOT_SUPPORTED);
    EXPECT(strstr(cenote_message(), "source") != NULL);
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

CASE(segments_of_this_process_itself_are_not_opened)
{
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_share share;
    void *block, *here;
    options.provider = CENOTE_PLAIN;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &block));
    DONE(cenote_export(block, &share));
    EXPECT_EQ(import(&share, &here), CENOTE_NOT_SUPPORTED);
    DONE(cenote_free(block));
    scene_close(&scene);
}

/* A refusal that passes costs nothing: what pages can be is asked twice, and later an allocation fails rather than lose its handle unsaid. */
CASE(a_driver_that_refuses_an_exportable_page_once)
{
    struct scene scene;
    cenote_share share;
    struct held held;
    void *block;
    scene_open(&scene, 64 * MIB);
    fault_arm("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED, false);
    REQUIRE(held_take(&held, scene.pool, 2 * MIB, scene.stream[A]));
    EXPECT_EQ(fault_fired(), 1);
    DONE(cenote_export(held.at, &share));
    fault_arm("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED, false);
    EXPECT_EQ(cenote_alloc(scene.pool, 2 * MIB, scene.stream[A], &block), CENOTE_DRIVER);
    EXPECT_EQ(fault_fired(), 1);
    fault_disarm();
    held_give(&held);
    scene_close(&scene);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], OTHER_WORD) == 0)
        return other_main(argv[2]);
    return test_run("share", argc > 1 ? argv[1] : "", NULL, scene_after);
}
