/* model.h: a random program that remembers what it did; see model.c. */
#ifndef CENOTE_TESTS_STRESS_MODEL_H
#define CENOTE_TESTS_STRESS_MODEL_H

#include "tests/api/scene.h"

#define MODEL_BLOCKS 160
#define MODEL_STREAMS 4
#define MODEL_GRAPHS 3

/* Graphs have a group to themselves: a replay writes to what its capture freed, so no other block may lie there. */
enum model_group { GROUP_OPEN, GROUP_PRIVATE, GROUP_GRAPHS, MODEL_GROUPS };

struct model_block {
    char    *at;            /* NULL: none here */
    size_t   bytes;
    uint64_t pattern;
    int      stream;        /* index: handles change while blocks live */
    bool     pinned;
    bool     read;      /* another stream has read it */
    int      group;     /* enum model_group; MODEL_GROUPS: none */
    uint64_t word;      /* that it was asked for with */
};

/* Blocks that the next thread frees. Of shared streams alone: theirs are there as long as the shelf. */
struct model_shelf {
    char *_Atomic at[64];
};

struct model_pin {          /* outlives its block */
    char  *at;
    size_t bytes;
};

struct model {
    cenote_pool  *pool;
    uint64_t      random;
    bool          alone;    /* no other thread uses the pool: then everything it says is known beforehand */
    bool          moves;    /* vmm: groups on fixed memory, captures and pins make sense */
    bool          faults;   /* driver calls of the pool fail at random */
    bool          tells;    /* of each stream that ends: what the option announced:0 asks of a program */
    bool          capturing;
    bool          lost;     /* the context is about to be lost: fault orders are left as they are */
    size_t        capacity;
    CUstream      stream[MODEL_STREAMS];
    CUstream      stalled;  /* waits for the program, which must not wait for it; NULL: there is none */
    int           shared;   /* the first so many belong to other threads */
    struct model_shelf *shelf; /* NULL: every block is freed by the thread that took it */
    struct model_block block[MODEL_BLOCKS];
    struct model_pin   pin[4];
    cenote_group *group[MODEL_GROUPS];
    CUgraphExec   graph[MODEL_GRAPHS];
    uint64_t      requested;
    uint64_t      allocations, refused, extensions;

    int         failures;   /* of any kind; checks are for the main thread, models run in any */
    const char *what;       /* the first one */
    int         line;
    char        message[256];
};

void model_open(struct model *m, cenote_pool *pool, uint64_t seed);
void model_share_streams(struct model *m, const CUstream *streams, int count); /* before the first operation */
void model_use_source(struct model *m); /* the open group draws from functions of ours; before the first operation */
bool model_gives_up_a_block(struct model *m); /* for callbacks; false: it has none */
void model_run(struct model *m, int operations);
void model_let_go(struct model *m);  /* of a lost context: gives back what needs no driver */
void model_close(struct model *m);  /* gives everything back; the shelf is empty by then */
bool model_clear_shelf(struct model_shelf *shelf);

#endif
