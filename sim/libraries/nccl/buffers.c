/*
 * buffers.c: memory and the simulated NCCL: what communicators take of the device, what programs allocate through it, and buffers and
 * windows that they register.
 *
 * A real communicator takes its buffers when it first needs them: for collectives once, for sends and receives with each peer once. One
 * channel of one connection costs 10 + 2 + 2 MiB (the receiver's 4 MiB of NCCL_BUFFSIZE and 5.19 MiB of the two low-latency protocols,
 * and a page on each side): measured as allocations on eight H100, NVIDIA/nccl issue 1685, where the first all-to-all took 7 peers * 32
 * channels * 14 MiB = 3.06 GiB. That collectives use 24 channels, 336 MiB for a ring, is an assumption: nothing says how many they take
 * there. Trees and NVLS take more, and other machines have fewer channels, so this is a plain model: a program that fits with less than
 * that to spare may not fit.
 *
 * A communicator of several nodes has fewer channels. These rules are read out of NCCL 2.30.7, for H100 of which each has a network card of
 * 400 Gbit/s; they were not measured:
 *   - collectives: two for each of its ranks on a node, at most 16 (src/graph/search.cc and connect.cc); each costs what it costs on one node
 *   - sends and receives, for each peer on the same node: 4, because the network sets the number for all peers; halved until the rounds with all
 *     ranks, 8 a channel, fit into the channels there are (src/graph/paths.cc)
 *   - all peers on other nodes together share 16 chunks of 128 KiB a channel, once to send and once to receive (src/transport/net.cc)
 *
 * As with the real library, NCCL_BUFFSIZE, NCCL_MAX_CTAS, NCCL_MAX_NCHANNELS, NCCL_NCHANNELS_PER_PEER, NCCL_NCHANNELS_PER_NET_PEER and
 * NCCL_P2P_NET_CHUNKSIZE change it, and so do `maxCTAs` in a configuration and `splitShare`: a communicator that shares its parent's resources
 * takes nothing.
 */
#include <stdlib.h>

#include "sim/libraries/library.h"
#include "sim/libraries/nccl/nccl.h"

#define CHANNELS 24                     /* of collectives: assumed */
#define PEER_CHANNELS 32                /* of sends and receives, for each peer: the real library on 8 H100 */
#define FAR_CHANNELS_MAX 16             /* of collectives in a communicator of several nodes */
#define FAR_PEER_CHANNELS 4             /* of sends and receives there, at most: 50 GB/s, and 14 a channel */
#define PEERS_OF_ROUND 8
#define CHUNKS 16
#define CHUNK (128ull << 10)
#define CHANNEL_FIFO (4ull << 20)       /* default of NCCL_BUFFSIZE */
#define CHANNEL_FAST 5439488ull         /* low latency: 8 * 512 * 8 * 16 bytes, and with 128 byte lines 120 * 640 * 8 * 8 */
#define PAGE (2ull << 20)
#define WINDOW_ALIGNMENT 4096
#define SUSPEND_MEMORY 1

enum buffer_kind { OF_RING, OF_PEER, OF_NETWORK };

static uint64_t setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end;
    unsigned long long value = text ? strtoull(text, &end, 10) : 0;
    return text && end != text && value ? value : otherwise;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool has_far(const struct communicator *c)
{
    return c->near < c->ranks;
}

static uint64_t limited(const struct communicator *c, uint64_t channels)
{
    channels = least(channels, setting("NCCL_MAX_CTAS", setting("NCCL_MAX_NCHANNELS", channels)));
    return c->most_ctas > 0 ? least(channels, (uint64_t)c->most_ctas) : channels;
}

static uint64_t ring_channels(const struct communicator *c)
{
    return limited(c, has_far(c) ? least(2 * (uint64_t)c->near, FAR_CHANNELS_MAX) : CHANNELS);
}

static uint64_t peer_channels(const struct communicator *c)
{
    if (!has_far(c))
        return limited(c, setting("NCCL_NCHANNELS_PER_PEER", PEER_CHANNELS));
    uint64_t channels = FAR_PEER_CHANNELS, rounds = ((uint64_t)c->ranks + PEERS_OF_ROUND - 1) / PEERS_OF_ROUND;
    while (channels > 1 && channels * rounds > ring_channels(c))
        channels /= 2;
    return limited(c, setting("NCCL_NCHANNELS_PER_PEER", setting("NCCL_NCHANNELS_PER_NET_PEER", channels)));
}

static uint64_t bytes_of(const struct communicator *c, enum buffer_kind kind)
{
    uint64_t channel = round_up(setting("NCCL_BUFFSIZE", CHANNEL_FIFO) + CHANNEL_FAST, PAGE) + 2 * PAGE;
    switch (kind) {
    case OF_RING:
        return ring_channels(c) * channel;
    case OF_PEER:
        return peer_channels(c) * channel;
    default:
        return round_up(2 * ring_channels(c) * CHUNKS * setting("NCCL_P2P_NET_CHUNKSIZE", CHUNK), PAGE);
    }
}

