/*
 * index.c: the half of the index that changes it; finding is in index.h, because every free does it. An index grows and never shrinks.
 *
 * Linear probing: an entry lies between its home and the next empty slot. Removing shifts later entries of the run back instead of
 * leaving a marker, so that a search never walks over what is gone and the index never has to be cleaned.
 *
 *     `now` is full ---> `now` has twice as many slots, and `before` those of before ---each index_add moves a few---> `before` is empty: gone
 *
 * It is gone long before `now` is full again.
 */
#include "base/index.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/memory.h"

#define LEAST_SLOTS 1024    /* chosen: 12 KiB, three pages of the system */
#define MOST_SLOTS  (1u << 31)
#define MOVED_AT_ONCE 8u    /* slots, with each entry that is added: at least two have to be, as 0.6 of them are added until the next growth */

/* How many entries that many slots take: runs stay short up to a load of 0.6. */
static uint64_t room_in(uint64_t slots)
{
    return slots * 3 / 5;
}

/* Keys and values share one mapping, keys first. */
static size_t mapped_bytes(uint32_t slots)
{
    return slots * (sizeof(uint64_t) + sizeof(uint32_t));
}

size_t index_bytes(const struct index *x)
{
    return mapped_bytes(x->now.count) + mapped_bytes(x->before.count);
}

static void unmap(struct index_slots *s)
{
    memory_unmap(s->keys, mapped_bytes(s->count));
    *s = (struct index_slots){0};
}

static uint32_t next(const struct index_slots *s, uint32_t at)
{
    return (at + 1) & (s->count - 1);
}

static void put(struct index_slots *s, uint64_t address, uint32_t value)
{
    uint32_t at = index_home(s, address);
    while (s->keys[at])
        at = next(s, at);
    s->keys[at] = address;
    s->values[at] = value;
}

/* Fills the gap at `gap` with the first later entry of the run that may lie there, and so on with the gap that one leaves. */
static void close_gap(struct index_slots *s, uint32_t gap)
{
    uint32_t mask = s->count - 1;
    for (uint32_t at = next(s, gap); s->keys[at]; at = next(s, at)) {
        uint32_t from_home = (at - index_home(s, s->keys[at])) & mask;
        uint32_t from_gap = (at - gap) & mask;
        if (from_home < from_gap)
            continue; /* its home lies behind the gap: a search would not see it there */
        s->keys[gap] = s->keys[at];
        s->values[gap] = s->values[at];
        gap = at;
    }
    s->keys[gap] = 0;
    s->values[gap] = 0; /* so that even a search for address 0 finds nothing */
}

__attribute__((cold, noinline)) uint32_t index_find_before(const struct index *x, uint64_t address)
{
    return index_find_in(&x->before, address);
}

/* Empties the next `most` slots of before. */
static void move_some(struct index *x, uint32_t most)
{
    struct index_slots *s = &x->before;
    for (; x->moved < s->count && most; x->moved++, most--)
        while (s->keys[x->moved]) { /* a later entry may come to lie there */
            put(&x->now, s->keys[x->moved], s->values[x->moved]);
            close_gap(s, x->moved);
        }
    if (x->moved == s->count)
        unmap(s);
}

bool index_grow(struct index *x, uint64_t entries)
{
    uint64_t slots = x->now.count ? x->now.count : lock_portion(LEAST_SLOTS);
    while (room_in(slots) < entries)
        slots *= 2;
    uint64_t *memory = slots <= MOST_SLOTS ? memory_map(mapped_bytes((uint32_t)slots)) : NULL;
    if (!memory)
        return false;
    move_some(x, UINT32_MAX); /* there are some only if much more is reserved than one by one */
    x->before = x->now;
    x->moved = 0;
    x->now = (struct index_slots){memory, (uint32_t *)(memory + slots), 64 - (uint32_t)__builtin_ctz((uint32_t)slots), (uint32_t)slots};
    x->room = (uint32_t)room_in(slots);
    CHECK_SLOW(index_is_valid(x));
    return true;
}

void index_add(struct index *x, uint64_t address, uint32_t value)
{
    CHECK(address && address % 512 == 0 && value);
    CHECK(x->count < x->room); /* room was reserved */
    CHECK(!index_find(x, address));
    put(&x->now, address, value);
    x->count++;
    if (x->before.count)
        move_some(x, lock_portion(MOVED_AT_ONCE));
}

static uint32_t remove_from(struct index_slots *s, uint64_t address)
{
    if (!s->count || !address)
        return 0;
    uint32_t at = index_home(s, address);
    while (s->keys[at] != address) {
        if (!s->keys[at])
            return 0;
        at = next(s, at);
    }
    uint32_t value = s->values[at];
    close_gap(s, at);
    return value;
}

uint32_t index_remove(struct index *x, uint64_t address)
{
    uint32_t value = remove_from(&x->now, address);
    if (!value && x->before.count)
        value = remove_from(&x->before, address);
    x->count -= value != 0;
    return value;
}

void index_close(struct index *x)
{
    unmap(&x->now);
    unmap(&x->before);
    *x = (struct index){0};
}

/* Each is found from its home, and there alone. */
static bool are_found(const struct index *x, const struct index_slots *s, const struct index_slots *other, uint32_t *count)
{
    for (uint32_t i = 0; i < s->count; i++) {
        if (!s->keys[i])
            continue;
        ++*count;
        if (!s->values[i] || index_find_in(s, s->keys[i]) != s->values[i] || index_find_in(other, s->keys[i]) ||
            (s == &x->before && i < x->moved))
            return false;
    }
    return true;
}

/* Every entry is found from its home, and `count` counts them. */
bool index_is_valid(const struct index *x)
{
    uint32_t count = 0;
    return are_found(x, &x->now, &x->before, &count) && are_found(x, &x->before, &x->now, &count) && count == x->count && count <= x->room &&
           x->room == room_in(x->now.count);
}
