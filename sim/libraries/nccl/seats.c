/*
 * seats.c: which ranks of a communicator are real, and which nodes they are on.
 *
 * In a dry run of a large job only some ranks of the world have a process. The others are phantoms: they join every communicator at once, wait
 * for no rank, and say what phantoms say (see part_of in operation.c). A communicator has a seat for each of its real ranks; its board, and
 * what operations keep for other ranks, are as large as the number of seats.
 *
 * NCCL does not know who is real. The program tells, by calls that the real library does not have, and asks by one:
 *
 *     ncclPhantomsWorld      which ranks of the world are real, and how many ranks are on a node. Before it all ranks are real
 *     ncclPhantomsMembers    which ranks of the world are in the communicator with this id
 *     ncclPhantomsNextSplit  which ranks of the parent are in what this thread splits off next: ranks that do not run cannot say so
 *     ncclPhantomsUnheard    from which ranks of the world we should have got something small, and got nothing: they are phantoms
 *
 * A communicator of which the program told no members has one seat: its own. ncclCommInitAll makes all ranks in one process: they are real.
 *
 * LOCKING: `lock` guards the world, the list of what was told, and `unheard`. What a communicator has does not change after it was made.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sim/libraries/nccl/nccl.h"

#define UNHEARD_MAX 8

struct told {
    struct told   *next;
    struct nccl_id id;
    int            ranks;
    int            world[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct told *all_told;
static struct {
    int  node;              /* ranks of a node; 0: all ranks of every communicator are real */
    int  count;
    int *real;              /* rising */
} world;

static struct {
    int count;
    int ranks[UNHEARD_MAX]; /* the first ones */
} unheard;

static _Thread_local struct {
    int  ranks;             /* 0: nothing was told */
    int *parents;
} next_split;