/* The first call may be inside a capture, where the program must not allocate; the real library is free to as well. */
static CUresult allocate(CUdeviceptr *at, uint64_t bytes)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuThreadExchangeStreamCaptureMode(&mode);
    CUresult result = cuMemAlloc(at, bytes);
    cuThreadExchangeStreamCaptureMode(&mode);
    return result;
}

static enum nccl_result connect_once(struct communicator *c, bool *connected, enum buffer_kind kind, const char *name)
{
    if (*connected)
        return NCCL_SUCCESS;
    uint64_t bytes = bytes_of(c, kind);
    if (allocate(&c->buffers[c->taken], bytes))
        return communicator_fail(c, NCCL_CUDA_ERROR, "%s: out of memory: its buffers take %llu MiB", name, (unsigned long long)bytes >> 20);
    c->buffer_bytes[c->taken++] = bytes;
    *connected = true;
    return NCCL_SUCCESS;
}

/* The real library makes all-to-all, gather and scatter of sends and receives. */
enum nccl_result buffers_connect(struct communicator *c, const struct operation *o)
{
    enum nccl_result result = NCCL_SUCCESS;
    if (c->shares || c->ranks == 1)
        return result;
    if (o->kind < ALL_TO_ALL)
        return connect_once(c, &c->connected, OF_RING, o->name);
    for (int rank = 0; !result && rank < c->ranks; rank++) {
        if (rank == c->rank || !operation_meets(o, rank))
            continue;
        if (is_near(c, rank))
            result = connect_once(c, &c->met[rank], OF_PEER, o->name);
        else
            result = connect_once(c, &c->has_network, OF_NETWORK, o->name);
    }
    return result;
}

static void give_back(struct communicator *c)
{
    if (cuCtxPushCurrent(c->context))
        return;
    for (int i = 0; i < c->taken; i++)
        cuMemFree(c->buffers[i]);
    cuCtxPopCurrent(NULL);
}

void buffers_free(struct communicator *c)
{
    if (!c->suspended)
        give_back(c);
    c->taken = 0;
}

void windows_free(struct communicator *c)
{
    while (c->windows) {
        struct window *next = c->windows->next;
        free(c->windows);
        c->windows = next;
    }
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int ncclCommSuspend(struct communicator *c, int flags)
{
    if (!communicator_is_valid(c) || flags != SUSPEND_MEMORY || c->suspended)
        return NCCL_INVALID_ARGUMENT;
    give_back(c);
    c->suspended = true;
    return NCCL_SUCCESS;
}

int ncclCommResume(struct communicator *c)
{
    if (!communicator_is_valid(c) || !c->suspended)
        return NCCL_INVALID_ARGUMENT;
    CUresult failed = cuCtxPushCurrent(c->context);
    int back = 0;
    while (!failed && back < c->taken && !(failed = cuMemAlloc(&c->buffers[back], c->buffer_bytes[back])))
        back++;
    for (int i = 0; failed && i < back; i++)
        cuMemFree(c->buffers[i]);
    cuCtxPopCurrent(NULL);
    c->suspended = failed != CUDA_SUCCESS;
    return failed ? NCCL_CUDA_ERROR : NCCL_SUCCESS;
}

/* All modelled memory can be suspended. */
int ncclCommMemStats(const struct communicator *c, int what, uint64_t *value)
{
    if (!communicator_is_valid(c) || !value || what < 0 || what > 3)
        return NCCL_INVALID_ARGUMENT;
    uint64_t sum = 0;
    for (int i = 0; i < c->taken; i++)
        sum += c->buffer_bytes[i];
    const uint64_t answers[] = {sum, c->suspended, 0, c->suspended ? 0 : sum};
    *value = answers[what];
    return NCCL_SUCCESS;
}

/* --- memory for programs: pages of the device that every device may reach, as the real library does it */

int ncclMemFree(void *at)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr start;
    size_t size;
    if (!at)
        return NCCL_SUCCESS;
    if (cuMemGetAddressRange(&start, &size, (CUdeviceptr)at) || start != (CUdeviceptr)at)
        return NCCL_INVALID_ARGUMENT;
    if (cuMemRetainAllocationHandle(&handle, at))
        return cuMemFree(start) ? NCCL_INVALID_ARGUMENT : NCCL_SUCCESS;
    CUresult failed = cuCtxSynchronize();
    if (!failed)
        failed = cuMemUnmap(start, size);
    cuMemRelease(handle);
    if (!failed)
        failed = cuMemAddressFree(start, size);
    return failed ? NCCL_CUDA_ERROR : NCCL_SUCCESS;
}

