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

static enum nccl_result open_child(struct operation *o, int ranks, int rank, const struct nccl_id *id)
{
    struct communicator *parent = o->communicator;
    enum nccl_result result = communicator_open(&o->child, parent->context, ranks, rank, id, NULL);
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

static enum nccl_result finish_split(struct operation *o)
{
    struct communicator *c = o->communicator;
    const int (*wishes)[2] = (const int (*)[2])(const void *)o->in;
    const int *own = wishes[c->rank];
    int ranks = 0, rank = 0;
    for (int other = 0; other < c->ranks; other++) {
        const int *wish = wishes[other];
        if (wish[0] != own[0])
            continue;
        ranks++;
        rank += wish[1] < own[1] || (wish[1] == own[1] && other < c->rank);
    }
    *o->made = NULL;
    unsigned child = c->children++;
    if (own[0] == NO_COLOR) {
        o->done = true;
        return NCCL_SUCCESS;
    }
    struct nccl_id id = child_id(c, child, (uint64_t)own[0]);
    return open_child(o, ranks, rank, &id);
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
    return open_child(o, o->wish[0], c->rank, &with->id);
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int ncclCommSplit(struct communicator *c, int color, int key, struct communicator **made, const struct nccl_config *config)
{
    if (!is_usable(c) || !made || color < NO_COLOR)
        return NCCL_INVALID_ARGUMENT;
    int wish[2] = {color, key};
    struct operation split = {.kind = TELL, .name = "ncclCommSplit", .communicator = c, .made = made, .finish = finish_split};
    split.bytes = sizeof wish;
    split.out = (char *)wish;
    int result = (int)keep_config(&split, config);
    return result ? result : (int)operation_put(&split);
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
    int rank = c->rank;
    for (int i = 0; i < count; i++) {
        if (without[i] < 0 || without[i] >= c->ranks || without[i] == c->rank)
            return NCCL_INVALID_ARGUMENT;
        for (int earlier = 0; earlier < i; earlier++)
            if (without[earlier] == without[i])
                return NCCL_INVALID_ARGUMENT;
        rank -= without[i] < c->rank;
        which += ((uint64_t)without[i] + 1) * 0x9e3779b97f4a7c15ull;
    }
    struct operation shrink = {.kind = MEET, .name = "ncclCommShrink", .communicator = c, .made = made};
    int result = (int)keep_config(&shrink, config);
    struct nccl_id id = child_id(c, c->children++, which);
    if (!result)
        result = (int)open_child(&shrink, c->ranks - count, rank, &id);
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
        int result = id ? (int)communicator_open(&grow.child, NULL, ranks, rank, id, config) : NCCL_INVALID_ARGUMENT;
        return result ? result : (int)operation_put(&grow);
    }
    if (!is_usable(c) || rank != -1 || ranks <= c->ranks)
        return NCCL_INVALID_ARGUMENT;
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
