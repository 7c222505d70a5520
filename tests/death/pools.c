/* pools.c: what a program can do wrong with pools, options, groups, captures, streams and tags. */
#include <cenote/share.h>

#include "tests/death/misuse.h"

#include <math.h>

/* --------------------------------------------------------------------------------------------------------------------- pools that go */

MISUSE(destroyed_twice, CENOTE_INVALID, "the pool was destroyed")
{
    cenote_pool *pool = pool_of(s);
    DONE(cenote_pool_destroy(pool));
    return cenote_pool_destroy(pool);
}

MISUSE(taken_from_a_destroyed_pool, CENOTE_INVALID, "the pool was destroyed")
{
    void *block;
    cenote_pool *pool = pool_of(s);
    DONE(cenote_pool_destroy(pool));
    return cenote_alloc(pool, 512, s->scene.stream[A], &block);
}

/* Also when another pool could not be made in its place. */
ANSWER(the_device_of_a_destroyed_pool, -1, NULL)
{
    cenote_pool *pool = pool_of(s), *none;
    DONE(cenote_pool_destroy(pool));
    EXPECT_EQ(cenote_pool_create(99, NULL, &none), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_pool_provider(pool), -1);
    return cenote_pool_device(pool);
}

ANSWER(an_explanation_of_a_destroyed_pool, CENOTE_OK, NULL)
{
    char text[128];
    cenote_pool *pool = pool_of(s);
    DONE(cenote_pool_destroy(pool));
    EXPECT(cenote_pool_explain(pool, 0, text, sizeof text) > 0);
    return !strstr(text, "was destroyed");
}

MISUSE(imported_for_a_destroyed_pool, CENOTE_INVALID, "the pool was destroyed")
{
    cenote_share share;
    void *there = NULL;
    cenote_pool *pool = pool_of(s);
    DONE(cenote_export(s->live[0].at, &share));
    DONE(cenote_pool_destroy(pool));
    int error = cenote_pool_import(pool, &share, sizeof share, &there);
    EXPECT_EQ(there, NULL);
    return error;
}

MISUSE(destroyed_with_live_blocks, CENOTE_BUSY, "still live, 3146328 bytes: free what cenote_pool_pieces lists first")
{
    return cenote_pool_destroy(s->scene.pool);
}

MISUSE(destroyed_with_groups, CENOTE_BUSY, "cenote_group_destroy comes first")
{
    cenote_group *group;
    cenote_pool *pool = pool_of(s);
    DONE(cenote_group_create(pool, "graphs", 0, NULL, &group));
    int error = cenote_pool_destroy(pool);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_destroy(pool));
    return error;
}

MISUSE(destroyed_while_pinned, CENOTE_BUSY, "cenote_unpin comes first")
{
    void *block;
    cenote_pool *pool = pool_of(s);
    DONE(cenote_alloc(pool, MIB, s->scene.stream[A], &block));
    DONE(cenote_pin(block, MIB));
    DONE(cenote_free(block));
    int error = cenote_pool_destroy(pool);
    DONE(cenote_unpin(block, MIB));
    DONE(cenote_pool_destroy(pool));
    return error;
}

MISUSE(destroyed_during_a_capture, CENOTE_BUSY, "a capture is open")
{
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE);
    cenote_pool *pool = pool_of(s);
    DONE(cenote_capture_begin(s->scene.pool, group, s->scene.stream[B]));
    int error = cenote_pool_destroy(pool);
    DONE(cenote_capture_end(s->scene.pool, group, s->scene.stream[B]));
    DONE(cenote_pool_destroy(pool));
    DONE(cenote_group_destroy(group));
    return error;
}

/* ------------------------------------------------------------------------------------------------------------------------- options */

static int create_with(cenote_options options)
{
    cenote_pool *pool = NULL;
    int error = cenote_pool_create(0, &options, &pool);
    EXPECT(!pool);
    return error;
}

MISUSE(an_option_that_only_a_newer_version_knows, CENOTE_INVALID, "use a newer one, or leave it zero")
{
    struct {
        cenote_options known;
        char more[64];
    } newer = {.known = scene_options()};
    cenote_pool *pool;
    (void)s;
    DONE((cenote_pool_create)(0, &newer.known, &pool, sizeof newer) || cenote_pool_destroy(pool)); /* newer, but it asks for nothing new */
    newer.more[63] = 1;
    EXPECT_EQ((cenote_options_parse)(&newer.known, "page_mib:2", sizeof newer), CENOTE_INVALID);
    return (cenote_pool_create)(0, &newer.known, &pool, sizeof newer);
}

