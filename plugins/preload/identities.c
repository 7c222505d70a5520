/*
 * identities.c: what programs ask and say of blocks where the driver knows pages alone, which other blocks share.
 *
 * CU_POINTER_ATTRIBUTE_BUFFER_ID: libraries that register memory with a network card (UCX, MPI) remember an address with this number, and take
 * another number for other memory. So a block gets a number of ours when a program first asks, and loses it when it is freed, or ends with its
 * context: another block may get its address.
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: the same libraries set it, and the driver refuses pages.
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
    struct identity    *next;
    const struct place *place;
    const void         *block;
    unsigned long long  number;
    bool                synchronizes;
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

/* The one of the block, which has none before the first question. NULL: no host memory. LOCKING: inside `lock`. */
static struct identity *take(const struct place *place, const void *block)
{
    static unsigned long long last;
    struct identity **at = find(block);
    if (!*at && (*at = calloc(1, sizeof **at))) {
        (*at)->place = place;
        (*at)->block = block;
        (*at)->number = OURS | ++last;
        atomic_fetch_add(&count, 1);
    }
    return *at;
}

unsigned long long identity_of(const struct place *place, const void *block)
{
    pthread_mutex_lock(&lock);
    const struct identity *identity = take(place, block);
    unsigned long long number = identity ? identity->number : 0;
    pthread_mutex_unlock(&lock);
    return number;
}

bool identity_set_synchronizes(const struct place *place, const void *block, bool does)
{
    pthread_mutex_lock(&lock);
    struct identity *identity = take(place, block);
    if (identity)
        identity->synchronizes = does;
    pthread_mutex_unlock(&lock);
    return identity;
}

bool identity_synchronizes(const void *block)
{
    if (!atomic_load_explicit(&count, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&lock);
    const struct identity *identity = *find(block);
    bool does = identity && identity->synchronizes;
    pthread_mutex_unlock(&lock);
    return does;
}

/* LOCKING: inside `lock`. */
static void remove_at(struct identity **at)
{
    struct identity *gone = *at;
    CHECK(atomic_load(&count));
    *at = gone->next;
    atomic_fetch_sub(&count, 1);
    free(gone);
}

void identity_forget(const void *block)
{
    if (!atomic_load_explicit(&count, memory_order_relaxed))
        return;
    pthread_mutex_lock(&lock);
    struct identity **at = find(block);
    if (*at)
        remove_at(at);
    pthread_mutex_unlock(&lock);
}

void identities_end(const struct place *place)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < CHAINS; i++)
        for (struct identity **at = &chains[i]; *at;)
            if ((*at)->place == place)
                remove_at(at);
            else
                at = &(*at)->next;
    pthread_mutex_unlock(&lock);
}
