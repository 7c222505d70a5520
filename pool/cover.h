/*
 * cover.h: which streams a fence covers. See cover.c.
 *
 *     an arena: clean ---free---> dirty ---a fence has an event on its stream---> clean
 *                                   \---a fence could not have one---> held ---a later fence has, and is done---> clean
 *
 * OWNER: cover.c. LOCKING: the pool's lock; `marks` the turn.
 */
#ifndef CENOTE_POOL_COVER_H
#define CENOTE_POOL_COVER_H

#include "driver/device.h"
#include "pool/core/arena.h"

#define MARKS_MAX (TOUCH_STREAMS_MAX + 256)

/* A stream on which the fence that is being recorded wants an event. */
struct mark {
    CUstream stream;
    bool     recorded;
};

struct cover {
    uint32_t first_dirty;           /* arenas that freed something since the last fence */
    uint32_t first_held;
    uint32_t count;                 /* of the marks */
    struct mark marks[MARKS_MAX];
};

/* The arena frees something at this tick. LOCKING: the pool's lock. */
static inline void cover_note(struct cover *c, struct arena *a, tick freed)
{
    a->freed_last = freed;
    if (a->is_dirty)
        return;
    a->is_dirty = true;
    a->dirty_from = freed;
    a->next_dirty = c->first_dirty;
    c->first_dirty = a->number;
}

/* The arena is about to be forgotten: it holds no memory. LOCKING: the pool's lock. */
static inline void cover_forget(struct cover *c, const struct table *arenas, struct arena *a)
{
    uint32_t *link = &c->first_dirty;
    while (a->is_dirty && *link != a->number)
        link = &TABLE_AT(struct arena, arenas, *link)->next_dirty;
    if (a->is_dirty)
        *link = a->next_dirty;
    a->is_dirty = false;
}

#endif
