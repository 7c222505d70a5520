/*
 * index.c: the half of the index that changes it; finding is in index.h, because every free does it. An index grows and never shrinks.
 *
 * Linear probing: an entry lies between its home and the next empty slot. Removing shifts later entries of the run back instead of
 * leaving a marker, so that a search never walks over what is gone and the index never has to be cleaned.
 */
#include "base/index.h"

#include "base/check.h"
#include "base/memory.h"

#define LEAST_SLOTS 1024    /* chosen: 12 KiB, three pages of the system */
#define MOST_SLOTS  (1u << 31)

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
    return mapped_bytes(x->slots);
}

static uint32_t next(const struct index *x, uint32_t at)
{
    return (at + 1) & (x->slots - 1);
}

static void put(struct index *x, uint64_t address, uint32_t value)
{
    uint32_t at = index_home(x, address);
    while (x->keys[at])
        at = next(x, at);
    x->keys[at] = address;
    x->values[at] = value;
}

static bool move_to(struct index *x, uint32_t slots)
{
    uint64_t *memory = memory_map(mapped_bytes(slots));
    if (!memory)
        return false;

    struct index larger = {.keys = memory, .values = (uint32_t *)(memory + slots), .slots = slots, .count = x->count};
    larger.shift = 64 - (uint32_t)__builtin_ctz(slots);
    larger.room = (uint32_t)room_in(slots);
    for (uint32_t i = 0; i < x->slots; i++)
        if (x->keys[i])
            put(&larger, x->keys[i], x->values[i]);

    index_close(x);
    *x = larger;
    CHECK_SLOW(index_is_valid(x));
    return true;
}

bool index_grow(struct index *x, uint64_t entries)
{
    uint64_t slots = x->slots ? x->slots : LEAST_SLOTS;
    while (room_in(slots) < entries)
        slots *= 2;
    return slots <= MOST_SLOTS && move_to(x, (uint32_t)slots);
}

void index_add(struct index *x, uint64_t address, uint32_t value)
{
    CHECK(address && address % 512 == 0 && value);
    CHECK(x->count < x->room); /* room was reserved */
    CHECK(!index_find(x, address));
    put(x, address, value);
    x->count++;
}

/* Fills the gap at `gap` with the first later entry of the run that may lie there, and so on with the gap that one leaves. */
static void close_gap(struct index *x, uint32_t gap)
{
    uint32_t mask = x->slots - 1;
    for (uint32_t at = next(x, gap); x->keys[at]; at = next(x, at)) {
        uint32_t from_home = (at - index_home(x, x->keys[at])) & mask;
        uint32_t from_gap = (at - gap) & mask;
        if (from_home < from_gap)
            continue; /* its home lies behind the gap: a search would not see it there */
        x->keys[gap] = x->keys[at];
        x->values[gap] = x->values[at];
        gap = at;
    }
    x->keys[gap] = 0;
    x->values[gap] = 0; /* so that even a search for address 0 finds nothing */
}

uint32_t index_remove(struct index *x, uint64_t address)
{
    if (!x->slots || !address)
        return 0;
    uint32_t at = index_home(x, address);
    while (x->keys[at] != address) {
        if (!x->keys[at])
            return 0;
        at = next(x, at);
    }
    uint32_t value = x->values[at];
    close_gap(x, at);
    x->count--;
    return value;
}

void index_close(struct index *x)
{
    memory_unmap(x->keys, index_bytes(x));
    *x = (struct index){0};
}

/* Every entry is found from its home, and `count` counts them. */
bool index_is_valid(const struct index *x)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < x->slots; i++) {
        if (!x->keys[i])
            continue;
        count++;
        if (!x->values[i] || index_find(x, x->keys[i]) != x->values[i])
            return false;
    }
    return count == x->count && count <= x->room && x->room == room_in(x->slots);
}
