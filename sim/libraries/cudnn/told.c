/*
 * told.c: sizes of scratch memory that this cuDNN has told in this process, so that a dry run knows which blocks may have another size on a card.
 *
 * Sizes are a model (workspace.c), and a card's differ. A program has few: a set without removal. Once it is full, later sizes are not noted.
 *
 * LOCKING: none; a place is taken once, by an atomic exchange.
 */
#include "sim/libraries/cudnn/told.h"

#include <stdatomic.h>

#define ROOM 4096 /* a power of two */

static _Atomic uint64_t sizes[ROOM]; /* 0: empty. Searched from the place of the hash on */

/* The place that has this size, or is empty; NULL: it is not there, and none is empty. */
static _Atomic uint64_t *place_of(uint64_t bytes)
{
    uint64_t first = bytes * 0x9e3779b97f4a7c15ull >> 32;
    for (uint64_t i = 0; i < ROOM; i++) {
        _Atomic uint64_t *place = &sizes[(first + i) % ROOM];
        uint64_t there = atomic_load(place);
        if (!there || there == bytes)
            return place;
    }
    return 0;
}

void told_note(uint64_t bytes)
{
    _Atomic uint64_t *place;
    uint64_t none;
    while (bytes && (place = place_of(bytes)) && atomic_load(place) != bytes) {
        none = 0;
        if (atomic_compare_exchange_strong(place, &none, bytes))
            return;
    }
}

bool cenote_sim_told(uint64_t bytes)
{
    _Atomic uint64_t *place = bytes ? place_of(bytes) : 0;
    return place && atomic_load(place) == bytes;
}
