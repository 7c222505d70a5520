/*
 * blocks.c: a log of all blocks of a pool in the form that RMM writes, for `cenote view` and whatever reads such logs.
 *
 * The log is a watch function of thirty lines: the pool tells it of each block, in the order of its life, and the program does not change. Here
 * the program is a decoder whose cache grows in place, token by token. Run build/bin/example-blocks > blocks.csv; cenote view blocks.csv
 */
#include <cenote/cenote.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
#define TOKENS 24

static void must(int error)
{
    if (!error)
        return;
    fprintf(stderr, "%s: %s\n", cenote_error_name(error), cenote_message());
    exit(1);
}

static void write_row(const char *action, const cenote_notice *block)
{
    struct timespec now;
    struct tm day;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &day);
    printf("1,%02d:%02d:%02d:%06ld,%s,%#" PRIxPTR ",%zu,%#" PRIxPTR "\n", day.tm_hour, day.tm_min, day.tm_sec, now.tv_nsec / 1000, action,
           (uintptr_t)block->address, block->bytes, (uintptr_t)block->stream);
}

/* It must not call cenote. Such a log knows no block that grows: it ends, and begins again. */
static void log_block(cenote_pool *pool, const cenote_notice *notice, void *arg)
{
    (void)pool, (void)arg;
    if (notice->change != CENOTE_ALLOCATED)
        write_row("free", notice);
    if (notice->change != CENOTE_ENDED)
        write_row("allocate", notice);
}

int main(void)
{
    cenote_pool *pool;
    void *cache, *scores;
    must(cenote_pool_default(0, &pool));
    must(cenote_pool_watch(pool, CENOTE_ALLOCATED | CENOTE_EXTENDED | CENOTE_ENDED, log_block, NULL));
    printf("Thread,Time,Action,Pointer,Size,Stream\n");
    must(cenote_alloc(pool, MIB, NULL, &cache));
    for (size_t token = 2; token < TOKENS; token++) {
        must(cenote_alloc(pool, 3 * MIB / 2, NULL, &scores));
        must(cenote_free(scores));
        int error = cenote_extend(cache, token * MIB);
        if (error == CENOTE_BUSY) /* another block lies behind it: a program would copy */
            break;
        must(error);
    }
    must(cenote_free(cache));
    must(cenote_pool_watch(pool, 0, log_block, NULL));
    return 0;
}
