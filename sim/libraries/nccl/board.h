/* board.h: where the ranks of a communicator meet and leave each other letters; see board.c. */
#ifndef CENOTE_SIM_NCCL_BOARD_H
#define CENOTE_SIM_NCCL_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOARD_NAME_BYTES 128        /* of a unique id, which names the board */
#define BOARD_LETTER_MAX (1u << 20)
#define BOARD_RANKS_MAX 1024

struct letter {
    uint32_t kind;          /* what the sender is doing: the reader compares */
    uint32_t lost;          /* there was no room for the contents */
    uint64_t bytes;
};

struct board;

enum board_trouble { BOARD_FINE, BOARD_NO_ROOM, BOARD_OTHER_SIZE, BOARD_RANK_TAKEN };

/* Arrives. The others need not be there yet: board_is_complete says when they are. */
enum board_trouble board_open(struct board **board, const char name[BOARD_NAME_BYTES], int ranks, int rank);
void board_leave(struct board *board);      /* others that still wait for a letter of ours learn that none comes */
void board_close(struct board *board);
bool board_is_complete(struct board *board);
bool board_has_lost(const struct board *board, int rank);   /* it came, and has left or died */

/* Letters from one rank to another are numbered from 0 and keep their order. False: not yet possible. */
bool board_post(struct board *board, int to, uint64_t number, struct letter letter, const void *data);
bool board_take(struct board *board, int from, uint64_t number, struct letter *letter, void *data, size_t room);

#endif
