/*
 * operation.c: what a call of NCCL's does: an empty kernel on its stream, a copy of the rank's own part where that has another place, and
 * for small messages the exchange of their contents with the other ranks.
 *
 *     operation_put -> [waits in its group] -> start -> exchange, until all letters are posted and taken -> finish
 *
 * Contents are exchanged if one part has at most BOARD_LETTER_MAX bytes and the stream is not being captured. Then the call waits: for
 * the stream, whose work has to be done before the data is read, and for the other ranks. The real library waits for neither. Larger
 * messages wait for no rank; what would be received stays as it was. Either way, ranks must make the same calls in the same order, as ever.
 * Phantoms (seats.c) are never waited for; part_of says what they send.
 *
 * All operations of a group go on together, so ranks in one thread, and sends and receives in any order, do not block each other. Letters
 * are numbered when the call is made, which keeps their order. A rank that has left, died, or does something else than we do ends the
 * wait with an error, and so does an abort from another thread, and WAIT_MAX.
 *
 * LOCKING: none: a group belongs to its thread; see nccl.h for communicators.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim/libraries/nccl/nccl.h"
#include "sim/sim.h"

#define WAIT_MAX 600           /* seconds, as PyTorch waits for a collective unless told otherwise */
#define LOOK_EVERY 50000000ull  /* ns between two looks at whether the others live */
#define TURNS_AWAKE 200         /* of a wait, before it sleeps */
#define MADE_UP_MAX (16u << 20) /* bytes of all parts together, in a communicator with phantoms */

/* Which ranks send parts to which, and what becomes of them. SEND and RECEIVE: `root` is the peer. */
enum ranks { NO_RANK, ALL_RANKS, ROOT, OWN };
enum join { WHOLE, BY_RANK, REDUCED };
static const struct pattern {
    enum ranks senders, receivers;
    bool      sliced;           /* another part for each receiver */
    enum join join;
} patterns[] = {
    [ALL_REDUCE] = {ALL_RANKS, ALL_RANKS, false, REDUCED},
    [REDUCE] = {ALL_RANKS, ROOT, false, REDUCED},
    [BROADCAST] = {ROOT, ALL_RANKS, false, WHOLE},
    [ALL_GATHER] = {ALL_RANKS, ALL_RANKS, false, BY_RANK},
    [REDUCE_SCATTER] = {ALL_RANKS, ALL_RANKS, true, REDUCED},
    [ALL_TO_ALL] = {ALL_RANKS, ALL_RANKS, true, BY_RANK},
    [GATHER] = {ALL_RANKS, ROOT, false, BY_RANK},
    [SCATTER] = {ROOT, ALL_RANKS, true, WHOLE},
    [SEND] = {OWN, ROOT, false, WHOLE},
    [RECEIVE] = {ROOT, OWN, false, WHOLE},
    [TELL] = {ALL_RANKS, ALL_RANKS, false, BY_RANK},
    [MEET] = {NO_RANK, NO_RANK, false, WHOLE},
};

static _Thread_local struct {
    int               depth;
    struct operation *first;
} group;

static bool is_of(enum ranks ranks, int rank, const struct operation *o)
{
    return ranks == ALL_RANKS || (ranks == ROOT && rank == o->root) || (ranks == OWN && rank == o->communicator->rank);
}

static bool goes(const struct operation *o, int from, int to)
{
    const struct pattern *p = &patterns[o->kind];
    return is_of(p->senders, from, o) && is_of(p->receivers, to, o);
}

bool operation_meets(const struct operation *o, int rank)
{
    return goes(o, o->communicator->rank, rank) || goes(o, rank, o->communicator->rank);
}

static bool on_stream(const struct operation *o)
{
    return o->kind < TELL;
}

static bool is_pair(const struct operation *o)
{
    return o->kind == SEND || o->kind == RECEIVE;
}

static bool with_itself(const struct operation *o)
{
    return is_pair(o) && o->root == o->communicator->rank;
}

/* The number that letters bear: a receive awaits what a send posts. */
static uint32_t letter_kind(const struct operation *o)
{
    return o->kind == RECEIVE ? SEND : o->kind;
}

static void operation_free(struct operation *o)
{
    free(o->out);
    free(o->in);
    free(o->posts);
    free(o->takes);
    free(o);
}

