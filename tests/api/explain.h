/*
 * explain.h: what the tests of explanations share: a card that other processes can use too, and what was said last.
 */
#ifndef CENOTE_TESTS_API_EXPLAIN_H
#define CENOTE_TESTS_API_EXPLAIN_H

#include "tests/api/scene.h"

#include <sys/wait.h>
#include <unistd.h>

#define CARD (1024 * MIB)
#define CONTEXT (32 * MIB)

static char shape_text[256];    /* of the card, for other processes */
static char text[4096];         /* what the last failure said, or what there was to say */

static inline bool says(const char *words)
{
    bool found = strstr(text, words) != NULL;
    if (!found)
        printf("  \"%s\" is not in: %s\n", words, text);
    return found;
}

static inline bool keeps_quiet_of(const char *words)
{
    bool found = strstr(text, words) != NULL;
    if (found)
        printf("  \"%s\" is in: %s\n", words, text);
    return !found;
}

static inline void explain_now(cenote_pool *pool)
{
    size_t length = cenote_pool_explain(pool, 0, text, sizeof text);
    EXPECT_EQ(length, strlen(text));
}

/* Asks for more than there is. The message of the thread is the whole explanation. */
static inline void run_out(cenote_pool *pool, size_t bytes, CUstream stream)
{
    void *block;
    text[0] = 0;
    EXPECT_EQ(cenote_alloc(pool, bytes, stream, &block), CENOTE_OUT_OF_MEMORY);
    EXPECT_EQ(cenote_driver_result(), CUDA_ERROR_OUT_OF_MEMORY);
    snprintf(text, sizeof text, "%s", cenote_message());
}

static inline void open_scene(struct scene *scene, const cenote_options *options)
{
    static int runs;
    struct sim_shape shape = scene_card(CARD);
    cenote_options mine = scene_options();
    shape.context_bytes = CONTEXT;
    snprintf(shape.machine, sizeof shape.machine, "cenote-explain-%d-%d", (int)getpid(), ++runs);
    snprintf(shape_text, sizeof shape_text, "capacity:1GiB,context_bytes:32MiB,machine:%s", shape.machine);
    scene_open_with(scene, &shape, options ? options : &mine);
}

#endif
