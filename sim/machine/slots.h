/*
 * slots.h: numbered items behind the handles that the simulated driver hands out; see slots.c.
 * LOCKING: the model's lock, but slots_number and slots_at of a live item need none: items never move.
 */
#ifndef CENOTE_SIM_SLOTS_H
#define CENOTE_SIM_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SLOTS_HANDLE_STEP 64    /* bytes between two handles: they look like pointers to structures */

enum slots_order {
    SLOTS_NEWEST_FIRST,     /* the number given back last is taken first: stale handles soon name something else */
    SLOTS_OLDEST_FIRST      /* numbers rest before they are taken again: stale handles are found out */
};

struct slots {
    char       *items;      /* item 0 is never handed out */
    uint8_t    *live;
    uint32_t   *resting;    /* ring of numbers given back */
    char       *handles;    /* addresses that cannot be read: slot n is named by handles + 64 n */
    size_t      item_size;
    uint32_t    most;
    uint32_t    used;       /* numbers ever handed out, with 0 */
    uint32_t    first;      /* oldest in the ring */
    uint32_t    rest_count;
    uint32_t    live_count;
    enum slots_order order;
};

bool     slots_open(struct slots *s, size_t item_size, uint32_t most, enum slots_order order);
void     slots_clear(struct slots *s);                    /* as after slots_open */
uint32_t slots_take(struct slots *s);                     /* a zeroed item; 0: no more */
void     slots_give(struct slots *s, uint32_t number);
void    *slots_handle(const struct slots *s, uint32_t number);
uint32_t slots_number(const struct slots *s, const void *handle);   /* 0: names nothing that lives */

static inline void *slots_at(const struct slots *s, uint32_t number)
{
    return s->items + (size_t)number * s->item_size;
}

static inline bool slots_is_live(const struct slots *s, uint32_t number)
{
    return number && number < s->used && s->live[number];
}

#endif
