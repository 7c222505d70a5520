/*
 * groups.h: arena families of their own, captures that go to them, and pins. See capture.c.
 *
 *     a group: in use ---> destroyed (its arenas go on until they are empty) ---> kept, so that who names it finds it
 *              ended ---> forgotten, once GROUPS_KEPT more have ended
 *
 * OWNER: capture.c; pins end in end_blocks.c, too. LOCKING: the pool's lock. Of
 * a group its pool, source and name are constant, and whether it is private.
 */
#ifndef CENOTE_POOL_ARENAS_GROUPS_H
#define CENOTE_POOL_ARENAS_GROUPS_H

#include <cenote/cenote.h>

#include "base/memory.h"
#include "pool/core/arena.h"

#define CAPTURES_MAX 64
#define GROUPS_MAX   (1u << 15)
#define GROUPS_KEPT  256            /* chosen: so many more groups of a pool end before this is another group */

struct cenote_group {
    uint32_t      next_ended;       /* while it is kept; later the table chains it through here */
    uint32_t      number;           /* in the pool's table, 0: not in use */
    cenote_pool  *pool;
    _Atomic(unsigned) flags;
    bool          has_source;
    bool          is_plain;         /* its arenas are: for good from the first of them on */
    atomic_bool   destroyed;        /* its arenas go on until they are empty */
    uint32_t      captures;         /* open ones that go to it */
    uint32_t      arenas;           /* of this group */
    uint32_t      lent;             /* number of its name in loans, 0: none; see share/lent.h */
    uint32_t      first_arena;      /* of these, through next_of_group */
    struct idle_queue idle;         /* those without a block, see idle.c */
    struct row    row;              /* its part of the allocated bytes */
    cenote_source source;
    char          name[32];
};

struct capture {
    uint32_t group;
    uint64_t stream;                /* its key */
    CUstream handle;
};

struct groups {
    struct table   table;           /* first: it outlives the pool, so that a thread with a
                                       group's handle finds out that the group is gone. So do the next three */
    uint32_t       ended_first, ended_last, ended; /* groups that are kept, the first to be forgotten */
    bool           has_sources;     /* a group has, or had, a source of the program's: not
                                       all that is reserved is the device's memory */
    bool           has_plain;       /* a group is plain, or was: not all memory of a pool of pages can move */
    uint32_t       capture_count;
    uint64_t       pins;            /* slots pinned, with repetition */
    struct capture captures[CAPTURES_MAX];
};

#endif
