/*
 * nccl.h: what the files of the simulated NCCL share: its types, communicators, operations.
 *
 *     board.c         where ranks meet; contents of small messages
 *     communicator.c  made, asked, taken apart; errors
 *     family.c        communicators from communicators: split, shrink, grow
 *     seats.c         which ranks are real, and on which node each is
 *     operation.c     what a call puts on its stream, and the exchange of contents
 *     collectives.c   the entry points of collectives and groups
 *     reduce.c        arithmetic on small messages
 *     buffers.c       memory: what a communicator takes of the device, registration, windows
 *
 * A communicator belongs to one thread at a time, as with the real library; only ncclCommAbort, ncclCommRevoke and ncclCommGetAsyncError
 * come from others. So there is no lock: `stopped`, `error` and `busy` are atomic, and abort waits until no operation runs. Operations
 * that wait in an open group do not run: they fail when the group ends, and until then they keep what is left of the communicator.
 */
#ifndef CENOTE_SIM_NCCL_H
#define CENOTE_SIM_NCCL_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "sim/libraries/nccl/board.h"

#define NCCL_VERSION 23007          /* 2.30.7, what PyTorch 2.15 asks for */

enum nccl_result {
    NCCL_SUCCESS, NCCL_CUDA_ERROR, NCCL_SYSTEM_ERROR, NCCL_INTERNAL_ERROR, NCCL_INVALID_ARGUMENT, NCCL_INVALID_USAGE, NCCL_REMOTE_ERROR,
    NCCL_IN_PROGRESS, NCCL_TIMEOUT
};

struct nccl_id {
    char bytes[BOARD_NAME_BYTES];
};

/* The start of ncclConfig_t; later versions of the real one only append. INT_MIN: not said. */
#define CONFIG_MAGIC 0xcafebeefu
#define CONFIG_UNSAID (-2147483647 - 1)
struct nccl_config {
    size_t      size;
    unsigned    magic;
    unsigned    version;
    int         blocking;           /* not looked at: every communicator is blocking */
    int         cga_size;
    int         least_ctas;
    int         most_ctas;
    const char *net_name;
    int         split_share;
};

struct window {
    struct window       *next;
    struct communicator *communicator;
    void                *at;
    size_t               size;
};

#define SCALES_MAX 64              /* live operators of ncclRedOpCreatePreMulSum in a communicator */
struct scale {
    bool     live;
    bool     on_device;             /* `at` is read when an operation starts; else `bytes` has it */
    int      type;
    uint64_t at;
    unsigned char bytes[8];
};

#define COMMUNICATOR_MAGIC 0x6d6d6f636c63636eull
struct communicator {
    uint64_t       magic;
    int            rank, ranks;
    CUdevice       device;
    CUcontext      context;         /* current when it was made */
    struct nccl_id id;
    struct board  *board;
    int            seats;           /* ranks that are real; the others are phantoms */
    int           *seated;          /* the rank on each seat, rising */
    int           *world;           /* each rank's number in the world, or NOT_TOLD; NULL: all ranks are real, and on one node */
    int            node, near;      /* ranks of the world on a node; ranks of this communicator on our node, ourselves included */
    uint64_t      *posts, *takes;   /* number of the next letter to and from each seat, as calls reserve them */
    _Atomic int    error;           /* sticky: everything fails with it */
    _Atomic bool   stopped;         /* being aborted or revoked: threads that wait inside leave */
    _Atomic bool   revoked;         /* no more collectives */
    _Atomic int    busy;            /* operations that run */
    _Atomic int    references;      /* operations, waiting or running, and one until it is closed */
    unsigned       children;        /* so far; names the next one */
    int            grown;           /* an id for ncclCommGrow was handed out and not used */

    int            most_ctas;       /* 0: no limit */
    bool           shares;          /* its buffers are its parent's */
    bool           suspended;
    bool           connected;       /* collectives have their buffers */
    bool           has_network;     /* sends to and receives from other nodes have theirs */
    bool          *met;             /* peers that sends and receives have buffers for */
    CUdeviceptr   *buffers;         /* modelled; all of them, `taken` */
    uint64_t      *buffer_bytes;
    int            taken;
    struct window *windows;
    struct scale   scales[SCALES_MAX];
    char           trouble[256];    /* of ncclGetLastError */
};

