/*
 * copy.h: what lay on pages that sleep, in host memory; see copy.c.
 */
#ifndef CENOTE_POOL_SLEEP_COPY_H
#define CENOTE_POOL_SLEEP_COPY_H

#include "pool/sleep/sleep.h"

struct sleep_copy *copy_make(const struct sleepers *s, uint32_t page, struct slot_ref at);
bool     copy_is_whole(cenote_pool *pool, const struct sleep_copy *copy, struct slot_ref at);
CUresult copy_begin(cenote_pool *pool, const struct sleep_copy *copy, uint32_t stage);
void     copy_end(cenote_pool *pool, struct sleep_copy *copy, uint32_t stage);
CUresult copy_back(cenote_pool *pool, const struct sleep_copy *copy, uint32_t stage);
bool     copy_read(const struct sleep_copy *copy, uint64_t from, char *to, uint64_t bytes);
void     copy_drop(struct sleep_copy *copy);
void     copy_drop_all(cenote_pool *pool);

#endif
