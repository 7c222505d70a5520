/*
 * ranges.c: the free ranges of one heap, ordered by size and then by address: exact best fit.
 *
 * Ranges of about one size share a bin: below 32 KiB each multiple of 512 has its own, above that a doubling is cut into eight. A bin is
 * a treap ordered by (size, address), whose random priorities are a hash of the block's number, so that the nodes need no room for
 * them. Bins keep the trees shallow and the walk to the next size short; together they are one exact order, unlike lists of bins.
 *
 * Nothing here knows pages: whether a range is worth taking is asked by heap.c.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "pool/ranges.h"

#include <stdbool.h>

#include "base/check.h"

static uint32_t bin_of(uint64_t size)
{
    uint64_t units = size / BLOCK_BYTES;
    if (units < 64)
        return (uint32_t)units;
    uint32_t log = 63 - (uint32_t)__builtin_clzll(units);
    return 64 + (log - 6) * 8 + (uint32_t)(units >> (log - 3) & 7);
}

static uint32_t priority(uint32_t block)
{
    return (block * 2654435769u) ^ (block * 2654435769u >> 15);
}

static bool is_less(const struct block *a, const struct block *b)
{
    return a->size != b->size ? a->size < b->size : a->at < b->at;
}

/* Splits the tree at `root` into what is less than `key` and what is not, below the two links given. */
static void split(const struct ranges *r, uint32_t root, const struct block *key, uint32_t *less, uint32_t *more)
{
    while (root) {
        struct block *node = block_of(r->blocks, root);
        if (is_less(node, key)) {
            *less = root;
            less = &node->larger;
            root = node->larger;
        } else {
            *more = root;
            more = &node->smaller;
            root = node->smaller;
        }
    }
    *less = *more = 0;
}

void ranges_add(struct ranges *r, uint32_t block)
{
    struct block *key = block_of(r->blocks, block);
    uint32_t bin = bin_of(key->size), mine = priority(block);
    uint32_t *link = &r->bins[bin];
    while (*link && priority(*link) >= mine) {
        struct block *node = block_of(r->blocks, *link);
        link = is_less(node, key) ? &node->larger : &node->smaller;
    }
    split(r, *link, key, &key->smaller, &key->larger);
    *link = block;
    r->filled[bin / 64] |= 1ull << (bin % 64);
}

void ranges_remove(struct ranges *r, uint32_t block)
{
    struct block *key = block_of(r->blocks, block);
    uint32_t bin = bin_of(key->size);
    uint32_t *link = &r->bins[bin];
    while (*link != block) {
        CHECK(*link); /* invariant 10: every free range is in the tree of its bin */
        struct block *node = block_of(r->blocks, *link);
        link = is_less(node, key) ? &node->larger : &node->smaller;
    }
    uint32_t smaller = key->smaller, larger = key->larger;
    while (smaller && larger) { /* merge the children below the link */
        if (priority(smaller) >= priority(larger)) {
            *link = smaller;
            link = &block_of(r->blocks, smaller)->larger;
            smaller = *link;
        } else {
            *link = larger;
            link = &block_of(r->blocks, larger)->smaller;
            larger = *link;
        }
    }
    *link = smaller ? smaller : larger;
    if (!r->bins[bin])
        r->filled[bin / 64] &= ~(1ull << (bin % 64));
}

/* The first range of a tree that is not less than `key`; after `key` itself if `past`. */
static uint32_t first_from(const struct ranges *r, uint32_t root, const struct block *key, bool past)
{
    uint32_t found = 0;
    while (root) {
        struct block *node = block_of(r->blocks, root);
        if (is_less(node, key) || (past && node->at == key->at)) {
            root = node->larger;
        } else {
            found = root;
            root = node->smaller;
        }
    }
    return found;
}

/* The smallest range of the bins from `bin` on. */
static uint32_t first_of_bins(const struct ranges *r, uint32_t bin)
{
    for (uint32_t word = bin / 64; word < RANGE_BINS / 64; word++) {
        uint64_t filled = r->filled[word];
        if (word == bin / 64)
            filled &= ~0ull << (bin % 64);
        if (!filled)
            continue;
        uint32_t at = r->bins[word * 64 + (uint32_t)__builtin_ctzll(filled)];
        while (block_of(r->blocks, at)->smaller)
            at = block_of(r->blocks, at)->smaller;
        return at;
    }
    return 0;
}

static uint32_t from(const struct ranges *r, const struct block *key, bool past)
{
    uint32_t bin = bin_of(key->size);
    uint32_t found = first_from(r, r->bins[bin], key, past);
    return found || bin + 1 == RANGE_BINS ? found : first_of_bins(r, bin + 1);
}

uint32_t ranges_at_least(const struct ranges *r, uint64_t size)
{
    struct block key = {.size = size, .at = 0};
    return from(r, &key, false);
}

uint32_t ranges_next(const struct ranges *r, uint32_t block)
{
    return from(r, block_of(r->blocks, block), true);
}
