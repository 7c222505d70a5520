/*
 * collectives.c: the entry points that put something on a stream, and groups. Each checks what it is given and hands an operation on; see
 * operation.c. Not here: one-sided operations. A wait that does not wait would let a program read what never came, so stubs.def
 * refuses put, signal and wait.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/libraries/nccl/nccl.h"

static enum nccl_result check(const struct operation *o, bool reduces)
{
    const struct communicator *c = o->communicator;
    if (!communicator_is_valid(c))
        return nccl_refuse(NCCL_INVALID_ARGUMENT, "%s: no such communicator", o->name);
    if (!type_bytes(o->type) || o->root < 0 || o->root >= c->ranks)
        return nccl_refuse(NCCL_INVALID_ARGUMENT, "%s: type %d, root or peer %d of %d ranks", o->name, o->type, o->root, c->ranks);
    int own = o->reduction - SCALED_FIRST;
    if (reduces && (o->reduction < 0 || own >= SCALES_MAX || (own >= 0 && (!c->scales[own].live || c->scales[own].type != o->type))))
        return nccl_refuse(NCCL_INVALID_ARGUMENT, "%s: there is no operator %d for type %d", o->name, o->reduction, o->type);
    if (o->count > SIZE_MAX / 8 / (size_t)c->ranks)
        return nccl_refuse(NCCL_INVALID_ARGUMENT, "%s: %zu elements", o->name, o->count);
    return NCCL_SUCCESS;
}

static int put(struct operation o, bool reduces)
{
    enum nccl_result result = check(&o, reduces);
    o.bytes = o.count * type_bytes(o.type);
    return (int)(result ? result : operation_put(&o));
}

#define OPERATION(operation_kind, from, to, elements) \
    {.kind = operation_kind, .name = __func__, .communicator = c, .send = (uint64_t)(from), .receive = (uint64_t)(to), .count = elements, \
     .type = type, .stream = stream}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int ncclAllReduce(const void *from, void *to, size_t count, int type, int reduction, struct communicator *c, CUstream stream)
{
    struct operation o = OPERATION(ALL_REDUCE, from, to, count);
    o.reduction = reduction;
    return put(o, true);
}

int ncclReduce(const void *from, void *to, size_t count, int type, int reduction, int root, struct communicator *c, CUstream stream)
{
    struct operation o = OPERATION(REDUCE, from, to, count);
    o.reduction = reduction;
    o.root = root;
    return put(o, true);
}

int ncclReduceScatter(const void *from, void *to, size_t count, int type, int reduction, struct communicator *c, CUstream stream)
{
    struct operation o = OPERATION(REDUCE_SCATTER, from, to, count);
    o.reduction = reduction;
    return put(o, true);
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, struct communicator *c, CUstream stream)
{
    struct operation o = OPERATION(BROADCAST, from, to, count);
    o.root = root;
    return put(o, false);
}

int ncclBcast(void *at, size_t count, int type, int root, struct communicator *c, CUstream stream)
{
    return ncclBroadcast(at, at, count, type, root, c, stream);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, struct communicator *c, CUstream stream)
{
    return put((struct operation)OPERATION(ALL_GATHER, from, to, count), false);
}

int ncclAlltoAll(const void *from, void *to, size_t count, int type, struct communicator *c, CUstream stream)
{
    return put((struct operation)OPERATION(ALL_TO_ALL, from, to, count), false);
}

int ncclGather(const void *from, void *to, size_t count, int type, int root, struct communicator *c, CUstream stream)
{
    struct operation o = OPERATION(GATHER, from, to, count);
    o.root = root;
    return put(o, false);
}

int ncclScatter(const void *from, void *to, size_t count, int type, int root, struct communicator *c, CUstream stream)
{
    struct operation o = OPERATION(SCATTER, from, to, count);
    o.root = root;
    return put(o, false);
}

int ncclSend(const void *from, size_t count, int type, int peer, struct communicator *c, CUstream stream)
{
    struct operation o = OPERATION(SEND, from, 0, count);
    o.root = peer;
    return put(o, false);
}

int ncclRecv(void *to, size_t count, int type, int peer, struct communicator *c, CUstream stream)
{
    struct operation o = OPERATION(RECEIVE, 0, to, count);
    o.root = peer;
    return put(o, false);
}

/* --- groups */

int ncclGroupStart(void)
{
    return (int)group_start();
}

int ncclGroupEnd(void)
{
    return (int)group_end();
}

/* An estimate of time would be a guess: nothing is run, as asked, and the answer is that there is none. */
int ncclGroupSimulateEnd(void *estimate)
{
    (void)estimate;
    group_drop();
    return (int)nccl_refuse(NCCL_INVALID_USAGE, "ncclGroupSimulateEnd: the simulated NCCL has no times");
}

/* --- operators of one's own */

int ncclRedOpCreatePreMulSum(int *reduction, const void *factor, int type, int residence, struct communicator *c)
{
    if (!reduction || !factor || !communicator_is_valid(c) || !type_bytes(type) || residence < 0 || residence > 1)
        return NCCL_INVALID_ARGUMENT;
    for (int i = 0; i < SCALES_MAX; i++) {
        if (c->scales[i].live)
            continue;
        c->scales[i] = (struct scale){.live = true, .on_device = residence == 0, .type = type, .at = (uint64_t)factor};
        if (residence)
            memcpy(c->scales[i].bytes, factor, type_bytes(type));
        *reduction = SCALED_FIRST + i;
        return NCCL_SUCCESS;
    }
    return (int)nccl_refuse(NCCL_INTERNAL_ERROR, "ncclRedOpCreatePreMulSum: %d operators are there already", SCALES_MAX);
}

int ncclRedOpDestroy(int reduction, struct communicator *c)
{
    int own = reduction - SCALED_FIRST;
    if (!communicator_is_valid(c) || own < 0 || own >= SCALES_MAX || !c->scales[own].live)
        return NCCL_INVALID_ARGUMENT;
    c->scales[own].live = false;
    return NCCL_SUCCESS;
}
