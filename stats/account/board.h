/*
 * board.h: what other processes see of a pool while it changes, and what they wish of it. See stats/report/board.c.
 *
 * The parts of a pool from here to its end lie on the board of the process (base/board.h): a reader sees each counter as it is. A number is never
 * half written, but two numbers may be a block apart.
 *
 *     a reader sets `wished` ---> the next call that allocates, or ends a step, takes it ---> `answers` rises by two
 *
 * LOCKING: the pool's lock for the peaks; what an answer says belongs to the thread that has `answering`; the rest is constant while the pool
 * is open. Other processes write `wished`, `path`, and the peaks: their user is this one's, and whatever they write does no more than that user may.
 */
#ifndef CENOTE_STATS_ACCOUNT_BOARD_H
#define CENOTE_STATS_ACCOUNT_BOARD_H

#include <cenote/report.h>

#include <stdatomic.h>

#define BOARD_ROWS 32u          /* of a division, the largest */

enum board_wish { BOARD_REFRESH = 1, BOARD_TRIM = 2, BOARD_SNAPSHOT = 4 };

struct board_row {
    char     name[96];
    uint64_t current, peak, reserved, blocks;
};

/* On a line of its own, as `wished` is read by each allocation. */
struct board {
    _Atomic(uint32_t) wished;   /* enum board_wish */
    _Atomic(uint32_t) answers;  /* odd: one is being written */
    atomic_flag answering;
    uint32_t    serial;         /* of the pool; 0: no pool is here */
    uint64_t    peak_allocated, peak_reserved;  /* since a reader set them to 0 */
    int32_t     device;         /* its ordinal in the process */
    int32_t     error;          /* of the last answer */
    uint64_t    opened;         /* seconds since 1970 */
    char        bus[16], card[64], provider[16], rank[16];
    char        user[32];       /* from here on: as of the last answer */
    char        said[512];
    char        path[512];      /* of the snapshot that a reader wishes */
    cenote_stats figures;
    uint32_t    tags, groups;   /* how many rows there are, also beyond BOARD_ROWS */
    struct board_row by_tag[BOARD_ROWS], by_group[BOARD_ROWS];
} __attribute__((aligned(64)));

#endif
