/*
 * test_grades.c: random programs in which pages of both sizes come and go: which grade is made changes all the time, blocks that share no page lie
 * beside others, and blocks come back to where they lay. CENOTE_TEST_ROUNDS: more seeds. GRADES_SEED: the first.
 */
#include "tests/rounds.h"
#include "tests/stress/model.h"
#include "tests/stress/portions.h"
#include "tests/stress/versions.h"

#include "pool/mapping/units.h"
#include "pool/pool.h"

#define TURNS 60
#define OPERATIONS 40

static uint64_t pick(uint64_t *random, uint64_t below)
{
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static uint64_t first_seed(void)
{
    const char *text = getenv("GRADES_SEED");
    return text ? strtoull(text, NULL, 0) : 1;
}

static void change_grade(uint64_t *random)
{
    static const uint32_t grade_pages[] = {0, 1, 2, 3, 6, 12, 1 << 20};
    units_grade_pages = grade_pages[pick(random, sizeof grade_pages / sizeof *grade_pages)];
}

static void open_any(struct scene *scene, uint64_t *random)
{
    static const uint64_t lags[] = {0, MSEC / 5, 2 * MSEC, 20 * MSEC};
    static const uint64_t granularities[] = {2 * MIB, 2 * MIB, 2 * MIB, 4 * MIB, 64 * KIB};
    static const uint64_t mappings[] = {400000, 0, 60};
    struct sim_shape shape = scene_card((48 + 4 * pick(random, 40)) * MIB);
    cenote_options options = scene_options();
    shape.lag = lags[pick(random, 4)];
    shape.granularity = granularities[pick(random, sizeof granularities / sizeof *granularities)];
    shape.devices = 2;
    version_set(pick(random, 8) ? VERSION_NEWEST : 12000);
    options.page_mib = 4u << pick(random, 4);
    options.trim_every = (uint32_t)pick(random, 4);
    options.address_ratio = 1u << pick(random, 5);
    options.harvest_budget = (double)pick(random, 3) / 2 - 0.5;
    options.order = (uint32_t)pick(random, 3);
    options.mappings = mappings[pick(random, 3)];
    options.aliases = pick(random, 4) ? CENOTE_ALIASES_ON : CENOTE_ALIASES_OFF;
    change_grade(random);
    portions_begin(*random);
    scene_open_with(scene, &shape, &options);
    if (pick(random, 4) == 0)
        DONE(cenote_pool_grant(scene->pool, 1));
}

static void end(struct scene *scene)
{
    DONE(cenote_pool_trim(scene->pool, 0, CENOTE_TRIM_WAIT));
    EXPECT_EQ(scene_stats(scene->pool).reserved.current, 0);
    units_grade_pages = GRADE_PAGES;
    scene_close(scene);
    portions_end();
    version_set(VERSION_NEWEST);
}

static bool has_both_sizes(const cenote_pool *pool)
{
    const struct pages *s = &pool->store.pages;
    return pages_have_sizes(s) && s->held[GRADE_SMALL] && s->held[GRADE_LARGE];
}

/* What comes after the first failure would say nothing. */
static void stop_at_failure(uint64_t seed)
{
    if (!CU_get_number_of_failures())
        return;
    fprintf(stderr, "failed with seed %llu\n", (unsigned long long)seed);
    CU_basic_show_failures(CU_get_failure_list());
    exit(1);
}

CASE(any_program_while_grades_change)
{
    static struct model model;
    int of_all_sizes = 0;
    for (uint64_t seed = first_seed(), last = seed + (uint64_t)rounds(16); seed < last; seed++) {
        struct scene scene;
        uint64_t random = seed;
        open_any(&scene, &random);
        model_open(&model, scene.pool, seed);
        model.alone = model.moves = true;
        for (int i = 0; i < TURNS && !model.failures; i++) {
            model_run(&model, OPERATIONS);
            of_all_sizes += has_both_sizes(scene.pool);
            change_grade(&random);
            DONE(cenote_group_set_flags(model.group[GROUP_OPEN], pick(&random, 2) ? CENOTE_GROUP_WHOLE : CENOTE_GROUP_LEND));
            DONE(cenote_pool_check(scene.pool));
        }
        model_close(&model);
        if (model.failures)
            fprintf(stderr, "\n%s (model.c:%d): %s\n", model.what, model.line, cenote_message());
        EXPECT_EQ(model.failures, 0);
        end(&scene);
        stop_at_failure(seed);
    }
    EXPECT(of_all_sizes > 0);
}

/* ---------------------------------------------------------------------------------------------------- blocks that share no page */

#define BLOCKS 48

struct apart {
    struct scene  scene;
    cenote_group *group[2];         /* the second one is private */
    unsigned      flags[2];
    struct {
        struct held held;
        bool        whole;
        int         group;
    } block[BLOCKS];
    uint64_t random;
};

/* The pages under a block: those that its slots map. */
static bool share_a_page(const struct held *a, const struct held *b)
{
    const struct region *r = addresses_find_for_certain(device_address(a->at)), *q = addresses_find_for_certain(device_address(b->at));
    struct slots x = slots_under(r, device_address(a->at), a->bytes), y = slots_under(q, device_address(b->at), b->bytes);
    for (uint32_t i = x.from; i < x.to; i += region_span(r, i))
        for (uint32_t j = y.from; j < y.to; j += region_span(q, j))
            if (r->page[i] == q->page[j])
                return true;
    return false;
}

static void expect_apart(const struct apart *a, int i)
{
    for (int j = 0; j < BLOCKS; j++)
        if (j != i && a->block[j].held.at && (a->block[i].whole || a->block[j].whole))
            EXPECT(!share_a_page(&a->block[i].held, &a->block[j].held));
}

static size_t pick_bytes(uint64_t *random)
{
    static const size_t most[] = {2 * MIB, 9 * MIB, 20 * MIB, 600 * KIB};
    return 1 + (size_t)pick(random, most[pick(random, 4)]);
}

static void take_or_give(struct apart *a)
{
    int i = (int)pick(&a->random, BLOCKS), group = (int)pick(&a->random, 2);
    struct held *h = &a->block[i].held;
    CUstream stream = a->scene.stream[pick(&a->random, SCENE_STREAMS)];
    void *at = h->at;
    size_t bytes = h->at ? h->bytes : pick_bytes(&a->random);
    bool gave = h->at != NULL;
    if (gave) {
        held_give(h);
        h->at = NULL;
        stream = h->stream;
        group = a->block[i].group;
    }
    int error = !gave ? group_alloc(a->group[group], bytes, 512, stream, &at) :
                pick(&a->random, 2) ? CENOTE_BUSY : alloc_at(a->scene.pool, a->group[group], at, bytes, stream);
    EXPECT(!error || error == CENOTE_OUT_OF_MEMORY || (gave && (error == CENOTE_BUSY || error == CENOTE_INVALID)));
    if (error)
        return;
    *h = held_of(at, bytes, stream);
    a->block[i].whole = a->flags[group] & CENOTE_GROUP_WHOLE;
    a->block[i].group = group;
    expect_apart(a, i);
}

static void change_flags(struct apart *a)
{
    int group = (int)pick(&a->random, 2);
    a->flags[group] ^= CENOTE_GROUP_WHOLE;
    DONE(cenote_group_set_flags(a->group[group], a->flags[group]));
}

CASE(blocks_that_share_no_page_beside_others)
{
    static struct apart a;
    for (uint64_t seed = first_seed(), last = seed + (uint64_t)rounds(16); seed < last; seed++) {
        memset(&a, 0, sizeof a);
        a.random = seed;
        open_any(&a.scene, &a.random);
        for (unsigned i = 0; i < 2; i++) {
            a.flags[i] = i ? CENOTE_GROUP_PRIVATE : 0;
            DONE(cenote_group_create(a.scene.pool, "apart", a.flags[i], NULL, &a.group[i]));
        }
        for (int i = 0; i < 1000; i++) {
            take_or_give(&a);
            if (pick(&a.random, 30) == 0)
                change_grade(&a.random);
            if (pick(&a.random, 40) == 0)
                change_flags(&a);
            if (pick(&a.random, 60) == 0)
                DONE(cenote_pool_trim(a.scene.pool, pick(&a.random, 64 * MIB), 0));
            if (pick(&a.random, 60) == 0)
                DONE(cenote_pool_check(a.scene.pool));
        }
        for (int i = 0; i < BLOCKS; i++)
            if (a.block[i].held.at)
                held_give(&a.block[i].held);
        for (int i = 0; i < 2; i++)
            DONE(cenote_group_destroy(a.group[i]));
        end(&a.scene);
        stop_at_failure(seed);
    }
}

SCENES_MAIN("stress: grades")
