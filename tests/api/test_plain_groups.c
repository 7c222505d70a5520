/*
 * test_plain_groups.c: groups whose memory is that of cuMemAlloc in a pool of pages, as CENOTE_GROUP_PLAIN and `graphs:plain` make them: legacy
 * CUDA IPC takes it, and the two kinds of memory stay apart.
 * Not: what a plain pool does (test_providers.c), what registers memory (test_registered.c).
 */
#include "tests/api/pair.h"

#define CARD (64 * MIB)

static unsigned legacy_capable(const void *at)
{
    unsigned capable = 2;
    DONE(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, device_address(at)));
    return capable;
}

static struct held take_of(cenote_group *group, size_t bytes, CUstream stream)
{
    void *block = NULL;
    DONE(group_alloc(group, bytes, 512, stream, &block));
    REQUIRE(block);
    return held_of(block, bytes, stream);
}

static cenote_group *group_with(const struct scene *scene, unsigned flags)
{
    cenote_group *group = NULL;
    DONE(cenote_group_create(scene->pool, "g", flags, NULL, &group));
    REQUIRE(group);
    return group;
}

static uint64_t segments(void)
{
    return books().allocations;
}

/* --------------------------------------------------------------------------------------------------------------- legacy CUDA IPC */

/*
 * Step by step what a custom all-reduce does with each buffer that a graph has used: where does its allocation begin, a handle of that, and how far
 * in does the buffer lie.
 */
static uint64_t hand_over(const struct held *held, struct order *o)
{
    CUdeviceptr base = 0;
    CUipcMemHandle handle;
    DONE(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device_address(held->at)));
    DONE(cuIpcGetMemHandle(&handle, base));
    *o = (struct order){.op = OPEN_LEGACY};
    memcpy(&o->share, &handle, sizeof handle);
    return device_address(held->at) - base;
}

CASE(another_process_reads_what_a_replay_wrote)
{
    struct pair p;
    struct sim_shape shape = shared_card();
    cenote_options options = scene_options();
    options.graphs = CENOTE_GRAPHS_PLAIN;
    scene_open_with(&p.scene, &shape, &options);
    other_start(&p.other, shape_text, CENOTE_VMM);

    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUstream stream = p.scene.stream[A];
    cenote_group *group = group_with(&p.scene, CENOTE_GROUP_PRIVATE);
    struct held first, second;
    struct order o;
    DONE(cenote_capture_begin(NULL, group, stream));
    DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    REQUIRE(held_take(&first, p.scene.pool, 3 * MIB, stream));
    REQUIRE(held_take(&second, p.scene.pool, 5 * MIB, stream));
    DONE(cuStreamEndCapture(stream, &graph));
    DONE(cenote_capture_end(NULL, group, stream));
    uint64_t offset = hand_over(&second, &o);
    EXPECT(offset > 0); /* not the first of its segment: the base is what is handed over */
    DONE(other_order(&p.other, &o));
    DONE(cuGraphInstantiate(&exec, graph, 0));
    DONE(cuGraphLaunch(exec, stream));
    DONE(cuStreamSynchronize(stream));
    for (size_t from = 0; from < second.bytes; from += MIB)
        EXPECT_EQ(other_differ(&p.other, o.at + offset + from, second.pattern + from, MIB), 0);
    DONE(other_order(&p.other, &(struct order){.op = CLOSE_LEGACY, .at = o.at}));

    DONE(cuGraphExecDestroy(exec));
    DONE(cuGraphDestroy(graph));
    held_give(&first);
    held_give(&second);
    DONE(cenote_group_destroy(group));
    close_pair(&p);
}

CASE(pages_are_refused_as_by_a_driver)
{
    struct scene scene;
    struct held held;
    CUipcMemHandle handle;
    scene_open(&scene, CARD);
    cenote_group *graph = group_with(&scene, CENOTE_GROUP_PRIVATE), *plain = group_with(&scene, CENOTE_GROUP_PLAIN);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    struct held captured = take_of(graph, 3 * MIB, scene.stream[A]), other = take_of(plain, 3 * MIB, scene.stream[A]);
    sim_set_quiet(true);
    EXPECT_EQ(legacy_capable(held.at), 0);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, device_address(held.at)), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(legacy_capable(captured.at), 0);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, device_address(captured.at)), CUDA_ERROR_INVALID_VALUE);
    sim_set_quiet(false);
    EXPECT_EQ(legacy_capable(other.at), 1);
    DONE(cuIpcGetMemHandle(&handle, device_address(other.at)));
    held_give(&held);
    held_give(&captured);
    held_give(&other);
    DONE(cenote_group_destroy(graph));
    DONE(cenote_group_destroy(plain));
    EXPECT_EQ(books().violations, 2); /* what the driver was asked for in vain */
    scene_destroy_pool(&scene);
    sim_reset(NULL);
    scene_is_open = false;
}

