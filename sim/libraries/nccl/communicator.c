/*
 * communicator.c: communicators of the simulated NCCL: how one is made and taken apart, what it says of itself, and how it fails.
 *
 *     opened --all ranks have come--> usable --failure--> failed --destroy or abort--> gone
 *                                        `---revoke----> stopped ---------------------'
 *
 * Once failed it stays so, and says to the other ranks that it has left, so that they do not wait for it. All communicators are blocking:
 * `blocking = 0` in a configuration is accepted, and calls then never say "in progress", which the interface allows.
 *
 * Not here: which ranks are where. Ranks are threads and processes of one machine; two of them may be on the same device.
 */
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "sim/libraries/library.h"
#include "sim/libraries/nccl/nccl.h"

static _Thread_local char last_trouble[256];   /* where no communicator is at hand */

static enum nccl_result say(char *to, enum nccl_result result, const char *why, va_list arguments)
{
    vsnprintf(to, 256, why, arguments);
    fprintf(stderr, "simulated NCCL: %s\n", to);
    return result;
}

enum nccl_result nccl_refuse(enum nccl_result result, const char *why, ...)
{
    va_list arguments;
    va_start(arguments, why);
    say(last_trouble, result, why, arguments);
    va_end(arguments);
    return result;
}

enum nccl_result communicator_fail(struct communicator *c, enum nccl_result result, const char *why, ...)
{
    int fine = NCCL_SUCCESS;
    if (!atomic_compare_exchange_strong(&c->error, &fine, (int)result))
        return (enum nccl_result)fine;
    va_list arguments;
    va_start(arguments, why);
    say(c->trouble, result, why, arguments);
    va_end(arguments);
    board_leave(c->board);
    return result;
}

bool communicator_is_valid(const struct communicator *c)
{
    return c && c->magic == COMMUNICATOR_MAGIC;
}

enum nccl_result config_check(const struct nccl_config *config)
{
    if (config && (config->magic != CONFIG_MAGIC || config->size < sizeof *config))
        return nccl_refuse(NCCL_INVALID_ARGUMENT, "the configuration was not made with NCCL_CONFIG_INITIALIZER, or is older than 2.18");
    return NCCL_SUCCESS;
}

static enum nccl_result find_context(CUcontext *context)
{
    CUresult result = cuInit(0);
    *context = NULL;
    if (!result)
        result = cuCtxGetCurrent(context);
    if (!result && !*context)
        result = cuDevicePrimaryCtxRetain(context, 0);
    return result ? nccl_refuse(NCCL_CUDA_ERROR, "no context of a device (CUDA error %d)", (int)result) : NCCL_SUCCESS;
}

static bool allocate(struct communicator *c)
{
    size_t seats = (size_t)c->seats, buffers = (size_t)c->near + BUFFERS_SHARED;
    c->posts = calloc(seats, sizeof *c->posts);
    c->takes = calloc(seats, sizeof *c->takes);
    c->met = calloc((size_t)c->ranks, sizeof *c->met);
    c->buffers = calloc(buffers, sizeof *c->buffers);
    c->buffer_bytes = calloc(buffers, sizeof *c->buffer_bytes);
    return c->posts && c->takes && c->met && c->buffers && c->buffer_bytes;
}

void communicator_release(struct communicator *c)
{
    if (atomic_fetch_sub(&c->references, 1) > 1)
        return;
    if (c->board)
        board_close(c->board);
    free(c->seated);
    free(c->world);
    free(c->posts);
    free(c->takes);
    free(c->met);
    free(c->buffers);
    free(c->buffer_bytes);
    marked_free(c);
}

