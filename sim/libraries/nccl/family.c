/*
 * family.c: communicators made from communicators: split, shrink and grow. Each starts a MEET of the ranks of the new one; split and grow
 * first TELL all ranks of the old one what each wants. The new one's id follows from the old one's, how many children that had, and what
 * tells siblings apart; so no rank has to send it, but to ranks that grow adds.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "sim/libraries/nccl/nccl.h"

#define NO_COLOR -1
#define SHRINK_ABORT 1

struct grow_wish {
    int            has_id;
    struct nccl_id id;
};

static struct nccl_id child_id(const struct communicator *c, unsigned child, uint64_t which)
{
    struct nccl_id id = c->id;
    uint64_t salt[3] = {0x646c6968632e6c63ull, child, which};
    for (size_t i = 0; i < sizeof id.bytes; i++)
        id.bytes[i] = (char)(id.bytes[i] ^ (char)(salt[i / 8 % 3] >> i % 8 * 8));
    return id;
}

static bool is_usable(const struct communicator *c)
{
    return communicator_is_valid(c) && !atomic_load(&c->error) && !c->suspended;
}

/* `parents`: the rank that each rank of the new one has in the old one; NULL where ranks are added, which are all real then. */
static enum nccl_result open_child(struct operation *o, const int *parents, int ranks, int rank, const struct nccl_id *id)
{
    struct communicator *parent = o->communicator;
    int *members = parents ? seats_of_child(parent, parents, ranks) : NULL;
    if (parents && parent->world && !members)
        return NCCL_SYSTEM_ERROR;
    enum nccl_result result = communicator_open(&o->child, parent->context, ranks, rank, id, NULL, members);
    if (result)
        return result;
    const struct nccl_config *config = &o->config;
    o->child->most_ctas = config->size && config->most_ctas != CONFIG_UNSAID ? config->most_ctas : parent->most_ctas;
    o->child->shares = config->size && config->split_share == 1;
    o->kind = MEET;
    return NCCL_SUCCESS;
}

static enum nccl_result keep_config(struct operation *o, const struct nccl_config *config)
{
    enum nccl_result result = config_check(config);
    if (!result && config)
        o->config = *config;
    return result;
}

static int place_of(int rank, const int *ranks)
{
    int at = 0;
    while (ranks[at] != rank)
        at++;
    return at;
}

static enum nccl_result finish_split(struct operation *o)
{
    struct communicator *c = o->communicator;
    const int (*wishes)[2] = (const int (*)[2])(const void *)o->in;
    const int *own = wishes[c->rank];
    *o->made = NULL;
    unsigned child = c->children++;
    if (own[0] == NO_COLOR) {
        o->done = true;
        return NCCL_SUCCESS;
    }
    int ranks = 0, *parents = malloc((size_t)c->ranks * sizeof *parents);
    if (!parents)
        return NCCL_SYSTEM_ERROR;
    for (int other = 0; other < c->ranks; other++) {
        if (wishes[other][0] != own[0])
            continue;
        int at = ranks++;
        for (; at && wishes[parents[at - 1]][1] > wishes[other][1]; at--)
            parents[at] = parents[at - 1];
        parents[at] = other;
    }
    struct nccl_id id = child_id(c, child, (uint64_t)own[0]);
    enum nccl_result result = open_child(o, parents, ranks, place_of(c->rank, parents), &id);
    free(parents);
    return result;
}

/* Among phantoms: the program has told who wants what; see seats.c. A rank that wants no part waits for no rank. */
static int split_among_phantoms(struct communicator *c, int color, struct communicator **made, const struct nccl_config *config)
{
    struct operation meet = {.kind = MEET, .name = "ncclCommSplit", .communicator = c, .made = made};
    int ranks = 0, *parents = seats_take_split(c, &ranks), result = (int)keep_config(&meet, config);
    struct nccl_id id = child_id(c, c->children++, (uint64_t)color);
    *made = NULL;
    if (!result && color != NO_COLOR && !parents)
        result = (int)nccl_refuse(NCCL_INVALID_USAGE, "ncclCommSplit among phantoms: only the program knows which ranks want color %d, and it did "
                                  "not call ncclPhantomsNextSplit with this rank among them", color);
    if (!result && color != NO_COLOR)
        result = (int)open_child(&meet, parents, ranks, place_of(c->rank, parents), &id);
    free(parents);
    meet.communicator = NULL;
    return result || color == NO_COLOR ? result : (int)operation_put(&meet);
}