/* --- seats.c */
#define PHANTOM -1                  /* the seat of a rank that is not real */
#define NOT_TOLD -1                 /* the place of a rank in a communicator of which the program told no members */
#define RANKS_MAX (1 << 20)
int  seat_of(const struct communicator *c, int rank);
bool has_phantoms(const struct communicator *c);
bool is_near(const struct communicator *c, int rank);               /* on our node */
enum nccl_result seats_of_id(const struct nccl_id *id, int ranks, int rank, int **members);
bool seats_fill(struct communicator *c, int *members);
int *seats_of_child(const struct communicator *c, const int *parents, int ranks);
int *seats_take_split(const struct communicator *c, int *ranks);
void seats_note_unheard(const struct communicator *c, int rank);

/* --- communicator.c */
bool communicator_is_valid(const struct communicator *c);
enum nccl_result communicator_open(struct communicator **made, CUcontext context, int ranks, int rank, const struct nccl_id *id,
                                   const struct nccl_config *config, int *members);
void communicator_close(struct communicator *c);
void communicator_release(struct communicator *c);      /* one reference less */
enum nccl_result communicator_fail(struct communicator *c, enum nccl_result result, const char *why, ...)
    __attribute__((format(printf, 3, 4)));
enum nccl_result nccl_refuse(enum nccl_result result, const char *why, ...) __attribute__((format(printf, 2, 3)));  /* without one */
enum nccl_result config_check(const struct nccl_config *config);

/* --- operation.c */
enum operation_kind {
    ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, SEND, RECEIVE,
    TELL,           /* every rank learns a few bytes of every other; on no stream */
    MEET            /* waits until the ranks of `child` have come; on no stream */
};

struct operation {
    struct operation    *next;
    enum operation_kind  kind;
    struct communicator *communicator;  /* of MEET: NULL where there is none before */
    const char          *name;
    uint64_t  send, receive;            /* device addresses */
    size_t    count;                    /* of elements in one part; what one rank gets from another is one part */
    size_t    bytes;                    /* of one part */
    int       type, reduction, root;    /* root: of a send or receive, the peer */
    CUstream  stream;

    bool      moves;                    /* its contents go through the board */
    bool      paired;                   /* a send to itself that a receive has found */
    bool      lost;                 /* contents found no room */
    bool      done;
    char     *out, *in;                 /* on the host: what we send; one part from each seat */
    uint64_t *posts, *takes;            /* letter number for each seat, or NO_LETTER; written off when done */

    struct communicator  *child;
    struct communicator **made;         /* where `child` goes once all have come */
    enum nccl_result (*finish)(struct operation *operation);    /* of TELL; may turn it into MEET */
    int       wish[2];
    struct nccl_config config;
    struct nccl_id     id;
};

#define NO_LETTER UINT64_MAX

enum nccl_result operation_put(const struct operation *wanted);     /* run at once, or when the group ends */
bool operation_meets(const struct operation *o, int rank);          /* it sends to that rank, or receives from it */
enum nccl_result group_start(void);
enum nccl_result group_end(void);
void group_drop(void);                                              /* ends it, and forgets what is in it */
void group_forget(const struct communicator *c);                    /* what this thread has put there and was not run; NULL: all */

/* --- reduce.c */
#define SCALED_FIRST 5              /* operators from here on are a communicator's own */
size_t type_bytes(int type);        /* 0: no such type */
void   reduce_parts(void *result, const char *parts, int ranks, size_t count, int type, int reduction);
void   reduce_scale(void *data, size_t count, int type, const void *factor);

/* --- buffers.c */
#define BUFFERS_SHARED 1            /* beside one for each near peer and, in place of our own rank, one of collectives: the network's */
enum nccl_result buffers_connect(struct communicator *c, const struct operation *o);
void buffers_free(struct communicator *c);
void windows_free(struct communicator *c);

#endif