MISUSE(a_size_that_no_struct_has, CENOTE_INVALID, "the last argument is its size, sizeof(cenote_options)")
{
    static const size_t garbage[] = {0, 4097, 1u << 20, SIZE_MAX / 2, SIZE_MAX};
    cenote_pool *pool = NULL;
    int error = CENOTE_OK;
    (void)s;
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        cenote_options options = scene_options();
        EXPECT_EQ((cenote_options_parse)(&options, "page_mib:2", garbage[i]), CENOTE_INVALID);
        EXPECT_EQ(error = (cenote_pool_create)(0, &options, &pool, garbage[i]), CENOTE_INVALID);
    }
    return error;
}

MISUSE(options_out_of_range, CENOTE_BAD_OPTION, "option limit cannot be")
{
    (void)s;
    cenote_options options = scene_options();
    options.limit = -1;
    EXPECT_EQ(create_with(options), CENOTE_BAD_OPTION);
    options.limit = (double)NAN;
    return create_with(options);
}

MISUSE(an_option_that_does_not_exist, CENOTE_BAD_OPTION, "the nearest is \"limit\"")
{
    (void)s;
    cenote_options options = scene_options();
    return cenote_options_parse(&options, "limits:3");
}

MISUSE(a_page_that_the_device_does_not_have, CENOTE_INVALID, "smaller than the granularity")
{
    (void)s;
    cenote_options options = scene_options();
    options.page_mib = 1;
    return create_with(options);
}

ANSWER(a_device_that_is_not_there, CENOTE_NO_DEVICE, "device -1 does not exist")
{
    cenote_pool *pool;
    EXPECT_EQ(cenote_pool_create(2, NULL, &pool), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_pool_default(99, &pool), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_pool_grant(s->scene.pool, 5), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_use_on_device(s->live[0].at, 63, s->scene.stream[B]), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_use_on_device(s->live[0].at, INT32_MAX, s->scene.stream[B]), CENOTE_NO_DEVICE);
    EXPECT_EQ(cenote_use_on_device(s->live[0].at, -1, s->scene.stream[B]), CENOTE_NO_DEVICE);
    return cenote_pool_create(-1, NULL, &pool);
}

MISUSE(access_to_ones_own_memory, CENOTE_INVALID, "its own memory")
{
    return cenote_pool_grant(s->scene.pool, 0);
}

/* --------------------------------------------------------------------------------------------------------------- numbers out of range */

MISUSE(no_such_part, CENOTE_INVALID, "a part from 0 to 1")
{
    EXPECT_EQ(cenote_pool_set_trim_above(s->scene.pool, (double)NAN), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_set_trim_above(s->scene.pool, -0.1), CENOTE_INVALID);
    return cenote_pool_set_trim_above(s->scene.pool, 1.1);
}

MISUSE(no_such_flag_of_a_trim, CENOTE_INVALID, "flags 0x80000000: ")
{
    return cenote_pool_trim(s->scene.pool, 0, 1u << 31);
}

MISUSE(no_such_flag_of_a_group, CENOTE_INVALID, "flags 0x80: only")
{
    cenote_group *group;
    return cenote_group_create(s->scene.pool, "x", 0x80, NULL, &group);
}

MISUSE(no_such_division, CENOTE_INVALID, "a division from 0 to")
{
    size_t count;
    EXPECT_EQ(cenote_pool_rows(s->scene.pool, -1, NULL, 0, &count), CENOTE_INVALID);
    return cenote_pool_rows(s->scene.pool, 99, NULL, 0, &count);
}

MISUSE(no_such_phase, CENOTE_INVALID, "phases are numbered from 0 to")
{
    (void)s;
    EXPECT_EQ(cenote_phase_set(-1), CENOTE_INVALID);
    return cenote_phase_set(CENOTE_PHASES);
}

MISUSE(growth_over_too_many_steps, CENOTE_INVALID, "looks at 2 to")
{
    char text[64];
    EXPECT_EQ(cenote_pool_growth(s->scene.pool, 1, text, sizeof text), 0);
    return cenote_pool_growth(s->scene.pool, 65, text, sizeof text) ? CENOTE_OK : CENOTE_INVALID;
}

MISUSE(alignments_that_are_none, CENOTE_INVALID, "no power of two up to the page size, 2097152")
{
    static const size_t wrong[] = {3, 513, 2 * MIB + 512, 4 * MIB, SIZE_MAX / 2 + 1, SIZE_MAX};
    void *block = s;
    int error = CENOTE_OK;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        EXPECT_EQ(error = alloc_aligned(s->scene.pool, 4096, wrong[i], s->scene.stream[A], &block), CENOTE_INVALID);
    EXPECT_EQ(block, s); /* results are set only on success */
    return error;
}

