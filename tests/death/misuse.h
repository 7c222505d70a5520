/*
 * misuse.h: how a mistake of a program is written down: what is set up, the call that is wrong, and what it has to answer.
 *
 *     MISUSE(freed_twice, CENOTE_DOUBLE_FREE, "freed already")
 *     {
 *         void *block = block_of(s, 3 * MIB);
 *         DONE(cenote_free(block));
 *         s->named = block;
 *         return cenote_free(block);
 *     }
 *
 * Each runs in a child process of its own (test_misuse.c), twice: as it is, where the process goes on unharmed, and with the option `abort`,
 * where it ends by SIGABRT with the same words on stderr. ANSWER is the same for what is no mistake: it never aborts.
 */
#ifndef CENOTE_TESTS_DEATH_MISUSE_H
#define CENOTE_TESTS_DEATH_MISUSE_H

#include "tests/api/scene.h"

/* What a case finds: a small card, a pool with two live blocks on stream A, which have to be as they were afterwards. */
struct scenery {
    struct scene scene;
    struct held  live[2];
    const void  *named;      /* an address that the message has to name; NULL: none */
    bool         violations; /* the driver was asked about a handle that is none, which its books count */
    char         words[512]; /* the message, if the call was made elsewhere: in a callback, in a fork; "": that of this thread */
};

struct misuse {
    const char *name;
    int         error;       /* what the call answers */
    const char *words;       /* that the message has; NULL: any */
    bool        aborts;      /* with abort:1 */
    int (*make)(struct scenery *);
};

void misuse_add(struct misuse m);

#define MISUSE_AS(text, id, error, words, aborts)                                      \
    static int misuse_##id(struct scenery *s);                                         \
    __attribute__((constructor)) static void misuse_add_##id(void)                     \
    {                                                                                  \
        misuse_add((struct misuse){text, error, words, aborts, misuse_##id});          \
    }                                                                                  \
    static int misuse_##id(struct scenery *s)

#define MISUSE(name, error, words) MISUSE_AS(#name, name, error, words, true)
#define ANSWER(name, error, words) MISUSE_AS(#name, name, error, words, false)

/* A block of the pool on stream A, with nothing in it. */
static inline char *block_of(struct scenery *s, size_t bytes)
{
    void *block = NULL;
    DONE(cenote_alloc(s->scene.pool, bytes, s->scene.stream[A], &block));
    REQUIRE(block);
    return block;
}

static inline cenote_group *group_of(struct scenery *s, unsigned flags)
{
    cenote_group *group = NULL;
    DONE(cenote_group_create(s->scene.pool, "graphs", flags, NULL, &group));
    REQUIRE(group);
    return group;
}

/* A second pool on the same card. */
static inline cenote_pool *pool_of(struct scenery *s)
{
    cenote_options options = scene_options();
    cenote_pool *pool = NULL;
    (void)s;
    DONE(cenote_pool_create(0, &options, &pool));
    REQUIRE(pool);
    return pool;
}

/* The group goes; its end is no failure, and leaves the words of the one before. */
static inline int close_group(cenote_group *group, int error)
{
    char words[512];
    snprintf(words, sizeof words, "%s", cenote_message());
    DONE(cenote_group_destroy(group));
    EXPECT_TEXT_EQ(cenote_message(), words);
    return error;
}

/*
 * Makes every call of cenote.h that asks something of a pool, with arguments that are right. Each has to answer `error`, or what it answers
 * for NULL. Returns the last answer that differs, or `error`. `group` is of the pool.
 */
int call_everything(struct scenery *s, cenote_group *group, int error);

/* How many parameters of the headers no case gives as NULL or BAD(...); they are named. */
int arguments_missing(const struct misuse *list, int count);

#endif