/* Cenote's own road to another process: it exports a segment where a block lies in one, and pages elsewhere. */
CASE(a_block_of_a_plain_group_is_imported_there)
{
    struct pair p;
    cenote_share shares[2];
    struct held blocks[2];
    open_pair(&p);
    cenote_group *plain = group_with(&p.scene, CENOTE_GROUP_PLAIN);
    blocks[0] = take_of(plain, MIB, NULL);
    REQUIRE(held_take(&blocks[1], p.scene.pool, MIB, NULL));
    for (int i = 0; i < 2; i++) {
        uint64_t there;
        DONE(cenote_export(blocks[i].at, &shares[i]));
        DONE(cuCtxSynchronize());
        DONE(other_import(&p.other, &shares[i], &there));
        EXPECT_EQ(other_differ(&p.other, there, blocks[i].pattern, MIB), 0);
        DONE(other_close(&p.other, there));
        held_give(&blocks[i]);
    }
    DONE(cenote_group_destroy(plain));
    close_pair(&p);
}

/* ------------------------------------------------------------------------------------------------------------- two kinds of memory */

/* Arenas are taken over by groups of their own kind, so that no driver call is needed, and by no others. */
CASE(kinds_of_memory_do_not_mix)
{
    struct scene scene;
    struct held held;
    scene_open(&scene, CARD);
    for (unsigned private = 0; private <= CENOTE_GROUP_PRIVATE; private++) {
        const char *first = NULL;
        for (int round = 0; round < 8; round++) {
            bool plain = round & 1;
            cenote_group *group = group_with(&scene, private | (plain ? CENOTE_GROUP_PLAIN : 0));
            held = take_of(group, 3 * MIB, scene.stream[A]);
            EXPECT_EQ(legacy_capable(held.at), plain);
            if (plain)
                EXPECT(!first || held.at == first);
            first = plain ? held.at : first;
            held_give(&held);
            DONE(cenote_group_destroy(group));
            REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[B])); /* of another stream, which takes arenas over too */
            EXPECT_EQ(legacy_capable(held.at), 0);
            held_give(&held);
            DONE(cenote_stream_retire(scene.pool, scene.stream[B]));
            DONE(cuCtxSynchronize());
            DONE(cenote_pool_check(scene.pool));
        }
    }
    DONE(cenote_pool_trim(scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene.pool).reserved.current, 0);
    scene_close(&scene);
}

/* A picture tells memory that came as one piece from pages. */
CASE(pieces_say_which_kind)
{
    struct scene scene;
    struct held held[2];
    cenote_piece pieces[64];
    size_t count = 0;
    scene_open(&scene, CARD);
    cenote_group *plain = group_with(&scene, CENOTE_GROUP_PLAIN);
    held[0] = take_of(plain, MIB, scene.stream[A]);
    REQUIRE(held_take(&held[1], scene.pool, MIB, scene.stream[A]));
    DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 64, &count));
    REQUIRE(count >= 2 && count <= 64);
    for (size_t i = 0; i < count; i++)
        EXPECT_EQ(pieces[i].came_whole, pieces[i].group == plain);
    held_give(&held[0]);
    held_give(&held[1]);
    DONE(cenote_group_destroy(plain));
    scene_close(&scene);
}

/* A card full of what one kind has free serves the other. */
CASE(each_kind_makes_way_for_the_other)
{
    struct scene scene;
    struct held held[3];
    scene_open(&scene, CARD);
    cenote_group *plain = group_with(&scene, CENOTE_GROUP_PLAIN);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++)
            held[i] = take_of(plain, 20 * MIB, scene.stream[A]);
        for (int i = 0; i < 3; i++)
            held_give(&held[i]);
        REQUIRE(held_take(&held[0], scene.pool, 60 * MIB, scene.stream[A]));
        EXPECT_EQ(segments(), 0);
        held_give(&held[0]);
    }
    held[0] = take_of(plain, 20 * MIB, scene.stream[A]); /* live beside what pages can have */
    REQUIRE(held_take(&held[1], scene.pool, 44 * MIB, scene.stream[B]));
    EXPECT(!held_take(&held[2], scene.pool, 2 * MIB, scene.stream[B]));
    held_give(&held[1]);
    held_give(&held[0]);
    DONE(cenote_group_destroy(plain));
    scene_close(&scene);
}