MISUSE(more_records_than_there_can_be, CENOTE_INVALID, "a ring holds up to")
{
    return cenote_pool_record(s->scene.pool, UINT64_MAX);
}

MISUSE(a_trace_of_nothing, CENOTE_INVALID, "cenote_pool_record, or the option record, comes first")
{
    return cenote_pool_record_save(s->scene.pool, "/dev/null");
}

ANSWER(a_file_that_cannot_be_written, CENOTE_FILE, "/no/such/folder/file")
{
    DONE(cenote_pool_record(s->scene.pool, 16));
    EXPECT_EQ(cenote_pool_record_save(s->scene.pool, "/no/such/folder/file"), CENOTE_FILE);
    return cenote_pool_snapshot(s->scene.pool, "/no/such/folder/file");
}

MISUSE(a_name_that_cannot_be_printed, CENOTE_INVALID, "1 to 31 letters of ASCII")
{
    EXPECT_EQ(cenote_pool_set_user(s->scene.pool, ""), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_set_user(s->scene.pool, "a name that is longer than thirty-one letters"), CENOTE_INVALID);
    return cenote_pool_set_user(s->scene.pool, "a\nb");
}

MISUSE(popped_without_a_push, CENOTE_INVALID, "without a cenote_tag_push")
{
    (void)s;
    DONE(cenote_tag_push("train"));
    DONE(cenote_tag_pop());
    return cenote_tag_pop();
}

MISUSE(bad_name_of_a_tag, CENOTE_INVALID, "names are UTF-8 without '/'")
{
    (void)s;
    EXPECT_EQ(cenote_tag_push("a\nb"), CENOTE_INVALID);
    EXPECT_EQ(cenote_tag_push("\xff"), CENOTE_INVALID);
    return cenote_tag_push("a/b");
}

/* ------------------------------------------------------------------------------------------------------------------------ groups */

static void *take_nothing(size_t bytes, cenote_stream stream, void *arg)
{
    (void)bytes, (void)stream, (void)arg;
    return NULL;
}

static void give_nothing(void *memory, size_t bytes, cenote_stream stream, void *arg)
{
    (void)memory, (void)bytes, (void)stream, (void)arg;
}

MISUSE(a_source_without_functions, CENOTE_INVALID, "a source needs both take and give")
{
    cenote_group *group;
    EXPECT_EQ(cenote_group_create(s->scene.pool, "x", 0, &(cenote_source){NULL, give_nothing, s}, &group), CENOTE_INVALID);
    return cenote_group_create(s->scene.pool, "x", 0, &(cenote_source){take_nothing, NULL, s}, &group);
}

static void *take_misaligned(size_t bytes, cenote_stream stream, void *arg)
{
    (void)bytes, (void)stream, (void)arg;
    return (void *)0x100001;
}

MISUSE(a_source_that_gives_what_is_not_aligned, CENOTE_INVALID, "not aligned to 512")
{
    cenote_group *group;
    void *block;
    DONE(cenote_group_create(s->scene.pool, "x", 0, &(cenote_source){take_misaligned, give_nothing, s}, &group));
    int error = group_alloc(group, MIB, 512, s->scene.stream[A], &block);
    DONE(cenote_group_destroy(group));
    return error;
}