static CUresult map(CUdeviceptr *at, size_t size, CUdevice device, const CUmemAllocationProp *wanted)
{
    CUmemGenericAllocationHandle handle;
    CUresult failed = cuMemCreate(&handle, size, wanted, 0);
    if (failed)
        return failed;
    failed = cuMemAddressReserve(at, size, 0, 0, 0);
    if (!failed && (failed = cuMemMap(*at, size, 0, handle, 0)))
        cuMemAddressFree(*at, size);
    int devices = 0;
    cuDeviceGetCount(&devices);
    for (int other = 0; !failed && other < devices; other++) {
        int reaches = other == device;
        CUmemAccessDesc who = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = other}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        if ((!reaches && (cuDeviceCanAccessPeer(&reaches, other, device) || !reaches)) || !(failed = cuMemSetAccess(*at, size, &who, 1)))
            continue;
        cuMemUnmap(*at, size);
        cuMemAddressFree(*at, size);
    }
    cuMemRelease(handle);
    return failed;
}

int ncclMemAlloc(void **to, size_t size)
{
    CUdevice device;
    CUdeviceptr at = 0;
    size_t granularity;
    if (!to || !size || size > 1ull << 60 || cuCtxGetDevice(&device))
        return NCCL_INVALID_ARGUMENT;
    CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUresult failed = cuMemGetAllocationGranularity(&granularity, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (!failed)
        failed = map(&at, round_up(size, granularity), device, &wanted);
    else                                /* a device without virtual memory management */
        failed = cuMemAlloc(&at, size);
    *to = failed ? NULL : (void *)at;
    return failed ? (int)nccl_refuse(NCCL_CUDA_ERROR, "ncclMemAlloc: no %zu bytes (CUDA error %d)", size, (int)failed) : NCCL_SUCCESS;
}

/* --- registration: it makes nothing faster here, but what is no memory is refused */

static bool is_memory(const void *at, size_t size)
{
    CUdeviceptr start;
    size_t bytes;
    return at && size && !cuMemGetAddressRange(&start, &bytes, (CUdeviceptr)at);
}

static int enlist(struct communicator *c, void *at, size_t size, struct window **window)
{
    if (!communicator_is_valid(c) || !window || !is_memory(at, size))
        return NCCL_INVALID_ARGUMENT;
    *window = malloc(sizeof **window);
    if (!*window)
        return NCCL_SYSTEM_ERROR;
    **window = (struct window){c->windows, c, at, size};
    c->windows = *window;
    return NCCL_SUCCESS;
}

static int delist(struct communicator *c, struct window *window)
{
    if (!communicator_is_valid(c))
        return NCCL_INVALID_ARGUMENT;
    struct window **at = &c->windows;
    while (*at && *at != window)
        at = &(*at)->next;
    if (!*at)
        return window ? NCCL_INVALID_ARGUMENT : NCCL_SUCCESS;
    *at = window->next;
    free(window);
    return NCCL_SUCCESS;
}

int ncclCommRegister(struct communicator *c, void *at, size_t size, struct window **handle)
{
    return enlist(c, at, size, handle);
}

int ncclCommDeregister(struct communicator *c, struct window *handle)
{
    return delist(c, handle);
}

/* Every rank registers; the real library may need to meet for it, we need not. */
int ncclCommWindowRegister(struct communicator *c, void *at, size_t size, struct window **window, int flags)
{
    if (flags & ~3 || (uint64_t)at % WINDOW_ALIGNMENT)
        return NCCL_INVALID_ARGUMENT;
    return enlist(c, at, size, window);
}

int ncclCommWindowDeregister(struct communicator *c, struct window *window)
{
    return delist(c, window);
}

int ncclWinGetUserPtr(const struct communicator *c, const struct window *window, void **at)
{
    if (!communicator_is_valid(c) || !window || window->communicator != c || !at)
        return NCCL_INVALID_ARGUMENT;
    *at = window->at;
    return NCCL_SUCCESS;
}

/* The memory of other ranks is not mapped here: NULL is how the interface says that a peer is out of reach. */
int ncclGetPeerDevicePointer(const struct window *window, size_t offset, int peer, void **at)
{
    if (!window || !at || peer < 0 || peer >= window->communicator->ranks || offset >= window->size)
        return NCCL_INVALID_ARGUMENT;
    *at = peer == window->communicator->rank ? (char *)window->at + offset : NULL;
    return NCCL_SUCCESS;
}

/* There is no multicast: NULL is how the interface says so. */
int ncclGetLsaMultimemDevicePointer(const struct window *window, size_t offset, void **at)
{
    if (!window || !at || offset >= window->size)
        return NCCL_INVALID_ARGUMENT;
    *at = NULL;
    return NCCL_SUCCESS;
}

/* Kernels that communicate by themselves would wait for each other: there is nothing to give them. */
int ncclDevCommCreate(const struct communicator *c, const void *needs, void *made)
{
    (void)needs;
    (void)made;
    if (!communicator_is_valid(c))
        return NCCL_INVALID_ARGUMENT;
    return (int)nccl_refuse(NCCL_INVALID_USAGE, "ncclDevCommCreate: communicators for kernels are not simulated");
}

int ncclDevCommDestroy(const struct communicator *c, const void *made)
{
    (void)made;
    return communicator_is_valid(c) ? NCCL_SUCCESS : NCCL_INVALID_ARGUMENT;
}
