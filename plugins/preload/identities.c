/*
 * identities.c: CU_POINTER_ATTRIBUTE_BUFFER_ID. Libraries that register memory with a network card (UCX, MPI) remember an address with this number,
 * and take another number for other memory. The driver numbers the pages under a block, which other blocks share. So a block gets a number of ours
 * when a program first asks, and loses it when it is freed.
 *
 * The numbers have a bit that the driver, which counts from 1, does not come to.
 *
 * LOCKING: `lock` guards the table; `count` is also read without it, so that a program that never asks pays nothing.
 */
#include "plugins/preload/identities.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/check.h"

#define CHAINS 1024
#define OURS (1ull << 62)

struct identity {
    struct identity   *next;
    const void        *block;
    unsigned long long number;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct identity *chains[CHAINS];
static _Atomic size_t count;

static struct identity **chain_of(const void *block)
{
    return &chains[((uintptr_t)block >> 9) * 0x9e3779b97f4a7c15ull >> 54]; /* blocks begin at multiples of 512 */
}

static struct identity **find(const void *block)
{
    struct identity **at = chain_of(block);
    while (*at && (*at)->block != block)
        at = &(*at)->next;
    return at;
}

unsigned long long identity_of(const void *block)
{
    static unsigned long long last;
    pthread_mutex_lock(&lock);
    struct identity **at = find(block);
    if (!*at && (*at = calloc(1, sizeof **at))) {
        (*at)->block = block;
        (*at)->number = OURS | ++last;
        atomic_fetch_add(&count, 1);
    }
    unsigned long long number = *at ? (*at)->number : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

void identity_forget(const void *block)
{
    if (!atomic_load_explicit(&count, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    struct identity **at = find(block), *gone = *at;
    if (gone) {
        CHECK(atomic_load(&count));
        *at = gone->next;
        atomic_fetch_sub(&count, 1);
        free(gone);
    }
    pthread_mutex_unlock(&lock);
}