static enum nccl_result attend(struct communicator *c)
{
    if (c->seats > BOARD_RANKS_MAX)
        return nccl_refuse(NCCL_INVALID_ARGUMENT, "%d real ranks in a communicator: there may be %d", c->seats, BOARD_RANKS_MAX);
    switch (board_open(&c->board, c->id.bytes, c->seats, seat_of(c, c->rank))) {
    case BOARD_FINE:
        return NCCL_SUCCESS;
    case BOARD_OTHER_SIZE:
        return nccl_refuse(NCCL_INVALID_USAGE, "rank %d says there are %d ranks, another rank says otherwise", c->rank, c->ranks);
    case BOARD_RANK_TAKEN:
        return nccl_refuse(NCCL_INVALID_USAGE, "rank %d of %d is there twice", c->rank, c->ranks);
    default:
        return nccl_refuse(NCCL_SYSTEM_ERROR, "no file in memory for %d ranks to meet in: /dev/shm is full or closed", c->seats);
    }
}

static enum nccl_result take_seats(struct communicator *c, int *members)
{
    if (seats_fill(c, members))
        return NCCL_SUCCESS;
    return nccl_refuse(NCCL_INVALID_USAGE, "rank %d of %d makes a communicator, and is no real rank", c->rank, c->ranks);
}

static enum nccl_result check_ranks(struct communicator *const *made, int ranks, int rank, const struct nccl_id *id)
{
    if (made && id && ranks >= 1 && ranks <= RANKS_MAX && rank >= 0 && rank < ranks)
        return NCCL_SUCCESS;
    return nccl_refuse(NCCL_INVALID_ARGUMENT, "rank %d of a communicator of %d: there may be 1 to %d", rank, ranks, RANKS_MAX);
}

/* Comes to the meeting of the ranks; the caller waits for the others with a MEET operation. `context` NULL: the current one. Takes over
 * `members`, the ranks of the world; NULL: all ranks are real. */
enum nccl_result communicator_open(struct communicator **made, CUcontext context, int ranks, int rank, const struct nccl_id *id,
                                   const struct nccl_config *config, int *members)
{
    enum nccl_result result = check_ranks(made, ranks, rank, id);
    if (!result)
        result = config_check(config);
    if (!result && !context)
        result = find_context(&context);
    struct communicator *c = result ? NULL : calloc(1, sizeof *c);
    if (!c) {
        free(members);
        return result ? result : NCCL_SYSTEM_ERROR;
    }
    *c = (struct communicator){.magic = COMMUNICATOR_MAGIC, .rank = rank, .ranks = ranks, .context = context, .id = *id,
                                .references = 1};
    if (config && config->most_ctas != CONFIG_UNSAID)
        c->most_ctas = config->most_ctas;
    result = take_seats(c, members);
    if (!result)
        result = allocate(c) ? attend(c) : NCCL_SYSTEM_ERROR;
    if (!result && (cuCtxPushCurrent(context) || cuCtxGetDevice(&c->device) || cuCtxPopCurrent(NULL)))
        result = nccl_refuse(NCCL_CUDA_ERROR, "the context of the communicator is of no use");
    if (result)
        communicator_release(c);
    else
        *made = c;
    return result;
}

/* Waits until no operation runs: an abort comes from another thread. What waits in that thread's group fails later. */
void communicator_close(struct communicator *c)
{
    atomic_store(&c->stopped, true);
    board_leave(c->board);
    group_forget(c);
    while (atomic_load(&c->busy))
        sched_yield();
    windows_free(c);
    buffers_free(c);
    c->magic = 0;
    communicator_release(c);
}

/* --- the entry points */

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

