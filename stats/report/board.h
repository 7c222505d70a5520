/* board.h: a pool on the board of the process; see board.c. */
#ifndef CENOTE_STATS_REPORT_BOARD_H
#define CENOTE_STATS_REPORT_BOARD_H

#include "pool/pool.h"

const char *board_head(void);           /* LOCKING: the lock of the pools, as the next */
void board_open(cenote_pool *pool);
void board_close(cenote_pool *pool);
void board_answer(cenote_pool *pool);   /* LOCKING: none */

#endif
