/*
 * test_growth.c: what has grown is named: by step, label and the function that allocated it; marks say what changed. Texts are looked at for
 * what a reader needs, not word by word.
 */
#include "base/memory.h"
#include "driver/device.h"
#include "stats/account/label.h"
#include "stats/account/sites.h"
#include "tests/api/scene.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/auxv.h>

#define CARD (256 * MIB)
#define TEXT 8192

static char text[TEXT];

static void open_with_sites(struct scene *scene, uint32_t sites)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.sites = sites;
    scene_open_with(scene, &shape, &options);
}

__attribute__((noinline)) static void *leaky_function(struct scene *scene, size_t bytes)
{
    void *block = NULL;
    DONE(cenote_alloc(scene->pool, bytes, scene->stream[A], &block));
    __asm__ volatile("" : : "r"(block)); /* it stays a call, not a jump */
    return block;
}

__attribute__((noinline)) static void *clean_function(struct scene *scene, size_t bytes)
{
    void *block = NULL;
    DONE(cenote_alloc(scene->pool, bytes, scene->stream[A], &block));
    __asm__ volatile("" : : "r"(block));
    return block;
}

static const char *line_with(const char *word)
{
    const char *found = strstr(text, word);
    while (found && found > text && found[-1] != '\n')
        found--;
    return found;
}

/* Does the site, "... NAME+0xOFFSET ...", begin inside this function, and not in the other one? */
static bool begins_in(uint32_t site, const void *function, const void *other)
{
    char words[2048];
    Dl_info info;
    if (!cenote_site_text(site, words, sizeof words) || !dladdr(function, &info))
        return false;
    const char *offset = strstr(words, "+0x");
    const char *inside = strstr(words, " ("); /* where the name of the function is known its object follows in brackets */
    if (inside && inside < strstr(words, " < "))
        offset = strstr(inside, "+0x");
    uintptr_t at = offset ? (uintptr_t)info.dli_fbase + strtoul(offset + 1, NULL, 16) : 0;
    bool beyond = other > function && at >= (uintptr_t)other;
    return at > (uintptr_t)function && at < (uintptr_t)function + 4000 && !beyond;
}

static cenote_piece piece_of(struct scene *scene, const void *block)
{
    static cenote_piece pieces[200];
    size_t count;
    DONE(cenote_pool_pieces(scene->pool, NULL, pieces, 200, &count));
    REQUIRE(count <= 200);
    for (size_t i = 0; i < count; i++)
        if (pieces[i].address == (uint64_t)(uintptr_t)block)
            return pieces[i];
    return (cenote_piece){0};
}

/* The first site of the process: neither the table nor its first item gets memory. */
CASE(without_host_memory_a_block_has_no_site)
{
    for (uint64_t nth = 1; nth <= 2; nth++) {
        memory_fail(nth, true);
        EXPECT_EQ(site_mark(__builtin_return_address(0), 4), 0);
        EXPECT_EQ(memory_failed(), 1);
        memory_fail(0, false);
    }
    EXPECT(mark_site(site_mark(__builtin_return_address(0), 4)) != 0);
}

/* Callers that no walk of the stack meets, as where code has no tables for it, are sites of one function. */
CASE(callers_that_are_not_on_the_stack)
{
    char words[256];
    uint32_t site[5000];
    int again = 0;
    for (uintptr_t i = 0; i < 5000; i++)
        site[i] = mark_site(site_mark((void *)(0x1001 + i), 16));
    for (uintptr_t i = 0; i < 5000; i++)
        again += mark_site(site_mark((void *)(0x1001 + i), 3)) == site[i];
    EXPECT_EQ(again, 5000);
    REQUIRE(cenote_site_text(site[0x234], words, sizeof words));
    EXPECT_TEXT_EQ(words, "0x1234");
    EXPECT_EQ(cenote_site_text(site[0x234], NULL, sizeof words), 6); /* as long as it would be */
    EXPECT_EQ(cenote_site_text(site[0x234], words, 0), 6);
    EXPECT_EQ(cenote_site_text(0, words, sizeof words), 0); /* no site */
    REQUIRE(cenote_site_text(mark_site(site_mark((char *)getauxval(AT_SYSINFO_EHDR) + 8, 1)), words, sizeof words));
    EXPECT(strstr(words, "vdso") && !strchr(words, '/')); /* an object without a path */
}