int ncclGetVersion(int *version)
{
    if (!version)
        return NCCL_INVALID_ARGUMENT;
    *version = NCCL_VERSION;
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {"no error", "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)", "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)", "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error", "NCCL operation in progress", "operation timed out"};
    return result >= 0 && result <= NCCL_TIMEOUT ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(const struct communicator *c)
{
    return communicator_is_valid(c) && c->trouble[0] ? c->trouble : last_trouble;
}

int ncclGetUniqueId(struct nccl_id *id)
{
    if (!id)
        return NCCL_INVALID_ARGUMENT;
    return getrandom(id, sizeof *id, 0) == (ssize_t)sizeof *id ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

/* `context` NULL: of one rank, in the current context; not all others need be real. */
static int begin(struct communicator **made, CUcontext context, int ranks, int rank, const struct nccl_id *id,
                 const struct nccl_config *config)
{
    struct operation meet = {.kind = MEET, .name = "ncclCommInitRank", .made = made};
    int *members = NULL;
    int result = (int)check_ranks(made, ranks, rank, id);
    if (!result && !context)
        result = (int)seats_of_id(id, ranks, rank, &members);
    if (!result)
        result = (int)communicator_open(&meet.child, context, ranks, rank, id, config, members);
    return result ? result : (int)operation_put(&meet);
}

int ncclCommInitRankConfig(struct communicator **made, int ranks, struct nccl_id id, int rank, const struct nccl_config *config)
{
    return made ? begin(made, NULL, ranks, rank, &id, config) : NCCL_INVALID_ARGUMENT;
}

int ncclCommInitRank(struct communicator **made, int ranks, struct nccl_id id, int rank)
{
    return made ? begin(made, NULL, ranks, rank, &id, NULL) : NCCL_INVALID_ARGUMENT;
}

/* Several ids make the real one faster; the first is enough to meet. */
int ncclCommInitRankScalable(struct communicator **made, int ranks, int rank, int count, const struct nccl_id *ids,
                             const struct nccl_config *config)
{
    return made && ids && count > 0 && count <= ranks ? begin(made, NULL, ranks, rank, ids, config) : NCCL_INVALID_ARGUMENT;
}

int ncclCommInitAll(struct communicator **made, int ranks, const int *devices)
{
    struct nccl_id id;
    int result = made && ranks > 0 ? ncclGetUniqueId(&id) : NCCL_INVALID_ARGUMENT;
    if (!result && cuInit(0))
        result = NCCL_CUDA_ERROR;
    if (result)
        return result;
    group_start();
    for (int rank = 0; !result && rank < ranks; rank++) {
        CUcontext context;
        if (cuDevicePrimaryCtxRetain(&context, devices ? devices[rank] : rank))
            result = nccl_refuse(NCCL_CUDA_ERROR, "ncclCommInitAll: there is no device %d", devices ? devices[rank] : rank);
        else
            result = begin(&made[rank], context, ranks, rank, &id, NULL);
    }
    if (!result)
        return (int)group_end();
    group_drop();
    return result;
}

int ncclCommFinalize(struct communicator *c)
{
    return communicator_is_valid(c) ? atomic_load(&c->error) : NCCL_INVALID_ARGUMENT;
}

int ncclCommDestroy(struct communicator *c)
{
    if (!c)
        return NCCL_SUCCESS;
    if (!communicator_is_valid(c))
        return NCCL_INVALID_ARGUMENT;
    communicator_close(c);
    return NCCL_SUCCESS;
}

int ncclCommAbort(struct communicator *c)
{
    return ncclCommDestroy(c);
}

int ncclCommRevoke(struct communicator *c, int flags)
{
    if (!communicator_is_valid(c) || flags)
        return NCCL_INVALID_ARGUMENT;
    atomic_store(&c->revoked, true);
    atomic_store(&c->stopped, true);
    while (atomic_load(&c->busy))
        sched_yield();
    atomic_store(&c->stopped, false);   /* split and shrink may follow */
    return NCCL_SUCCESS;
}

int ncclCommGetAsyncError(const struct communicator *c, int *error)
{
    if (!communicator_is_valid(c) || !error)
        return NCCL_INVALID_ARGUMENT;
    *error = atomic_load(&c->error);
    return NCCL_SUCCESS;
}

static int tell(const struct communicator *c, int *to, int what)
{
    if (!communicator_is_valid(c) || !to)
        return NCCL_INVALID_ARGUMENT;
    *to = what;
    return NCCL_SUCCESS;
}

int ncclCommCount(const struct communicator *c, int *count)
{
    return tell(c, count, communicator_is_valid(c) ? c->ranks : 0);
}

int ncclCommCuDevice(const struct communicator *c, int *device)
{
    return tell(c, device, communicator_is_valid(c) ? c->device : 0);
}

int ncclCommUserRank(const struct communicator *c, int *rank)
{
    return tell(c, rank, communicator_is_valid(c) ? c->rank : 0);
}
