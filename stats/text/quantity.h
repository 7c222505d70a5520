/* quantity.h: numbers as people write and read them. See quantity.c. */
#ifndef CENOTE_STATS_TEXT_QUANTITY_H
#define CENOTE_STATS_TEXT_QUANTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All of `text` is the quantity, spaces around it apart; false, and nothing set, if it is not, or if it does not fit. */
bool quantity_read_count(const char *text, uint64_t *count);  /* 12 */
bool quantity_read_bytes(const char *text, uint64_t *bytes);  /* 512, 20GiB, 1.5 TB; case does not matter */
bool quantity_read_share(const char *text, double *share);    /* 0.01, 1%, 1 %: never negative, never NaN */

#define QUANTITY_TEXT 24 /* room for what quantity_write_bytes writes */

/* "512 B", "1.50 GiB": four digits at most. Returns `text`. */
char *quantity_write_bytes(char text[QUANTITY_TEXT], uint64_t bytes);

#endif