CASE(a_leak_is_named)
{
    struct scene scene;
    void *kept[12], *parameters[4];
    open_with_sites(&scene, 16);
    for (int i = 0; i < 4; i++)
        parameters[i] = clean_function(&scene, 8 * MIB);
    DONE(cenote_tag_push("train"));
    for (int step = 0; step < 12; step++) {
        void *work[3];
        for (int i = 0; i < 3; i++)
            work[i] = clean_function(&scene, (size_t)(1 + rand() % 4) * MIB);
        kept[step] = leaky_function(&scene, 3 * MIB);
        for (int i = 0; i < 3; i++)
            DONE(cenote_free(work[i]));
        DONE(cenote_pool_step(scene.pool));
    }
    DONE(cenote_tag_pop());
    REQUIRE(cenote_pool_growth(scene.pool, 5, text, TEXT));
    EXPECT(line_with("step 12: live 68.0 MiB") == text);
    EXPECT(strstr(text, "+3.00 MiB a step over the last 5"));
    const char *line = line_with("15.0 MiB  in 5 blocks, each step leaves some; tag train; other, none; ");
    EXPECT(line != NULL);
    EXPECT(line && !strchr(strchr(line, '\n') + 1, '\n')); /* and nothing else has grown */
    EXPECT(begins_in(piece_of(&scene, kept[3]).site, (void *)leaky_function, (void *)clean_function));
    EXPECT(begins_in(piece_of(&scene, parameters[1]).site, (void *)clean_function, (void *)leaky_function));
    EXPECT_EQ(piece_of(&scene, kept[3]).site, piece_of(&scene, kept[7]).site);
    for (int step = 0; step < 12; step++)
        DONE(cenote_free(kept[step]));
    for (int i = 0; i < 4; i++)
        DONE(cenote_free(parameters[i]));
    scene_close(&scene);
}

/* Each step there was left some, though there were fewer than are looked at. */
/* Innermost first, so what few are kept is how more begin. */
CASE(as_many_functions_are_kept_as_the_option_says)
{
    char words[2048];
    for (uint32_t sites = 0; sites <= 3; sites++) {
        struct scene scene;
        uint32_t functions = 1;
        open_with_sites(&scene, sites);
        void *block = leaky_function(&scene, MIB);
        uint32_t site = piece_of(&scene, block).site;
        EXPECT_EQ(site != 0, sites > 0);
        if (cenote_site_text(site, words, sizeof words))
            for (const char *next = words; (next = strstr(next, " < ")); next++)
                functions++;
        EXPECT_EQ(functions, sites ? sites : 1);
        DONE(cenote_free(block));
        scene_close(&scene);
    }
}

CASE(fewer_steps_than_are_looked_at)
{
    struct scene scene;
    void *kept[4];
    open_with_sites(&scene, 0);
    for (int step = 0; step < 4; step++) {
        kept[step] = leaky_function(&scene, MIB);
        DONE(cenote_pool_step(scene.pool));
        REQUIRE(cenote_pool_growth(scene.pool, 64, text, TEXT));
        EXPECT(!step == !strstr(text, "each step leaves some"));
    }
    EXPECT(line_with("3.00 MiB  in 3 blocks, each step leaves some; ") != NULL);
    for (int step = 0; step < 4; step++)
        DONE(cenote_free(kept[step]));
    scene_close(&scene);
}

CASE(a_clean_program_has_nothing_to_show)
{
    struct scene scene;
    open_with_sites(&scene, 0);
    void *state = clean_function(&scene, 8 * MIB), *last = NULL;
    for (int step = 0; step < 8; step++) {
        void *work = leaky_function(&scene, 4 * MIB);
        DONE(cenote_free(last)); /* double buffering: what the last step left goes in the next */
        last = work;
        DONE(cenote_pool_step(scene.pool));
    }
    REQUIRE(cenote_pool_growth(scene.pool, 5, text, TEXT));
    EXPECT(strstr(text, "+0 B a step"));
    EXPECT(strchr(text, '\n') == text + strlen(text) - 1);
    EXPECT_EQ(piece_of(&scene, state).site, 0);
    DONE(cenote_free(last));
    DONE(cenote_free(state));
    scene_close(&scene);
}

CASE(many_sites_are_cut)
{
    struct scene scene;
    void *kept[20 * 3];
    open_with_sites(&scene, 0);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 20; i++) {
            char name[8];
            snprintf(name, sizeof name, "tag%d", i);
            DONE(cenote_tag_push(name));
            kept[step * 20 + i] = leaky_function(&scene, (size_t)(i + 1) * 100 * KIB);
            DONE(cenote_tag_pop());
        }
        DONE(cenote_pool_step(scene.pool));
    }
    size_t whole = cenote_pool_growth(scene.pool, 2, text, TEXT);
    REQUIRE(whole && whole < TEXT);
    EXPECT(strstr(text, "tag tag19;") && !strstr(text, "tag tag3;") && strstr(text, "and 8 more\n"));
    EXPECT_EQ(cenote_pool_growth(scene.pool, 2, text, 40), whole); /* as snprintf */
    EXPECT_EQ(strlen(text), 39);
    EXPECT_EQ(cenote_pool_growth(scene.pool, 2, NULL, 0), whole);
    for (int i = 0; i < 60; i++)
        DONE(cenote_free(kept[i]));
    scene_close(&scene);
}

