/*
 * act.h: a scenario of the fault sweep as it runs: cards, pools, blocks and whatever else was taken, and calls that may be refused.
 *
 * A scenario prepares its ground, says act_armed(), and does what it is about; whatever a call answers, it goes on with what it has. It
 * runs twice: with the failure, and, after the judge (judge.c) has looked, without. The calls here keep books of their own of all that
 * the library handed out, so that the judge can compare, and give it back whatever became of the scenario.
 *
 * LOCKING: none. A second thread (other.c) shares only the library with the scenario's.
 */
#ifndef CENOTE_TESTS_FAULTS_ACT_H
#define CENOTE_TESTS_FAULTS_ACT_H

#include <cenote/share.h>

#include "driver/driver.h"
#include "tests/api/scene.h"

#define CARD (64 * MIB)
#define ACT_BLOCKS 256
#define ACT_THINGS 4    /* pools, groups, captures */

/* What stands before a scenario begins. Zero: the usual card of 64 MiB and a pool of pages of 2 MiB on it. */
struct ground {
    bool         no_pool;           /* the scenario makes its own */
    bool         no_vmm, no_pools;  /* the card's abilities */
    bool         no_promise;        /* captures are not announced, and streams are immortal */
    bool         captures_a;        /* the scenario captures stream A */
    int          devices;           /* 0: one */
    int          driver_version;    /* 0: the newest */
    unsigned     provider;
    uint32_t     trim_every, decay_ms, background;
    uint64_t     address_space;
    double       harvest_budget;
    double       trim_above;
    uint32_t     page_mib;          /* 0: 2 */
    uint32_t     aliases, order, mappings; /* 0: as they are by default */
};

enum fault_kind { FAULT_NONE, FAULT_DRIVER, FAULT_MEMORY };

/* What a second thread does while the n-th call is in the driver: other.c. */
enum other { OTHER_NONE, OTHER_IN_POOL, OTHER_IN_OWN };

struct injection {
    enum fault_kind kind;
    CUresult        error;
    bool            persistent;
    uint64_t        nth;
    enum other      other;
};

struct act_block {          /* `at` is NULL once it is given back */
    char        *at;
    size_t       bytes;
    uint64_t     pattern;
    CUstream     stream;
};

struct act_capture {
    cenote_group *group;
    CUstream      stream;
    bool          open;
};

struct act {
    struct scene        scene;      /* its pool is pools[0] where the ground has one */
    struct ground       ground;
    struct injection    injection;
    bool                armed;      /* the failure may come */
    bool                retry;      /* the second time: no failure is allowed */
    bool                lost;       /* a call said CENOTE_DEVICE_LOST */
    bool                destroyed_while_armed;
    bool                keeps_pool; /* the default pool: it stays */
    unsigned            refused;    /* calls that answered an error */
    struct act_block    blocks[ACT_BLOCKS];
    cenote_pool        *pools[ACT_THINGS];
    cenote_group       *groups[ACT_THINGS];
    struct act_capture  captures[ACT_THINGS];
    void               *imports[ACT_THINGS];
    CUcontext           other_context;   /* of the second device, and a stream there */
    CUstream            other_stream;
};

/* --- act.c: the ground, and blocks */

void act_begin(struct act *act, const struct ground *ground, const struct injection *injection);
void act_armed(struct act *act);    /* from here on calls may fail, the first time the scenario runs */
bool act_disarm(struct act *act);   /* true: something failed on order */
bool act_done(struct act *act, int error);   /* success; a refusal is noted, and must be a clear one */
bool act_is_sticky(const struct act *act);

cenote_options act_options(const struct act *act);

/* NULL where it was refused; everything below takes NULL and does nothing. */
struct act_block *act_take(struct act *act, cenote_pool *pool, size_t bytes, CUstream stream);
struct act_block *act_take_aligned(struct act *act, cenote_pool *pool, size_t bytes, size_t alignment, CUstream stream);
struct act_block *act_take_from(struct act *act, cenote_group *group, size_t bytes, CUstream stream);
struct act_block *act_take_at(struct act *act, cenote_pool *pool, cenote_group *group, void *at, size_t bytes, CUstream stream);
void act_hoard(struct act *act, cenote_pool *pool, size_t each, CUstream stream);   /* all there is: the last refusal is expected */
void act_fill(const struct act_block *block);
void act_give(struct act_block *block);
void act_give_all(struct act *act);
void act_use(struct act *act, struct act_block *block, CUstream stream);   /* and the stream is busy with it for a while */

/* --- things.c: pools, groups, captures */

cenote_pool *act_pool(struct act *act, int device, const cenote_options *options);
void act_drop_pool(struct act *act, cenote_pool *pool);
cenote_group *act_group(struct act *act, cenote_pool *pool, unsigned flags, const cenote_source *source);
void act_drop_group(struct act *act, cenote_group *group);
bool act_capture(struct act *act, cenote_group *group, CUstream stream);   /* false: no capture is open */
CUgraphExec act_end_capture(struct act *act, CUstream stream);
void *act_import(struct act *act, const cenote_share *share);   /* NULL: it was refused */
void act_close_import(struct act *act, void *at);
void act_clear(struct act *act);    /* captures, imports, blocks and groups, in this order; not the pools */

/* --- other.c */

void other_begin(struct act *act);  /* a second thread works once the n-th call comes */
void other_end(void);               /* it is done, if it began */
void other_leaves(const struct act *act, const cenote_pool *pool);  /* before that ends: it is not in there, nor will be */

/* --- judge.c */

void judge_context(const struct act *act);
bool judge(struct act *act, void (*scenario)(struct act *));   /* true: the failure came */

#endif
