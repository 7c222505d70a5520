/*
 * growing.c: a server that forgets to free, and how cenote finds the leak: tags, steps, marks, and the function that allocates what stays.
 *
 * No kernel runs: only the memory is real. The program is build/bin/example-growing; docs/memory-questions.md shows its output.
 */
#include <cenote/cenote.h>
#include <cenote/report.h>

#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)
#define REQUESTS 6

static cenote_pool *pool;
static void *answers[REQUESTS];
static int   answer_count;

static void must(int error)
{
    if (!error)
        return;
    printf("%s: %s\n", cenote_error_name(error), cenote_message());
    exit(1);
}

static void *take(size_t bytes)
{
    void *block;
    must(cenote_alloc(pool, bytes, NULL, &block));
    return block;
}

static void *attend(size_t bytes)
{
    void *scores = take(4 * bytes), *out = take(bytes);
    must(cenote_free(scores));
    return out;
}

/* Keeps each answer: the leak. */
static void serve(int request)
{
    must(cenote_tag_push("serve"));
    void *cache = take(64 * MIB);
    must(cenote_tag_push("attention"));
    answers[answer_count++] = attend((size_t)(10 + request) * MIB);
    must(cenote_tag_pop());
    must(cenote_free(cache));
    must(cenote_tag_pop());
}

static void mark(const char *name)
{
    static cenote_marked last;
    char text[512];
    if (!cenote_pool_mark(pool, name, &last, text, sizeof(text)))
        must(CENOTE_INVALID);
    puts(text);
}

int main(void)
{
    cenote_options options;
    char text[4096];
    must(cenote_options_default(&options));
    options.sites = 3; /* functions of each allocation; costs about a microsecond */
    must(cenote_pool_create(0, &options, &pool));

    void *weights = take(500 * MIB);
    must(cenote_block_set_kind(weights, CENOTE_KIND_PARAMETERS));
    mark("weights");
    for (int request = 0; request < REQUESTS; request++) {
        serve(request);
        must(cenote_pool_step(pool));
    }
    mark("six requests");
    if (!cenote_pool_growth(pool, 4, text, sizeof(text)))
        must(CENOTE_INVALID);
    fputs(text, stdout);

    while (answer_count)
        must(cenote_free(answers[--answer_count]));
    must(cenote_free(weights));
    must(cenote_pool_destroy(pool));
    return 0;
}
