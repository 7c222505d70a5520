/* world.h: cards, pools, streams and blocks that an operation stream plays with, and what is known of them; see world.c. */
#ifndef CENOTE_FUZZ_WORLD_H
#define CENOTE_FUZZ_WORLD_H

#include "fuzz/input.h"
#include "fuzz/judge.h"
#include "sim/sim.h"

#include <cenote/cenote.h>
#include <cenote/share.h>
#include <stdbool.h>

#define KIB ((size_t)1024)
#define MIB (1024 * KIB)
#define MSEC ((uint64_t)1000000) /* in the ns of the simulated clock */

#define DEVICES 2
#define POOLS   3
#define BLOCKS  48
#define GRAPHS  3
#define PINS    3
#define SHARES  3
#define CAPTURE_STREAM 0    /* graphs are captured and replayed there, in order, as graphs that share memory must be */
#define CREATED 4           /* streams of a device, beside its two default ones */
#define STREAMS (CREATED + 2)

/* Graphs have a group to themselves: a replay writes to what its capture freed, so no other block may lie there. */
enum group { GROUP_OPEN, GROUP_PRIVATE, GROUP_SOURCE, GROUP_GRAPHS, GROUP_WHOLE, GROUPS };

struct device {
    CUcontext context;
    CUstream  stream[STREAMS];
    bool      immortal[STREAMS];
};

struct pool {
    cenote_pool *pool;          /* NULL: not there */
    int          device;
    size_t       page_bytes;
    uint64_t     requested;     /* by blocks that are live */
    cenote_group *group[GROUPS];
    unsigned     flags[GROUPS]; /* of the groups, as they are now */
    CUgraphExec  graph[GRAPHS];
    bool         gives;         /* the shortage callback is in place */
    bool         plain_graphs;  /* private groups have segments of cuMemAlloc */
};

struct block {
    char    *at;                /* NULL: none here */
    size_t   bytes;
    uint64_t pattern;
    int      pool;
    int      stream;            /* index on its device: handles change while blocks live */
    bool     readable;          /* its stream still is the one it was taken on, and may be given work that reads it */
    int      group;             /* enum group, GROUPS: none */
    bool     whole;             /* it has its pages to itself */
    cenote_group *of;           /* that group as it was then: there may be another by now */
    uint64_t word;              /* that it was asked for with, 0: none */
    bool     shown;             /* another stream has been given work that reads it */
    char    *was;               /* where the last block of this place lay; the rest but contents is as it was then */
    int      graph;             /* contents appear when this graph is replayed; -1: of no graph */
};

struct pin {                    /* outlives its block */
    char  *at;
    size_t bytes;
    int    pool;
};

struct share {                  /* outlives its block, too */
    cenote_share share;
    uint64_t pattern;           /* of the block that it names; 0: none */
    int      block;
    size_t   inside;            /* how far inside the block it points */
    void    *here;              /* imported, NULL: not */
    int      device;            /* for whose kernels */
};

struct world {
    struct input *in;
    struct sim_shape shape;
    struct device device[DEVICES];
    struct pool   pool[POOLS];
    struct block  block[BLOCKS];
    struct pin    pin[PINS];
    struct share  share[SHARES];
    uint64_t      serial;       /* of patterns: no two blocks have the same */
    uint64_t      fired;        /* faults, when the operation under way began */
    bool          has_failed;   /* some fault has fired */
    bool          lends_source; /* blocks outside all groups may lie in memory of the program's own */
    int           capturing;    /* pool of the one open capture, -1: none */
    int           graph;        /* being captured */
    int           tags;         /* pushed */
    bool          verbose;
};

/* --- world.c */

void world_open(struct world *w, struct input *in);
void world_close(struct world *w);          /* everything given back and judged */
__attribute__((format(printf, 2, 3))) void world_say(const struct world *w, const char *format, ...); /* with CENOTE_FUZZ_VERBOSE */
void world_judge(struct world *w);          /* nothing seen so far is wrong */
void world_judge_deeply(struct world *w);   /* all work is done, and every structure walked; not during a capture */

bool world_excuses(const struct world *w, int error);   /* success, or a fault fired in this operation */
bool world_is_capturing(const struct world *w, int pool, int stream);
void world_enter(const struct world *w, int device);
CUstream world_stream(const struct world *w, int pool, int stream);
void world_order(CUstream before, CUstream after);

void pool_open(struct world *w, int pool);
bool pool_close(struct world *w, int pool); /* false: blocks, pins or a capture keep it open */
void group_open(struct world *w, int pool, enum group group);

/* --- blocks.c: what each block holds */

void block_taken(struct world *w, struct block *b, struct block taken);
void block_give(struct world *w, struct block *b);
void block_read(struct world *w, const struct block *b, int stream);
void block_last_look(struct world *w, struct block *b); /* no work that reads it can be put on its stream from now on */
bool block_has_its_pages(const struct world *w, const struct block *b); /* no byte of another block lies on a page of it */
struct block *block_any(struct world *w, bool live);    /* the input's choice; NULL: the chosen one is not live (or is) */
struct block *block_to_read(struct world *w, int *reader);
void block_read_late(struct world *w, struct block *b, int reader, uint64_t late); /* behind what its own stream has to do */
void block_gone(struct world *w, struct block *b); /* it was freed */

void world_arm(struct world *w);            /* faults.c: a driver call is going to fail */

/* --- runtime.c */

void runtime_extend(struct world *w, struct block *b, size_t more);
void runtime_reset_group(struct world *w, int pool, enum group group);
void runtime_pin(struct world *w, struct pin *pin, const struct block *b, bool touch); /* or unpins it */
void runtime_reserve(struct world *w, int pool, int stream, uint64_t bytes);

/* --- shares.c */

void share_export(struct world *w, struct share *s, struct block *b);
void share_import(struct world *w, struct share *s);    /* or closes what was imported */
void shares_close(struct world *w);                     /* all of them, when their blocks are gone */

#endif