/* Its handle is told, whether it is empty, holds a block still, or its pool is gone and another has come in its place. */
MISUSE(taken_from_a_destroyed_group, CENOTE_INVALID, "group \"graphs\" was destroyed")
{
    void *block, *none;
    cenote_group *group = group_of(s, 0);
    DONE(group_alloc(group, MIB, 512, s->scene.stream[A], &block));
    DONE(cenote_group_destroy(group));
    int error = group_alloc(group, MIB, 512, s->scene.stream[A], &none);
    DONE(cenote_free(block));
    EXPECT_EQ(group_alloc(group, MIB, 512, s->scene.stream[A], &none), CENOTE_INVALID);
    DONE(cenote_pool_trim(s->scene.pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(group_alloc(group, MIB, 512, s->scene.stream[A], &none), CENOTE_INVALID);
    return error;
}

/* Every call that takes a group. */
static void call_with(struct scenery *s, cenote_group *group, cenote_pool *pool)
{
    uint64_t bytes;
    size_t count;
    void *block;
    EXPECT_EQ(group_alloc(group, MIB, 512, s->scene.stream[A], &block), CENOTE_INVALID);
    EXPECT_EQ(alloc_at(pool, group, s->live[0].at, 512, s->scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(cenote_group_set_flags(group, 0), CENOTE_INVALID);
    EXPECT_EQ(cenote_capture_begin(s->scene.pool, group, s->scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(cenote_capture_end(s->scene.pool, group, s->scene.stream[A]), CENOTE_INVALID);
    EXPECT_EQ(cenote_group_reserved(group, &bytes), CENOTE_INVALID);
    EXPECT_EQ(cenote_pool_pieces(pool, group, NULL, 0, &count), CENOTE_INVALID);
}

MISUSE(a_group_destroyed_twice, CENOTE_INVALID, "was destroyed")
{
    cenote_group *group = group_of(s, 0);
    DONE(cenote_group_destroy(group));
    call_with(s, group, s->scene.pool);
    return cenote_group_destroy(group);
}

MISUSE(a_group_whose_pool_is_gone, CENOTE_INVALID, "was destroyed")
{
    cenote_group *group, *second;
    void *block;
    cenote_pool *pool = pool_of(s);
    DONE(cenote_group_create(pool, "graphs", 0, NULL, &group));
    DONE(cenote_group_create(pool, "other", 0, NULL, &second));
    DONE(group_alloc(group, MIB, 512, s->scene.stream[A], &block));
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    DONE(cenote_group_destroy(second));
    DONE(cenote_pool_destroy(pool));
    call_with(s, group, pool);
    return cenote_group_destroy(group);
}

MISUSE(a_group_whose_pool_is_another_now, CENOTE_INVALID, "was destroyed")
{
    cenote_group *group, *next;
    cenote_pool *pool = pool_of(s);
    DONE(cenote_group_create(pool, "graphs", 0, NULL, &group));
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_destroy(pool));
    pool = pool_of(s);
    call_with(s, group, pool);
    int error = cenote_group_destroy(group);
    for (int i = 0; i < 3; i++) { /* the new pool's own groups are as ever */
        DONE(cenote_group_create(pool, "next", 0, NULL, &next));
        DONE(cenote_group_destroy(next));
    }
    DONE(cenote_pool_destroy(pool));
    return error;
}

MISUSE(a_group_that_becomes_private, CENOTE_INVALID, "give CENOTE_GROUP_PRIVATE when it is created")
{
    cenote_group *group = group_of(s, 0);
    int error = cenote_group_set_flags(group, CENOTE_GROUP_PRIVATE);
    DONE(cenote_group_destroy(group));
    return error;
}

MISUSE(a_group_of_another_pool, CENOTE_INVALID, "not of this pool")
{
    size_t count;
    cenote_pool *pool = pool_of(s);
    cenote_group *group = group_of(s, 0);
    int error = cenote_pool_pieces(pool, group, NULL, 0, &count);
    DONE(cenote_group_destroy(group));
    DONE(cenote_pool_destroy(pool));
    return error;
}

/* ---------------------------------------------------------------------------------------------------------------------- captures */

MISUSE(a_capture_begun_twice, CENOTE_CAPTURE, "cenote_capture_end comes first")
{
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE);
    DONE(cenote_capture_begin(s->scene.pool, group, s->scene.stream[B]));
    int error = cenote_capture_begin(s->scene.pool, group, s->scene.stream[B]);
    DONE(cenote_capture_end(s->scene.pool, group, s->scene.stream[B]));
    return close_group(group, error);
}

MISUSE(a_capture_that_was_never_begun, CENOTE_CAPTURE, "the group and stream it was begun with")
{
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE);
    return close_group(group, cenote_capture_end(s->scene.pool, group, s->scene.stream[B]));
}

MISUSE(a_capture_ended_twice, CENOTE_CAPTURE, "the group and stream it was begun with")
{
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE);
    DONE(cenote_capture_begin(s->scene.pool, group, s->scene.stream[B]));
    DONE(cenote_capture_end(s->scene.pool, group, s->scene.stream[B]));
    return close_group(group, cenote_capture_end(s->scene.pool, group, s->scene.stream[B]));
}

MISUSE(a_capture_ended_on_another_stream, CENOTE_CAPTURE, "the group and stream it was begun with")
{
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE), *second = group_of(s, CENOTE_GROUP_PRIVATE);
    DONE(cenote_capture_begin(s->scene.pool, group, s->scene.stream[B]));
    EXPECT_EQ(cenote_capture_end(s->scene.pool, second, s->scene.stream[B]), CENOTE_CAPTURE);
    int error = cenote_capture_end(s->scene.pool, group, s->scene.stream[C]);
    EXPECT_EQ(scene_stats(s->scene.pool).captures, 1);
    DONE(cenote_capture_end(s->scene.pool, group, s->scene.stream[B]));
    DONE(cenote_group_destroy(second));
    return close_group(group, error);
}

MISUSE(a_group_destroyed_in_its_capture, CENOTE_CAPTURE, "cenote_capture_end comes first")
{
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE);
    DONE(cenote_capture_begin(s->scene.pool, group, s->scene.stream[B]));
    int error = cenote_group_destroy(group);
    DONE(cenote_capture_end(s->scene.pool, group, s->scene.stream[B]));
    return close_group(group, error);
}