static int compare(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static int find(const int *rising, int count, int rank)
{
    const int *at = count ? bsearch(&rank, rising, (size_t)count, sizeof rank, compare) : NULL;
    return at ? (int)(at - rising) : PHANTOM;
}

static int *copy(const int *numbers, int count)
{
    int *made = malloc((size_t)count * sizeof *made + 1);
    if (made)
        memcpy(made, numbers, (size_t)count * sizeof *made);
    return made;
}

int seat_of(const struct communicator *c, int rank)
{
    return c->seats == c->ranks ? rank : find(c->seated, c->seats, rank);
}

bool has_phantoms(const struct communicator *c)
{
    return c->seats < c->ranks;
}

/* A rank whose place is not known counts as near. */
bool is_near(const struct communicator *c, int rank)
{
    return !c->world || c->world[rank] < 0 || c->world[rank] / c->node == c->world[c->rank] / c->node;
}

/* --- when a communicator is made */

/* The ranks of the world that are in it; NULL without phantoms. Of a communicator that was not told, only our own place is known to be real. */
static enum nccl_result members_of(const struct nccl_id *id, int ranks, int rank, int **members)
{
    const struct told *told = all_told;
    *members = NULL;
    if (!world.node)
        return NCCL_SUCCESS;
    while (told && memcmp(&told->id, id, sizeof *id))
        told = told->next;
    if (told && told->ranks != ranks)
        return nccl_refuse(NCCL_INVALID_USAGE, "a communicator of %d ranks, of which the program told %d", ranks, told->ranks);
    *members = malloc((size_t)ranks * sizeof **members);
    if (!*members)
        return NCCL_SYSTEM_ERROR;
    for (int other = 0; other < ranks; other++)
        (*members)[other] = told ? told->world[other] : other == rank ? world.real[0] : NOT_TOLD;
    return NCCL_SUCCESS;
}

enum nccl_result seats_of_id(const struct nccl_id *id, int ranks, int rank, int **members)
{
    pthread_mutex_lock(&lock);
    enum nccl_result result = members_of(id, ranks, rank, members);
    pthread_mutex_unlock(&lock);
    return result;
}

/* Takes over `members`. False: no memory, or the rank that calls is a phantom. */
bool seats_fill(struct communicator *c, int *members)
{
    pthread_mutex_lock(&lock);
    c->world = members;
    c->node = world.node ? world.node : 1;
    c->seated = malloc((size_t)c->ranks * sizeof *c->seated);
    for (int rank = 0; c->seated && rank < c->ranks; rank++) {
        if (!members || find(world.real, world.count, members[rank]) != PHANTOM)
            c->seated[c->seats++] = rank;
        c->near += is_near(c, rank);
    }
    pthread_mutex_unlock(&lock);
    return c->seated && find(c->seated, c->seats, c->rank) != PHANTOM;
}

/* The ranks of the world of a communicator whose ranks were `parents` in `c`. NULL: `c` knows none, or there is no memory. */
int *seats_of_child(const struct communicator *c, const int *parents, int ranks)
{
    int *members = c->world ? malloc((size_t)ranks * sizeof *members) : NULL;
    for (int rank = 0; members && rank < ranks; rank++)
        members[rank] = c->world[parents[rank]];
    return members;
}

/* The ranks of `c`, in their new order, that the program told for the split that begins now; handed over. NULL: it told none that fit. */
int *seats_take_split(const struct communicator *c, int *ranks)
{
    int *parents = next_split.parents;
    bool has_own = false, fits = parents != NULL;
    *ranks = next_split.ranks;
    next_split.parents = NULL;
    for (int i = 0; fits && i < *ranks; i++) {
        fits = parents[i] >= 0 && parents[i] < c->ranks;
        has_own |= parents[i] == c->rank;
    }
    if (fits && has_own)
        return parents;
    free(parents);
    return NULL;
}

/* What only this phantom knows did not come; `rank` of `c`. */
void seats_note_unheard(const struct communicator *c, int rank)
{
    int number = c->world ? c->world[rank] : NOT_TOLD;
    pthread_mutex_lock(&lock);
    bool is_new = number != NOT_TOLD && unheard.count < UNHEARD_MAX;
    for (int i = 0; is_new && i < unheard.count; i++)
        is_new = unheard.ranks[i] != number;
    if (is_new)
        unheard.ranks[unheard.count++] = number;
    pthread_mutex_unlock(&lock);
}

/* --- what the program tells */

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int ncclPhantomsWorld(int node, int count, const int *real)
{
    int *sorted = node > 0 && count > 0 && real ? copy(real, count) : NULL;
    if (node < 0 || count < 0 || (node && !sorted))
        return NCCL_INVALID_ARGUMENT;
    if (sorted)
        qsort(sorted, (size_t)count, sizeof *sorted, compare);
    pthread_mutex_lock(&lock);
    free(world.real);
    world.real = sorted;
    world.count = sorted ? count : 0;
    world.node = node;
    unheard.count = 0;
    pthread_mutex_unlock(&lock);
    return NCCL_SUCCESS;
}

/* At most `room` of them; returns how many. */
int ncclPhantomsUnheard(int room, int *ranks)
{
    pthread_mutex_lock(&lock);
    int count = room < unheard.count ? room : unheard.count;
    for (int i = 0; i < count; i++)
        ranks[i] = unheard.ranks[i];
    pthread_mutex_unlock(&lock);
    return count;
}

/* An id may be told again. */
int ncclPhantomsMembers(const struct nccl_id *id, int ranks, const int *members)
{
    if (!id || !members || ranks < 1 || ranks > RANKS_MAX)
        return NCCL_INVALID_ARGUMENT;
    struct told *told = malloc(sizeof *told + (size_t)ranks * sizeof *members);
    if (!told)
        return NCCL_SYSTEM_ERROR;
    told->id = *id;
    told->ranks = ranks;
    memcpy(told->world, members, (size_t)ranks * sizeof *members);
    pthread_mutex_lock(&lock);
    for (struct told **at = &all_told; *at; at = &(*at)->next)
        if (!memcmp(&(*at)->id, id, sizeof *id)) {
            struct told *before = *at;
            *at = before->next;
            free(before);
            break;
        }
    told->next = all_told;
    all_told = told;
    pthread_mutex_unlock(&lock);
    return NCCL_SUCCESS;
}

int ncclPhantomsNextSplit(int ranks, const int *parents)
{
    if (ranks < 1 || ranks > RANKS_MAX || !parents)
        return NCCL_INVALID_ARGUMENT;
    free(next_split.parents);
    next_split.parents = copy(parents, ranks);
    next_split.ranks = ranks;
    return next_split.parents ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}