/* What waits for a stream, and the edges of blocks in segments: a request that both can serve is served. */
CASE(sums_know_both_kinds)
{
    struct scene scene;
    struct held waits, kept, wide;
    scene_open(&scene, CARD);
    cenote_group *plain = group_with(&scene, CENOTE_GROUP_PLAIN);
    kept = take_of(plain, MIB, scene.stream[A]);
    waits = take_of(plain, 20 * MIB, scene.stream[A]);
    held_linger(&waits, scene.stream[B]);
    DONE(cenote_use(waits.at, scene.stream[B]));
    held_give(&waits);
    REQUIRE(held_take(&wide, scene.pool, 60 * MIB, scene.stream[C]));
    held_give(&wide);
    held_give(&kept);
    DONE(cenote_group_destroy(plain));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------ calls and flags */

CASE(when_a_group_may_become_plain)
{
    struct scene scene;
    cenote_group *group, *none = NULL;
    cenote_source source = {take_source, give_source, NULL};
    struct held held;
    scene_open(&scene, CARD);
    EXPECT_EQ(cenote_group_create(scene.pool, "both", CENOTE_GROUP_PLAIN, &source, &none), CENOTE_INVALID);
    group = group_with(&scene, CENOTE_GROUP_PRIVATE);
    DONE(cenote_group_set_flags(group, CENOTE_GROUP_PRIVATE | CENOTE_GROUP_PLAIN));
    DONE(cenote_group_set_flags(group, CENOTE_GROUP_PRIVATE));
    DONE(cenote_group_set_flags(group, CENOTE_GROUP_PRIVATE | CENOTE_GROUP_PLAIN | CENOTE_GROUP_WHOLE));
    held = take_of(group, MIB, scene.stream[A]);
    EXPECT_EQ(legacy_capable(held.at), 1);
    EXPECT_EQ(cenote_group_set_flags(group, CENOTE_GROUP_PRIVATE), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "before the first allocation"));
    DONE(cenote_group_set_flags(group, CENOTE_GROUP_PRIVATE | CENOTE_GROUP_PLAIN)); /* WHOLE may go */
    held_give(&held);
    DONE(cenote_group_destroy(group));
    DONE(cenote_group_create(scene.pool, "source", 0, &source, &group));
    EXPECT_EQ(cenote_group_set_flags(group, CENOTE_GROUP_PLAIN), CENOTE_INVALID);
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

/* graphs:plain is for groups that are private, whatever flags come and go. */
static void private_groups_have(uint32_t graphs)
{
    struct scene scene;
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.graphs = graphs;
    scene_open_with(&scene, &shape, &options);
    cenote_group *graph = group_with(&scene, CENOTE_GROUP_PRIVATE), *open = group_with(&scene, 0);
    DONE(cenote_group_set_flags(graph, CENOTE_GROUP_PRIVATE | CENOTE_GROUP_LEND));
    struct held held[2] = {take_of(graph, MIB, scene.stream[A]), take_of(open, MIB, scene.stream[A])};
    EXPECT_EQ(legacy_capable(held[0].at), graphs == CENOTE_GRAPHS_PLAIN);
    EXPECT_EQ(legacy_capable(held[1].at), 0);
    held_give(&held[0]);
    held_give(&held[1]);
    DONE(cenote_group_destroy(graph));
    DONE(cenote_group_destroy(open));
    scene_close(&scene);
}

CASE(the_option_is_for_private_groups)
{
    private_groups_have(CENOTE_GRAPHS_PLAIN);
    private_groups_have(CENOTE_GRAPHS_PAGES);
    private_groups_have(CENOTE_GRAPHS_AUTO); /* no adapter has asked for the other */
}

/* A provider whose memory is of one kind has it for plain groups too, but for async: there segments of cuMemAlloc are the other kind. */
CASE(plain_groups_of_other_providers)
{
    static const unsigned providers[] = {CENOTE_ASYNC, CENOTE_PLAIN, CENOTE_GUARD};
    for (int i = 0; i < 3; i++) {
        struct scene scene;
        struct sim_shape shape = scene_card(CARD);
        cenote_options options = scene_options();
        options.provider = providers[i];
        scene_open_with(&scene, &shape, &options);
        cenote_group *plain = group_with(&scene, CENOTE_GROUP_PLAIN);
        struct held held = take_of(plain, 40 * MIB, scene.stream[A]);
        EXPECT_EQ(legacy_capable(held.at), providers[i] != CENOTE_GUARD);
        held_give(&held);
        DONE(cenote_group_destroy(plain));
        scene_close(&scene);
    }
}

/* A block that has a segment to itself begins where that does. The driver aligns memory to 2 MiB: now and then that is enough. */
CASE(a_whole_block_begins_where_its_segment_does)
{
    struct scene scene;
    cenote_options options = scene_options();
    struct sim_shape shape = scene_card(CARD);
    void *block[6] = {NULL};
    int refused = 0;
    options.page_mib = 8;
    scene_open_with(&scene, &shape, &options);
    cenote_group *group = group_with(&scene, CENOTE_GROUP_PLAIN | CENOTE_GROUP_WHOLE);
    for (int i = 0; i < 6; i++) {
        int error = group_alloc(group, 3 * MIB, 8 * MIB, scene.stream[A], &block[i]);
        EXPECT(error ? error == CENOTE_INVALID : device_address(block[i]) % (8 * MIB) == 0);
        EXPECT(!error || strstr(cenote_message(), "begins where that does"));
        EXPECT_EQ(segments(), i + 1 - (refused += error != CENOTE_OK)); /* what was not aligned went back */
    }
    EXPECT(refused > 0);
    for (int i = 0; i < 6; i++)
        DONE(cenote_free(block[i]));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], OTHER_WORD) == 0)
        return other_main(argv[2]);
    return test_run("plain groups", argc > 1 ? argv[1] : "", NULL, scene_after);
}
