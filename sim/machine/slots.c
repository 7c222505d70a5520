/*
 * slots.c: numbered items that never move, and unreadable addresses as their names.
 *
 * A handle is checked, never followed: the addresses that serve as CUstream, CUevent and so on are reserved and PROT_NONE, so that a
 * program which looks inside one faults, and a wild handle is an error code. The system commits the arrays as they are used.
 */
#include "sim/machine/slots.h"

#include <string.h>
#include <sys/mman.h>

#define REST_LEAST 256      /* numbers that rest before the oldest is taken again */

static void *reserve(size_t bytes, int protection)
{
    void *memory = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

bool slots_open(struct slots *s, size_t item_size, uint32_t most, enum slots_order order)
{
    *s = (struct slots){.item_size = item_size, .most = most, .used = 1, .order = order};
    s->items = reserve(item_size * most, PROT_READ | PROT_WRITE);
    s->live = reserve(most, PROT_READ | PROT_WRITE);
    s->resting = reserve(sizeof *s->resting * most, PROT_READ | PROT_WRITE);
    s->handles = reserve((size_t)SLOTS_HANDLE_STEP * most, PROT_NONE);
    return s->items && s->live && s->resting && s->handles;
}

void slots_clear(struct slots *s)
{
    memset(s->items, 0, s->item_size * s->used);
    memset(s->live, 0, s->used);
    s->used = 1;
    s->first = s->rest_count = s->live_count = 0;
}

static uint32_t next_number(struct slots *s)
{
    bool fresh_left = s->used < s->most;
    uint32_t least = s->order == SLOTS_OLDEST_FIRST && fresh_left ? REST_LEAST : 0;
    if (s->rest_count <= least)
        return fresh_left ? s->used++ : 0;
    s->rest_count--;
    if (s->order == SLOTS_NEWEST_FIRST)
        return s->resting[(s->first + s->rest_count) % s->most];
    uint32_t number = s->resting[s->first];
    s->first = (s->first + 1) % s->most;
    return number;
}

uint32_t slots_take(struct slots *s)
{
    uint32_t number = next_number(s);
    if (!number)
        return 0;
    memset(slots_at(s, number), 0, s->item_size);
    s->live[number] = 1;
    s->live_count++;
    return number;
}

void slots_give(struct slots *s, uint32_t number)
{
    s->live[number] = 0;
    s->live_count--;
    s->resting[(s->first + s->rest_count++) % s->most] = number;
}

void *slots_handle(const struct slots *s, uint32_t number)
{
    return s->handles + (size_t)number * SLOTS_HANDLE_STEP;
}

uint32_t slots_number(const struct slots *s, const void *handle)
{
    uintptr_t distance = (uintptr_t)handle - (uintptr_t)s->handles;
    if (distance % SLOTS_HANDLE_STEP || distance / SLOTS_HANDLE_STEP >= s->used)
        return 0;
    uint32_t number = (uint32_t)(distance / SLOTS_HANDLE_STEP);
    return s->live[number] ? number : 0;
}