CASE(bad_questions)
{
    struct scene scene;
    cenote_marked marked = {0};
    open_with_sites(&scene, 0);
    EXPECT_EQ(cenote_pool_growth(scene.pool, 5, text, TEXT), 0);
    EXPECT(strstr(cenote_message(), "cenote_pool_step"));
    EXPECT_EQ(cenote_pool_growth(scene.pool, 1, text, TEXT), 0);
    EXPECT_EQ(cenote_pool_growth(scene.pool, 65, text, TEXT), 0);
    EXPECT_EQ(cenote_pool_growth(NULL, 5, text, TEXT), 0);
    EXPECT_EQ(cenote_pool_mark(scene.pool, NULL, &marked, text, TEXT), 0);
    EXPECT_EQ(cenote_pool_mark(scene.pool, "x", NULL, text, TEXT), 0);
    EXPECT_EQ(cenote_pool_mark(NULL, "x", &marked, text, TEXT), 0);
    EXPECT_EQ(cenote_site_text(0, text, TEXT), 0);
    EXPECT_EQ(cenote_site_text(UINT32_MAX, text, TEXT), 0);
    EXPECT_EQ(cenote_site_text(1, NULL, 100), cenote_site_text(1, text, TEXT));
    cenote_options options = scene_options();
    EXPECT_EQ(cenote_options_parse(&options, "sites:17"), CENOTE_BAD_OPTION);
    scene_close(&scene);
}

CASE(marks)
{
    struct scene scene;
    cenote_marked marked = {0};
    char line[200];
    open_with_sites(&scene, 0);
    void *weights = clean_function(&scene, 4 * MIB);
    DONE(cenote_block_set_kind(weights, CENOTE_KIND_PARAMETERS));
    REQUIRE(cenote_pool_mark(scene.pool, "model", &marked, line, sizeof line));
    EXPECT_TEXT_EQ(line, "model: live 4.00 MiB; parameters 4.00 MiB");
    DONE(cenote_phase_set(CENOTE_PHASE_FORWARD));
    void *out = clean_function(&scene, 1536 * KIB);
    DONE(cenote_phase_set(CENOTE_PHASE_NONE));
    REQUIRE(cenote_pool_mark(scene.pool, "output_layer", &marked, line, sizeof line));
    EXPECT_TEXT_EQ(line, "output_layer: live 5.50 MiB, +1.50 MiB since model; parameters 4.00 MiB, activations 1.50 MiB (+1.50 MiB)");
    DONE(cenote_free(out));
    DONE(cenote_free(weights));
    REQUIRE(cenote_pool_mark(scene.pool, "end", &marked, line, sizeof line));
    EXPECT_TEXT_EQ(line, "end: live 0 B, -5.50 MiB since output_layer; parameters 0 B (-4.00 MiB), activations 0 B (-1.50 MiB)");
    scene_close(&scene);
}

static const struct driver *real;
static cenote_pool *stepping;

static void *end_a_step(void *pool)
{
    DONE(cenote_pool_step(pool));
    return NULL;
}

/* Asked whose the stream is. Meanwhile another thread ends a step. */
static CUresult answer_a_step_later(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    pthread_t thread;
    REQUIRE(!pthread_create(&thread, NULL, end_a_step, stepping));
    pthread_join(thread, NULL);
    return real->cuStreamGetCtx_v2(stream, context, green);
}

CASE(a_block_is_born_in_one_step)
{
    struct scene scene;
    struct driver slow;
    cenote_piece pieces[8];
    size_t count = 0;
    int error;
    open_with_sites(&scene, 0);
    struct device *device = device_open(0, &error);
    REQUIRE(device);
    real = device->driver;
    slow = *real;
    slow.cuStreamGetCtx_v2 = answer_a_step_later;
    stepping = scene.pool;
    DONE(cenote_pool_step(scene.pool));
    device->driver = &slow;
    void *block = clean_function(&scene, MIB); /* the stream is new: the first step is over before it is asked about, the second after */
    device->driver = real;
    DONE(cenote_pool_pieces(scene.pool, NULL, pieces, 8, &count));
    for (size_t i = 0; i < count && i < 8; i++)
        if (pieces[i].address == device_address(block))
            EXPECT_EQ(pieces[i].born, 2);
    DONE(cenote_free(block));
    device_close(device);
    scene_close(&scene);
}

SCENES_MAIN("growth")
