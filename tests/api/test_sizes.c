/*
 * test_sizes.c: programs of older and newer headers: every function that takes a struct, with every size that struct may have. What options
 * an older program gets is in tests/stats/test_options.c, pinned memory in tests/host/test_sizes.c.
 */
#include "tests/api/scene.h"
#include "tests/sizes.h"

static struct scene scene;
static void *block;

static void open_scene(void)
{
    scene_open(&scene, 256 * MIB);
    DONE(cenote_alloc(scene.pool, 3 * MIB, scene.stream[A], &block));
    DONE(cenote_use(block, scene.stream[B]));
    DONE(cenote_tag_push("model"));
    for (int i = 0; i < 3; i++)
        DONE(cenote_pool_step(scene.pool));
}

static void close_scene(void)
{
    DONE(cenote_tag_pop());
    DONE(cenote_free(block));
    scene_close(&scene);
}

static int ask_default(void *at, size_t size)
{
    return (cenote_options_default)(at, size);
}

static int ask_parse(void *at, size_t size)
{
    return (cenote_options_parse)(at, "", size);
}

static int ask_create(void *at, size_t size)
{
    cenote_pool *pool = NULL;
    int error = (cenote_pool_create)(0, at, &pool, size);
    return error ? error : cenote_pool_destroy(pool);
}

static int ask_find(void *at, size_t size)
{
    return (cenote_find)((char *)block + 100, at, size);
}

static int ask_group(void *at, size_t size)
{
    cenote_group *group = NULL;
    int error = (cenote_group_create)(scene.pool, "sized", 0, at, &group, size);
    return error ? error : cenote_group_destroy(group);
}

static int ask_stats(void *at, size_t size)
{
    return (cenote_pool_stats)(scene.pool, at, size);
}

static int ask_text(void *at, size_t size)
{
    char text[8192];
    return (cenote_stats_text)(at, text, sizeof text, size) ? CENOTE_OK : CENOTE_INVALID;
}

static int ask_json(void *at, size_t size)
{
    char text[8192];
    return (cenote_stats_json)(at, text, sizeof text, size) ? CENOTE_OK : CENOTE_INVALID;
}

static int ask_rows(void *at, size_t size)
{
    size_t count = 0;
    int error = (cenote_pool_rows)(scene.pool, CENOTE_BY_ARENA, at, 1, &count, size);
    EXPECT(error || count == 1);
    return error;
}

static int ask_steps(void *at, size_t size)
{
    size_t count = 0;
    int error = (cenote_pool_steps)(scene.pool, at, 2, &count, size);
    EXPECT(error || count == 3);
    return error;
}

static int ask_pieces(void *at, size_t size)
{
    size_t count = 0;
    int error = (cenote_pool_pieces)(scene.pool, NULL, at, 2, &count, size);
    EXPECT(error || count >= 2);
    return error;
}

static int ask_mark(void *at, size_t size)
{
    char text[256];
    return (cenote_pool_mark)(scene.pool, "sized", at, text, sizeof text, size) ? CENOTE_OK : CENOTE_INVALID;
}

#define CALL(type_, ask_, ...) &(struct sized_call){.type = #type_, .known = sizeof(type_), .ask = ask_, __VA_ARGS__}

CASE(options)
{
    open_scene();
    cenote_options options = {0};
    sizes_try_all(CALL(cenote_options, ask_default, .comes_out = true), &options);
    options = scene_options();
    sizes_try_all(CALL(cenote_options, ask_parse, .goes_in = true, .comes_out = true), &options);
    sizes_try_all(CALL(cenote_options, ask_create, .goes_in = true), &options);
    close_scene();
}

CASE(blocks_and_sources)
{
    open_scene();
    cenote_block found;
    cenote_source source = {take_source, give_source, NULL};
    sizes_try_all(CALL(cenote_block, ask_find, .comes_out = true), &found);
    sizes_try_all(CALL(cenote_source, ask_group, .goes_in = true, .least = offsetof(cenote_source, arg)), &source);
    close_scene();
}

CASE(counters)
{
    open_scene();
    cenote_stats stats;
    sizes_try_all(CALL(cenote_stats, ask_stats, .comes_out = true), &stats);
    sizes_try_all(CALL(cenote_stats, ask_text, .goes_in = true), &stats);
    sizes_try_all(CALL(cenote_stats, ask_json, .goes_in = true), &stats);
    close_scene();
}

CASE(lists)
{
    open_scene();
    cenote_row rows[1];
    cenote_step_note notes[2];
    cenote_piece pieces[2];
    sizes_try_all(CALL(cenote_row, ask_rows, .comes_out = true), rows);
    sizes_try_all(CALL(cenote_step_note, ask_steps, .comes_out = true, .more = 1), notes);
    sizes_try_all(CALL(cenote_piece, ask_pieces, .comes_out = true, .more = 1), pieces);
    close_scene();
}

CASE(marks)
{
    open_scene();
    cenote_marked marked = {0};
    sizes_try_all(CALL(cenote_marked, ask_mark, .goes_in = true, .comes_out = true), &marked);
    close_scene();
}

/* ------------------------------------------------------------------------------------------------- structs that the library brings */

static size_t told; /* bytes that the program's header gives cenote_moment */

/* What it does not know it does not touch; what only it knows is zero, and may be written. */
static void tell(cenote_pool *pool, cenote_moment *moment, void *arg)
{
    (void)pool, (void)arg;
    char *at = (char *)moment;
    if (told > sizeof *moment) {
        EXPECT(sizes_are(at + sizeof *moment, told - sizeof *moment, 0));
        memset(at + sizeof *moment, 0xcc, told - sizeof *moment);
    }
    EXPECT_EQ(moment->bytes, 255 * MIB);
    moment->phase = CENOTE_PHASE_EVALUATION;
    moment->keeps_history = 1;
    if (told >= sizeof *moment)
        moment->gradients = 77 * MIB;
}

CASE(moments)
{
    static const size_t sizes[] = {offsetof(cenote_moment, training_peak), sizeof(cenote_moment), sizeof(cenote_moment) + SIZES_MORE, 4096};
    char text[4096];
    open_scene();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        told = sizes[i];
        DONE((cenote_on_moment)(tell, NULL, told));
        cenote_pool_explain(scene.pool, 255 * MIB, text, sizeof text);
        EXPECT(strstr(text, "This is evaluation, and it keeps history") != NULL);
    }
    EXPECT_EQ((cenote_on_moment)(tell, NULL, 0), CENOTE_INVALID);
    EXPECT_EQ((cenote_on_moment)(tell, NULL, 4097), CENOTE_INVALID);
    DONE(cenote_on_moment(NULL, NULL));
    close_scene();
}

SCENES_MAIN("sizes")