/* In ranks that are already there: one of them has the id of ncclCommGetUniqueId. New ones come to the meeting by it. */
static enum nccl_result finish_grow(struct operation *o)
{
    struct communicator *c = o->communicator;
    const struct grow_wish *wishes = (const struct grow_wish *)(const void *)o->in, *with = NULL;
    for (int rank = 0; rank < c->ranks; rank++) {
        if (wishes[rank].has_id && with)
            return communicator_fail(c, NCCL_INVALID_USAGE, "ncclCommGrow: more than one rank gave an id");
        if (wishes[rank].has_id)
            with = &wishes[rank];
    }
    if (!with)
        return communicator_fail(c, NCCL_INVALID_USAGE, "ncclCommGrow: no rank gave an id");
    c->grown = 0;
    return open_child(o, NULL, o->wish[0], c->rank, &with->id);
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int ncclCommSplit(struct communicator *c, int color, int key, struct communicator **made, const struct nccl_config *config)
{
    if (!is_usable(c) || !made || color < NO_COLOR)
        return NCCL_INVALID_ARGUMENT;
    if (has_phantoms(c))
        return split_among_phantoms(c, color, made, config);
    int wish[2] = {color, key};
    struct operation split = {.kind = TELL, .name = "ncclCommSplit", .communicator = c, .made = made, .finish = finish_split};
    split.bytes = sizeof wish;
    split.out = (char *)wish;
    int result = (int)keep_config(&split, config);
    return result ? result : (int)operation_put(&split);
}

static int *remaining(const struct communicator *c, const int *without, int count)
{
    int *ranks = malloc((size_t)c->ranks * sizeof *ranks), left = 0;
    for (int rank = 0; ranks && rank < c->ranks; rank++) {
        bool stays = true;
        for (int i = 0; stays && i < count; i++)
            stays = without[i] != rank;
        if (stays)
            ranks[left++] = rank;
    }
    return ranks;
}

/* Those that are left out do not call. Their absence is known to all others without a word. */
int ncclCommShrink(struct communicator *c, const int *without, int count, struct communicator **made, const struct nccl_config *config,
                   int flags)
{
    if (!communicator_is_valid(c) || !without || !made || count < 1 || count >= c->ranks || flags & ~SHRINK_ABORT)
        return NCCL_INVALID_ARGUMENT;
    if (!(flags & SHRINK_ABORT) && atomic_load(&c->error))
        return atomic_load(&c->error);
    uint64_t which = 0x6b6e69726873ull;
    for (int i = 0; i < count; i++) {
        if (without[i] < 0 || without[i] >= c->ranks || without[i] == c->rank)
            return NCCL_INVALID_ARGUMENT;
        for (int earlier = 0; earlier < i; earlier++)
            if (without[earlier] == without[i])
                return NCCL_INVALID_ARGUMENT;
        which += ((uint64_t)without[i] + 1) * 0x9e3779b97f4a7c15ull;
    }
    int *parents = remaining(c, without, count);
    if (!parents)
        return NCCL_SYSTEM_ERROR;
    struct operation shrink = {.kind = MEET, .name = "ncclCommShrink", .communicator = c, .made = made};
    int result = (int)keep_config(&shrink, config);
    struct nccl_id id = child_id(c, c->children++, which);
    if (!result)
        result = (int)open_child(&shrink, parents, c->ranks - count, place_of(c->rank, parents), &id);
    free(parents);
    shrink.communicator = NULL;     /* its error, if it has one, is no reason not to meet */
    return result ? result : (int)operation_put(&shrink);
}

int ncclCommGetUniqueId(struct communicator *c, struct nccl_id *id)
{
    if (!is_usable(c) || !id)
        return NCCL_INVALID_ARGUMENT;
    if (c->grown)
        return (int)nccl_refuse(NCCL_INVALID_USAGE, "ncclCommGetUniqueId: the id it gave before was not used yet");
    c->grown = 1;
    *id = child_id(c, c->children, (uint64_t)c->rank + 0x776f7267ull);
    return NCCL_SUCCESS;
}

int ncclCommGrow(struct communicator *c, int ranks, const struct nccl_id *id, int rank, struct communicator **made,
                 const struct nccl_config *config)
{
    if (!made)
        return NCCL_INVALID_ARGUMENT;
    struct operation grow = {.name = "ncclCommGrow", .communicator = c, .made = made};
    if (!c) {
        grow.kind = MEET;
        int result = id ? (int)communicator_open(&grow.child, NULL, ranks, rank, id, config, NULL) : NCCL_INVALID_ARGUMENT;
        return result ? result : (int)operation_put(&grow);
    }
    if (!is_usable(c) || rank != -1 || ranks <= c->ranks)
        return NCCL_INVALID_ARGUMENT;
    if (has_phantoms(c))
        return (int)nccl_refuse(NCCL_INVALID_USAGE, "ncclCommGrow: a communicator with phantoms does not grow");
    struct grow_wish wish = {.has_id = id != NULL};
    if (id)
        wish.id = *id;
    c->children++;
    grow.kind = TELL;
    grow.finish = finish_grow;
    grow.bytes = sizeof wish;
    grow.out = (char *)&wish;
    grow.wish[0] = ranks;
    int result = (int)keep_config(&grow, config);
    return result ? result : (int)operation_put(&grow);
}
