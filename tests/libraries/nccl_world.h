/*
 * nccl_world.h: NCCL as tests see it, and a world of four ranks: devices of one machine, each with a stream and some memory. No locks:
 * what a rank has is used by one thread at a time.
 */
#ifndef CENOTE_TESTS_LIBRARIES_NCCL_WORLD_H
#define CENOTE_TESTS_LIBRARIES_NCCL_WORLD_H

#include <cuda.h>

#include "sim/sim.h"
#include "tests/harness.h"

#define RANKS 4
#define LARGE (1u << 20)        /* elements of 4 bytes: more than is exchanged */
#define MIB (1ull << 20)

typedef struct comm *comm;
struct id {
    char bytes[128];
};
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga, least, most;
    const char *net;
    int share;
};
enum { SUM, PRODUCT, MOST, LEAST, AVERAGE };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16, FLOAT8E4M3, FLOAT8E5M2 };
enum { FINE, CUDA_ERROR, SYSTEM_ERROR, INTERNAL, ARGUMENT, USAGE, REMOTE };

int ncclGetVersion(int *version);
const char *ncclGetErrorString(int error);
const char *ncclGetLastError(comm c);
int ncclGetUniqueId(struct id *id);
int ncclCommInitRank(comm *c, int ranks, struct id id, int rank);
int ncclCommInitRankConfig(comm *c, int ranks, struct id id, int rank, struct config *config);
int ncclCommInitAll(comm *c, int ranks, const int *devices);
int ncclCommDestroy(comm c);
int ncclCommAbort(comm c);
int ncclCommRevoke(comm c, int flags);
int ncclCommGetAsyncError(comm c, int *error);
int ncclCommCount(comm c, int *count);
int ncclCommCuDevice(comm c, int *device);
int ncclCommUserRank(comm c, int *rank);
int ncclCommSplit(comm c, int color, int key, comm *made, struct config *config);
int ncclCommShrink(comm c, int *without, int count, comm *made, struct config *config, int flags);
int ncclCommGetUniqueId(comm c, struct id *id);
int ncclCommGrow(comm c, int ranks, const struct id *id, int rank, comm *made, struct config *config);
int ncclCommSuspend(comm c, int flags);
int ncclCommResume(comm c);
int ncclCommMemStats(comm c, int what, uint64_t *value);
int ncclMemAlloc(void **at, size_t size);
int ncclMemFree(void *at);
int ncclCommWindowRegister(comm c, void *at, size_t size, void **window, int flags);
int ncclCommWindowDeregister(comm c, void *window);
int ncclWinGetUserPtr(comm c, void *window, void **at);
int ncclGetPeerDevicePointer(void *window, size_t offset, int peer, void **at);
int ncclCommRegister(comm c, void *at, size_t size, void **handle);
int ncclCommDeregister(comm c, void *handle);
int ncclRedOpCreatePreMulSum(int *op, void *factor, int type, int residence, comm c);
int ncclRedOpDestroy(int op, comm c);
int ncclPhantomsWorld(int node, int count, const int *real);
int ncclPhantomsMembers(const struct id *id, int ranks, const int *members);
int ncclPhantomsNextSplit(int ranks, const int *parents);
int ncclPhantomsUnheard(int room, int *ranks);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclGroupSimulateEnd(void *estimate);
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, comm c, CUstream stream);
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, comm c, CUstream stream);
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, comm c, CUstream stream);
int ncclAllGather(const void *from, void *to, size_t count, int type, comm c, CUstream stream);
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, comm c, CUstream stream);
int ncclAlltoAll(const void *from, void *to, size_t count, int type, comm c, CUstream stream);
int ncclGather(const void *from, void *to, size_t count, int type, int root, comm c, CUstream stream);
int ncclScatter(const void *from, void *to, size_t count, int type, int root, comm c, CUstream stream);
int ncclSend(const void *from, size_t count, int type, int peer, comm c, CUstream stream);
int ncclRecv(void *to, size_t count, int type, int peer, comm c, CUstream stream);
int ncclPutSignal(const void *from, size_t count, int type, int peer, void *window, size_t offset, int signal, int context, unsigned flags,
                  comm c, CUstream stream);
int ncclSignal(int peer, int signal, int context, unsigned flags, comm c, CUstream stream);
int ncclWaitSignal(int count, void *signals, comm c, CUstream stream);

#define OK(call) EXPECT_EQ(call, 0)
#define MUST(call) REQUIRE_EQ(call, 0)

/* What each rank has: a context, a stream, a communicator, and memory of LARGE elements twice. */
static struct rank {
    CUcontext   context;
    CUstream    stream;
    comm        comm;
    CUdeviceptr from, to;
} world[RANKS];

static inline void enter(int rank)
{
    MUST(cuCtxSetCurrent(world[rank].context));
}

static inline void begin(void)
{
    struct sim_shape shape;
    sim_shape_default(&shape);
    shape.devices = RANKS;
    shape.context_bytes = 0;
    sim_reset(&shape);
    sim_set_quiet(true);
    MUST(cuInit(0));
    for (int i = 0; i < RANKS; i++) {
        MUST(cuDevicePrimaryCtxRetain(&world[i].context, i));
        enter(i);
        MUST(cuStreamCreate(&world[i].stream, CU_STREAM_NON_BLOCKING));
        MUST(cuMemAlloc(&world[i].from, 4 * LARGE));
        MUST(cuMemAlloc(&world[i].to, 4 * LARGE));
        world[i].comm = NULL;
    }
}

static inline void end(void)
{
    for (int i = 0; i < RANKS; i++)
        if (world[i].comm)
            ncclCommDestroy(world[i].comm);
}

static inline void meet(void)
{
    comm comms[RANKS];
    MUST(ncclCommInitAll(comms, RANKS, NULL));
    for (int i = 0; i < RANKS; i++)
        world[i].comm = comms[i];
}

/* Rank r's element i is 10 * r + i, in `from`; `to` is full of -1. */
static inline void fill(int count)
{
    for (int r = 0; r < RANKS; r++) {
        int values[64], nothing[64];
        for (int i = 0; i < count; i++) {
            values[i] = 10 * r + i;
            nothing[i] = -1;
        }
        enter(r);
        MUST(cuMemcpyHtoD(world[r].from, values, 4 * (size_t)count));
        MUST(cuMemcpyHtoD(world[r].to, nothing, 4 * (size_t)count));
    }
}

static inline int at(int rank, int i)
{
    int value = -2;
    enter(rank);
    MUST(cuStreamSynchronize(world[rank].stream));
    MUST(cuMemcpyDtoH(&value, world[rank].to + 4 * (size_t)i, 4));
    return value;
}

#define ALL(call)                                                              \
    do {                                                                       \
        OK(ncclGroupStart());                                                  \
        for (int r = 0; r < RANKS; r++) {                                      \
            const void *from = (const void *)world[r].from;                    \
            void *to = (void *)world[r].to;                                    \
            comm c = world[r].comm;                                            \
            CUstream stream = world[r].stream;                                 \
            (void)from;                                                        \
            (void)to;                                                          \
            OK(call);                                                          \
        }                                                                      \
        OK(ncclGroupEnd());                                                    \
    } while (0)

#endif
