/*
 * exports.h: blocks of a pool that other processes may ask for. See export.c.
 *
 *     a block: exported ---> asked for by importers ---> freed: its export has ended
 *
 * OWNER: export.c; alloc.c ends the export of a block that is freed. LOCKING: the pool's lock.
 */
#ifndef CENOTE_SHARE_EXPORTS_H
#define CENOTE_SHARE_EXPORTS_H

#include "base/index.h"
#include "base/memory.h"

#define EXPORTS_MAX  (1u << 24)

/* A block that other processes may ask for. */
struct export {
    uint32_t unused;                /* the table chains exports given back through it */
    uint64_t generation;            /* of the process: memory that is exported anew has another */
};

struct exports {
    struct index   by_block;        /* block address -> export */
    struct table   table;
};

/* --- share/export.c, share/import.c */
void share_settle(void);
void share_end_imports(const cenote_pool *pool);    /* what was imported for it */
void share_sweep(void);

#endif