MISUSE(a_capture_into_memory_that_moves, CENOTE_INVALID, "is not private")
{
    cenote_group *group = group_of(s, 0);
    return close_group(group, cenote_capture_begin(s->scene.pool, group, s->scene.stream[B]));
}

MISUSE(more_captures_than_there_can_be, CENOTE_CAPTURE, "captures are open")
{
    CUstream streams[65];
    int error = CENOTE_OK;
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE);
    for (int i = 0; i < 65; i++) {
        DONE(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        EXPECT_EQ(error = cenote_capture_begin(NULL, group, streams[i]), i < 64 ? CENOTE_OK : CENOTE_CAPTURE);
    }
    for (int i = 0; i < 65; i++) {
        if (i < 64)
            DONE(cenote_capture_end(NULL, group, streams[i]));
        DONE(cuStreamDestroy(streams[i]));
    }
    return close_group(group, error);
}

/* ----------------------------------------------------------------------------------------------------------------------- streams */

MISUSE(a_stream_that_was_destroyed, CENOTE_INVALID, "is no stream of device 0")
{
    CUstream stream;
    void *block;
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cenote_alloc(s->scene.pool, MIB, stream, &block));
    DONE(cuStreamDestroy(stream));
    DONE(cenote_free(block)); /* a free does not ask for the key of the stream */
    s->named = stream;
    s->violations = true;
    return cenote_alloc(s->scene.pool, MIB, stream, &block);
}

MISUSE(an_immortal_stream_that_retires, CENOTE_INVALID, "was declared immortal")
{
    CUstream stream;
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cenote_stream_set_immortal(s->scene.pool, stream));
    s->named = stream;
    int error = cenote_stream_retire(s->scene.pool, stream);
    DONE(cuStreamDestroy(stream));
    return error;
}

/* Two devices; the first one's pool. */
static CUstream stream_of_another_device(struct scenery *s)
{
    CUcontext context;
    CUstream stream;
    DONE(cuDevicePrimaryCtxRetain(&context, 1));
    DONE(cuCtxPushCurrent(context));
    DONE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
    s->named = stream;
    return stream;
}

static void close_stream_of_another_device(CUstream stream)
{
    DONE(cuStreamDestroy(stream));
    DONE(cuDevicePrimaryCtxRelease(1));
}

MISUSE(taken_on_a_stream_of_another_device, CENOTE_INVALID, "is of device 1")
{
    void *block;
    CUstream stream = stream_of_another_device(s);
    EXPECT_EQ(cenote_alloc(s->scene.pool, 512, stream, &block), CENOTE_INVALID);
    DONE(cenote_use(s->live[0].at, stream)); /* that is what it is for */
    int error = cenote_alloc(s->scene.pool, 5 * MIB, stream, &block);
    close_stream_of_another_device(stream);
    return error;
}

/* Each call that is told the device beside the stream. The block is used by none of them. */
MISUSE(a_device_that_is_not_the_streams, CENOTE_INVALID, "is of device 1, not of the one that was named with it")
{
    CUstream stream = stream_of_another_device(s);
    int error = cenote_use_on_device(s->live[0].at, 0, stream);
    cenote_block found;
    DONE(cenote_find(s->live[0].at, &found));
    EXPECT_EQ(found.used, 0);
    DONE(cenote_use_on_device(s->live[0].at, 1, stream));
    DONE(cenote_use_on_device(s->live[0].at, 0, s->scene.stream[B]));
    close_stream_of_another_device(stream);
    return error;
}

MISUSE(a_capture_on_a_stream_of_another_device, CENOTE_INVALID, "is of device 1")
{
    CUstream stream = stream_of_another_device(s);
    cenote_group *group = group_of(s, CENOTE_GROUP_PRIVATE);
    int error = cenote_capture_begin(NULL, group, stream);
    close_stream_of_another_device(stream);
    return close_group(group, error);
}
