/*
 * lent.h: which blocks and groups of a pool are named by loans. A name holds as long as what it named lives: the address of a block that was freed
 * may be another block's, and a group's handle another group's. See lend.c.
 *
 *     a block: lent ---> freed: no loan names it any more
 *
 * OWNER: lend.c; alloc.c ends what concerns a block that is freed. LOCKING: the pool's lock.
 */
#ifndef CENOTE_SHARE_LENT_H
#define CENOTE_SHARE_LENT_H

#include "base/index.h"

struct lent {
    struct index by_block;          /* block address -> number of the name, of live blocks that are or were lent */
    uint32_t     last;              /* number that was given */
};

#endif
