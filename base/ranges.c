/*
 * ranges.c: the free ranges of one heap in order of size: exact best fit.
 *
 * Ranges of about one size share a bin. Below 32 KiB each multiple of 512 has its own, a list with the newest first: those are the many
 * splinters of a heap that has run for long, and which of two equal ones is taken makes no difference worth a tree. Above that a doubling
 * is cut into sixteen, and a bin is a treap ordered by (size, address), whose random priorities are a hash of the block's number, so that
 * the nodes need no room for them. Bins keep the trees shallow and the walk to the next size short.
 *
 * Nothing here knows pages: whether a range is worth taking is asked by heap.c.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "base/ranges.h"

#include <stdbool.h>

#include "base/check.h"

#define ADDRESS_BITS 57     /* of a device */
_Static_assert(RANGE_LISTS + (ADDRESS_BITS - 9 - 6) * 16 + 15 < RANGE_BINS && RANGE_BINS <= UINT16_MAX, "every size has a bin, and a bin 16 bits");

static uint32_t bin_of(uint64_t size)
{
    uint64_t units = size / BLOCK_BYTES;
    if (units < RANGE_LISTS)
        return (uint32_t)units;
    uint32_t log = 63 - (uint32_t)__builtin_clzll(units);
    return RANGE_LISTS + (log - 6) * 16 + (uint32_t)(units >> (log - 4)) - 16; /* the first five bits are 16 to 31; below RANGE_BINS - 1 */
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

static void add_to_list(struct ranges *r, uint32_t bin, uint32_t block)
{
    uint32_t next = r->bins[bin];
    block_of(r->blocks, block)->larger = next;
    block_of(r->blocks, next)->smaller = block;
    r->bins[bin] = block;
}

static void remove_from_list(struct ranges *r, uint32_t bin, uint32_t block)
{
    struct block *key = block_of(r->blocks, block);
    CHECK(key->smaller || r->bins[bin] == block); /* invariant 10: every free range is in its bin */
    *(key->smaller ? &block_of(r->blocks, key->smaller)->larger : &r->bins[bin]) = key->larger;
    if (key->larger)
        block_of(r->blocks, key->larger)->smaller = key->smaller;
}

static void add_to_tree(struct ranges *r, uint32_t bin, uint32_t block)
{
    struct block *key = block_of(r->blocks, block);
    uint32_t mine = priority(block);
    uint32_t *link = &r->bins[bin];
    while (*link && priority(*link) >= mine) {
        struct block *node = block_of(r->blocks, *link);
        link = is_less(node, key) ? &node->larger : &node->smaller;
    }
    split(r, *link, key, &key->smaller, &key->larger);
    *link = block;
}

static void remove_from_tree(struct ranges *r, uint32_t bin, uint32_t block)
{
    struct block *key = block_of(r->blocks, block);
    uint32_t *link = &r->bins[bin];
    while (*link != block) {
        CHECK(*link); /* invariant 10: every free range is in its bin */
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
}

static void fill_bin(struct ranges *r, uint32_t bin, uint32_t first)
{
    block_of(r->blocks, first)->bin = (uint16_t)bin;
    r->bins[bin] = first;
    r->filled[bin / 64] |= 1ull << (bin % 64);
}

static void empty_bin(struct ranges *r, uint32_t bin)
{
    r->bins[bin] = 0;
    r->filled[bin / 64] &= ~(1ull << (bin % 64));
}

void ranges_add(struct ranges *r, uint32_t block)
{
    struct block *b = block_of(r->blocks, block);
    uint32_t bin = bin_of(b->size);
    r->changes++;
    b->bin = (uint16_t)bin;
    b->smaller = b->larger = 0;
    if (!r->bins[bin])
        fill_bin(r, bin, block);
    else if (bin < RANGE_LISTS)
        add_to_list(r, bin, block);
    else
        add_to_tree(r, bin, block);
}

static bool is_alone(const struct ranges *r, const struct block *b, uint32_t block)
{
    return r->bins[b->bin] == block && !b->smaller && !b->larger;
}

void ranges_remove(struct ranges *r, uint32_t block)
{
    const struct block *b = block_of(r->blocks, block);
    r->changes++;
    if (is_alone(r, b, block))
        empty_bin(r, b->bin);
    else if (b->bin < RANGE_LISTS)
        remove_from_list(r, b->bin, block);
    else
        remove_from_tree(r, b->bin, block);
}

/* The range begins and ends elsewhere now. The one large free range of a warm pool, alone in its bin, goes to another without a search. */
void ranges_resize(struct ranges *r, uint32_t block, uint64_t at, uint64_t size)
{
    struct block *b = block_of(r->blocks, block);
    uint32_t bin = bin_of(size);
    bool goes_alone = is_alone(r, b, block) && (bin == b->bin || !r->bins[bin]);
    r->changes++;
    if (goes_alone)
        empty_bin(r, b->bin);
    else
        ranges_remove(r, block);
    b->at = at;
    b->size = size;
    if (goes_alone)
        fill_bin(r, bin, block);
    else
        ranges_add(r, block);
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
        uint32_t found = word * 64 + (uint32_t)__builtin_ctzll(filled), at = r->bins[found];
        while (found >= RANGE_LISTS && block_of(r->blocks, at)->smaller)
            at = block_of(r->blocks, at)->smaller;
        return at;
    }
    return 0;
}

uint32_t ranges_at_least(const struct ranges *r, uint64_t size)
{
    struct block key = {.size = size, .at = 0};
    uint32_t bin = bin_of(size);
    uint32_t found = bin < RANGE_LISTS ? r->bins[bin] : first_from(r, r->bins[bin], &key, false);
    return found ? found : first_of_bins(r, bin + 1);
}

uint32_t ranges_next(const struct ranges *r, uint32_t block)
{
    const struct block *key = block_of(r->blocks, block);
    uint32_t bin = key->bin;
    uint32_t found = bin < RANGE_LISTS ? key->larger : first_from(r, r->bins[bin], key, true);
    return found ? found : first_of_bins(r, bin + 1);
}