static bool is_captured(const struct operation *o)
{
    CUstreamCaptureStatus status;
    return on_stream(o) && (cuStreamIsCapturing(o->stream, &status) || status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* The next letter to and from each real rank that this operation has to do with belongs to it. */
static bool number_letters(struct operation *o)
{
    struct communicator *c = o->communicator;
    size_t seats = (size_t)c->seats;
    o->posts = malloc(seats * sizeof *o->posts);
    o->takes = malloc(seats * sizeof *o->takes);
    o->in = malloc(seats * o->bytes + 1);
    if (!o->posts || !o->takes || !o->in)
        return false;
    for (int seat = 0; seat < c->seats; seat++) {
        int rank = c->seated[seat];
        bool other = rank != c->rank;
        o->posts[seat] = other && goes(o, c->rank, rank) ? c->posts[seat]++ : NO_LETTER;
        o->takes[seat] = other && goes(o, rank, c->rank) ? c->takes[seat]++ : NO_LETTER;
    }
    return true;
}

/* Parts that many phantoms would have sent are not made up. */
static bool is_too_much(const struct operation *o)
{
    const struct communicator *c = o->communicator;
    return has_phantoms(c) && patterns[o->kind].senders == ALL_RANKS && o->bytes * (size_t)c->ranks > MADE_UP_MAX;
}

/* --- start */

static enum nccl_result cuda_failed(const struct operation *o, CUresult result)
{
    const char *text = "";
    cuGetErrorString(result, &text);
    return communicator_fail(o->communicator, NCCL_CUDA_ERROR, "%s on rank %d: %s", o->name, o->communicator->rank, text);
}

/* Where this rank's own part is and where it belongs, both 0 if it has none. */
static void own_part(const struct operation *o, uint64_t *from, uint64_t *to)
{
    const struct pattern *p = &patterns[o->kind];
    uint64_t own = (uint64_t)o->communicator->rank * o->bytes;
    bool has = goes(o, o->communicator->rank, o->communicator->rank) && !is_pair(o);
    *from = has ? o->send + (p->sliced ? own : 0) : 0;
    *to = has ? o->receive + (p->join == BY_RANK ? own : 0) : 0;
}

/* A rank may send to itself in a group that also receives it: the first such send that is not received yet. */
static enum nccl_result find_own_send(struct operation *o, uint64_t *from, uint64_t *to)
{
    for (struct operation *send = group.first; send; send = send->next)
        if (send->kind == SEND && send->communicator == o->communicator && with_itself(send) && !send->paired) {
            if (send->bytes != o->bytes)
                break;
            send->paired = true;
            *from = send->send;
            *to = o->receive;
            return NCCL_SUCCESS;
        }
    return communicator_fail(o->communicator, NCCL_INVALID_USAGE, "ncclRecv from itself without such an ncclSend in the same group");
}

/* What other ranks are to get, read to the host; scaled, if that is how the operator reduces. */
static CUresult stage(struct operation *o)
{
    struct communicator *c = o->communicator;
    const struct pattern *p = &patterns[o->kind];
    size_t bytes = p->sliced ? o->bytes * (size_t)c->ranks : o->bytes;
    if (!is_of(p->senders, c->rank, o) || !bytes)
        return CUDA_SUCCESS;
    o->out = malloc(bytes);
    if (!o->out)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = cuMemcpyDtoHAsync(o->out, o->send, bytes, o->stream);
    if (!result)
        result = cuStreamSynchronize(o->stream);
    if (result || p->join != REDUCED || o->reduction < SCALED_FIRST)
        return result;
    const struct scale *scale = &c->scales[o->reduction - SCALED_FIRST];
    unsigned char factor[8];
    memcpy(factor, scale->bytes, sizeof factor);
    if (scale->on_device)
        result = cuMemcpyDtoH(factor, scale->at, type_bytes(scale->type));
    if (!result)
        reduce_scale(o->out, bytes / type_bytes(o->type), o->type, factor);
    return result;
}

static enum nccl_result start_on_stream(struct operation *o)
{
    uint64_t from, to;
    enum nccl_result result = buffers_connect(o->communicator, o);
    if (result)
        return result;
    own_part(o, &from, &to);
    if (o->kind == RECEIVE && with_itself(o))
        result = find_own_send(o, &from, &to);
    if (result)
        return result;
    CUresult failed = sim_launch_kernel(o->stream, o->name);
    if (!failed && o->moves)
        failed = stage(o);
    if (!failed && from != to && o->bytes)
        failed = cuMemcpyDtoDAsync(to, from, o->bytes, o->stream);
    return failed ? cuda_failed(o, failed) : NCCL_SUCCESS;
}

static enum nccl_result start(struct operation *o)
{
    if (!on_stream(o))
        return NCCL_SUCCESS;
    if (cuCtxPushCurrent(o->communicator->context))
        return communicator_fail(o->communicator, NCCL_CUDA_ERROR, "%s: the context is gone", o->name);
    enum nccl_result result = start_on_stream(o);
    cuCtxPopCurrent(NULL);
    return result;
}

/* --- exchange */

static bool post_letters(struct operation *o)
{
    struct communicator *c = o->communicator;
    struct letter letter = {letter_kind(o), 0, o->bytes};
    bool moved = false;
    for (int seat = 0; seat < c->seats; seat++) {
        if (o->posts[seat] == NO_LETTER)
            continue;
        const char *part = o->bytes && patterns[o->kind].sliced ? o->out + (size_t)c->seated[seat] * o->bytes : o->out;
        if (!board_post(c->board, seat, o->posts[seat], letter, part))
            continue;
        o->posts[seat] = NO_LETTER;
        moved = true;
    }
    return moved;
}

/* Contents that found no room: what would be received stays as it was, as with large messages. False: it cannot do without. */
static bool lose(struct operation *o)
{
    static _Atomic bool said;
    if (!atomic_exchange(&said, true))
        fprintf(stderr, "simulated NCCL: /dev/shm is full: what %s would receive stays as it was\n", o->name);
    o->lost = true;
    return on_stream(o);
}

static enum nccl_result take_letters(struct operation *o, bool *moved)
{
    struct communicator *c = o->communicator;
    for (int seat = 0; seat < c->seats; seat++) {
        struct letter letter;
        if (o->takes[seat] == NO_LETTER || !board_take(c->board, seat, o->takes[seat], &letter, o->in + (size_t)seat * o->bytes, o->bytes))
            continue;
        int rank = c->seated[seat];
        o->takes[seat] = NO_LETTER;
        *moved = true;
        if (letter.kind != letter_kind(o) || letter.bytes != o->bytes)
            return communicator_fail(c, NCCL_INVALID_USAGE,
                                     "rank %d is in %s with %zu bytes a part where rank %d is in an operation of kind %u with %llu bytes",
                                     c->rank, o->name, o->bytes, rank, letter.kind, (unsigned long long)letter.bytes);
        if (letter.lost && !lose(o))
            return communicator_fail(c, NCCL_SYSTEM_ERROR, "%s: no room in memory for what rank %d says", o->name, rank);
    }
    return NCCL_SUCCESS;
}

static bool has_letters(const uint64_t *numbers, int seats)
{
    for (int seat = 0; seat < seats; seat++)
        if (numbers[seat] != NO_LETTER)
            return true;
    return false;
}

/*
 * What a phantom sends where it is the only sender. Only it knows; but in two groups of PyTorch's a program of equal ranks shows it. To gather
 * parts of any size, each rank broadcasts once: a phantom's broadcast says what ours says. All-to-all is a send to and a receive from each
 * rank: a phantom returns what we send it. The n-th operation of the phantom meets our n-th. NULL: nothing tells, or the sizes differ.
 */
static const char *echo(const struct operation *o)
{
    enum operation_kind ours = o->kind == RECEIVE ? SEND : o->kind;
    int with = o->kind == RECEIVE ? o->root : o->communicator->rank, before = 0;
    for (const struct operation *other = group.first; other != o; other = other->next)
        before += other->communicator == o->communicator && other->kind == o->kind && other->root == o->root;
    for (const struct operation *other = group.first; other; other = other->next)
        if (other->communicator == o->communicator && other->kind == ours && other->root == with && !before--)
            return other->bytes == o->bytes ? other->out : NULL;
    return NULL;
}

/* The part that `rank` sends us. A phantom's part of what all ranks send is a copy of ours. NULL: it is not known. */
static const char *part_of(const struct operation *o, int rank)
{
    const struct communicator *c = o->communicator;
    int seat = seat_of(c, rank);
    if (seat != PHANTOM && rank != c->rank)
        return o->in + (size_t)seat * o->bytes;
    if (seat == PHANTOM && patterns[o->kind].senders != ALL_RANKS)
        return echo(o);
    return o->out + (patterns[o->kind].sliced ? (size_t)c->rank * o->bytes : 0);
}

/* The result, from all parts, goes where the call wanted it. */
static enum nccl_result deliver(struct operation *o)
{
    struct communicator *c = o->communicator;
    const struct pattern *p = &patterns[o->kind];
    size_t ranks = (size_t)c->ranks;
    if (!is_of(p->receivers, c->rank, o) || !o->bytes || o->lost)
        return NCCL_SUCCESS;
    const char *result = p->join == WHOLE ? part_of(o, o->root) : NULL;
    char *all = p->join == WHOLE ? NULL : malloc(ranks * o->bytes);
    if (p->join == WHOLE && !result) {  /* it is not known, and what is there stays as it was */
        seats_note_unheard(c, o->root);
        return NCCL_SUCCESS;
    }
    if (!result && !all)
        return NCCL_SYSTEM_ERROR;
    for (int rank = 0; all && rank < c->ranks; rank++)
        memcpy(all + (size_t)rank * o->bytes, part_of(o, rank), o->bytes);
    if (p->join == REDUCED)
        reduce_parts(all, all, c->ranks, o->count, o->type, o->reduction);
    CUresult failed = cuCtxPushCurrent(c->context);
    if (!failed) {
        failed = cuMemcpyHtoDAsync(o->receive, all ? all : result, p->join == BY_RANK ? o->bytes * ranks : o->bytes, o->stream);
        cuCtxPopCurrent(NULL);
    }
    free(all);
    return failed ? cuda_failed(o, failed) : NCCL_SUCCESS;
}

static enum nccl_result meet(struct operation *o, bool *moved)
{
    if (!board_is_complete(o->child->board))
        return NCCL_SUCCESS;
    *o->made = o->child;
    o->child = NULL;
    *moved = o->done = true;
    return NCCL_SUCCESS;
}

static enum nccl_result advance(struct operation *o, bool *moved)
{
    if (o->kind == MEET)
        return meet(o, moved);
    struct communicator *c = o->communicator;
    if (o->moves && post_letters(o))
        *moved = true;
    enum nccl_result result = o->moves ? take_letters(o, moved) : NCCL_SUCCESS;
    if (result || (o->moves && (has_letters(o->posts, c->seats) || has_letters(o->takes, c->seats))))
        return result;
    *moved = true;
    if (o->kind != TELL) {
        o->done = true;
        return o->moves ? deliver(o) : NCCL_SUCCESS;
    }
    memcpy(o->in + (size_t)c->rank * o->bytes, o->out, o->bytes);
    return o->finish(o);
}

/* --- waiting */

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Is there still a rank to wait for? A letter that a rank left before it went was taken before we came here. */
static enum nccl_result look_around(struct operation *o, bool late)
{
    if (o->kind == MEET) {
        const struct communicator *child = o->child;
        for (int seat = 0; seat < child->seats; seat++)
            if (board_has_lost(child->board, seat) && !board_is_complete(child->board))
                return nccl_refuse(NCCL_REMOTE_ERROR, "%s: rank %d came and went while others were still awaited", o->name, child->seated[seat]);
        return late ? nccl_refuse(NCCL_TIMEOUT, "%s: not all of %d ranks came in %d s", o->name, child->seats, WAIT_MAX) : NCCL_SUCCESS;
    }
    struct communicator *c = o->communicator;
    for (int seat = 0; seat < c->seats; seat++) {
        bool awaited = o->takes[seat] != NO_LETTER || o->posts[seat] != NO_LETTER;
        bool moved = false;
        if (!awaited || !board_has_lost(c->board, seat))
            continue;
        enum nccl_result result = take_letters(o, &moved);  /* its last letters may have come since */
        if (result || moved)
            return result;
        return communicator_fail(c, NCCL_REMOTE_ERROR, "%s: rank %d has left, or its process has ended", o->name, c->seated[seat]);
    }
    return late ? communicator_fail(c, NCCL_TIMEOUT, "%s: the other ranks did not call it in %d s", o->name, WAIT_MAX) : NCCL_SUCCESS;
}

static enum nccl_result advance_all(bool *moved, bool *left)
{
    *moved = *left = false;
    for (struct operation *o = group.first; o; o = o->next) {
        if (o->communicator && atomic_load(&o->communicator->stopped))
            return NCCL_REMOTE_ERROR;
        enum nccl_result result = o->done ? NCCL_SUCCESS : advance(o, moved);
        if (result)
            return result;
        *left |= !o->done;
    }
    return NCCL_SUCCESS;
}

static enum nccl_result exchange(void)
{
    uint64_t began = 0, looked = 0;
    bool moved, left;
    unsigned idle = 0;
    enum nccl_result result = advance_all(&moved, &left);
    while (!result && left) {
        idle = moved ? 0 : idle + 1;
        if (idle > TURNS_AWAKE) {
            struct timespec nap = {0, idle > 4 * TURNS_AWAKE ? 1000000 : 50000};
            nanosleep(&nap, NULL);
        } else if (idle) {
            sched_yield();
        }
        uint64_t time = now();
        if (moved || !began)
            began = looked = time;
        if (time - looked > LOOK_EVERY) {
            looked = time;
            for (struct operation *o = group.first; o && !result; o = o->next)
                result = o->done ? NCCL_SUCCESS : look_around(o, time - began > WAIT_MAX * 1000000000ull);
        }
        if (!result)
            result = advance_all(&moved, &left);
    }
    return result;
}

/* --- groups */

/* Forgets the operations of a communicator, or all for NULL; communicators that were being made are unmade. */
void group_forget(const struct communicator *c)
{
    struct operation **at = &group.first;
    while (*at) {
        struct operation *o = *at;
        if (c && o->communicator != c) {
            at = &o->next;
            continue;
        }
        *at = o->next;
        if (o->child)
            communicator_close(o->child);
        if (o->communicator)
            communicator_release(o->communicator);
        operation_free(o);
    }
}

static enum nccl_result check_open(const struct operation *o)
{
    if (on_stream(o) && (atomic_load(&o->communicator->revoked) || o->communicator->suspended))
        return nccl_refuse(NCCL_INVALID_USAGE, "%s: the communicator is %s", o->name, o->communicator->suspended ? "suspended" : "revoked");
    return NCCL_SUCCESS;
}

/* From here to leave(), abort and revoke wait for us. Each of them stops the communicator before it looks whether it is busy. */
static enum nccl_result enter(void)
{
    enum nccl_result result = NCCL_SUCCESS;
    for (struct operation *o = group.first; o; o = o->next)
        if (o->communicator)
            atomic_fetch_add(&o->communicator->busy, 1);
    for (struct operation *o = group.first; o && !result; o = o->next)
        if (o->communicator)
            result = atomic_load(&o->communicator->stopped) ? NCCL_REMOTE_ERROR : check_open(o);
    return result;
}

static void leave(void)
{
    for (struct operation *o = group.first; o; o = o->next)
        if (o->communicator)
            atomic_fetch_sub(&o->communicator->busy, 1);
}

static enum nccl_result run(void)
{
    enum nccl_result result = enter();
    for (struct operation *o = group.first; o && !result; o = o->next)
        result = start(o);
    if (!result)
        result = exchange();
    leave();
    group_forget(NULL);
    return result;
}

static enum nccl_result accept(struct operation *o)
{
    struct communicator *c = o->communicator;
    if (!c)
        return NCCL_SUCCESS;
    enum nccl_result result = (enum nccl_result)atomic_load(&c->error);
    if (result)
        return result;
    result = check_open(o);
    if (result)
        return result;
    if (on_stream(o) && cuCtxPushCurrent(c->context))
        return NCCL_CUDA_ERROR;
    o->moves = o->bytes <= BOARD_LETTER_MAX && c->ranks > 1 && !with_itself(o) && !is_captured(o) && !is_too_much(o);
    if (on_stream(o))
        cuCtxPopCurrent(NULL);
    if (!on_stream(o) && !o->moves) {   /* of one rank: it tells itself */
        o->in = malloc(o->bytes);
        return o->in ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
    }
    return !o->moves || number_letters(o) ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

/* TELL brings bytes of the caller's; they are copied. */
enum nccl_result operation_put(const struct operation *wanted)
{
    struct operation *o = malloc(sizeof *o);
    if (!o)
        return NCCL_SYSTEM_ERROR;
    *o = *wanted;
    o->out = NULL;
    if (wanted->out && (o->out = malloc(o->bytes)))
        memcpy(o->out, wanted->out, o->bytes);
    enum nccl_result result = wanted->out && !o->out ? NCCL_SYSTEM_ERROR : accept(o);
    if (result) {
        if (o->child)
            communicator_close(o->child);
        operation_free(o);
        return result;
    }
    if (o->communicator)
        atomic_fetch_add(&o->communicator->references, 1);
    struct operation **end = &group.first;
    while (*end)
        end = &(*end)->next;
    *end = o;
    return group.depth ? NCCL_SUCCESS : run();
}

enum nccl_result group_start(void)
{
    group.depth++;
    return NCCL_SUCCESS;
}

enum nccl_result group_end(void)
{
    if (!group.depth)
        return nccl_refuse(NCCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    return --group.depth ? NCCL_SUCCESS : run();
}

void group_drop(void)
{
    if (group.depth)
        group.depth--;
    group_forget(NULL);
}
