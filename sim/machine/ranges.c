/*
 * ranges.c: a treap: a search tree by `start` whose weights are random, so that it stays flat whatever the order of calls.
 *
 * Each node knows the largest size below it, which makes "the lowest range that fits" a walk down the tree. One structure serves free
 * address space, free physical memory, free space inside allocations, and the sets of live reservations and allocations.
 */
#include "sim/machine/ranges.h"

#include <stdlib.h>

void ranges_clear(struct ranges *r)
{
    free(r->nodes);
    *r = (struct ranges){.random = 1};
}

static void update(struct ranges *r, uint32_t n)
{
    struct range *node = &r->nodes[n];
    uint64_t largest = node->size;
    if (r->nodes[node->left].largest > largest)
        largest = r->nodes[node->left].largest;
    if (r->nodes[node->right].largest > largest)
        largest = r->nodes[node->right].largest;
    node->largest = largest;
}

/* Parts tree `n` in what starts before `start` and the rest. */
static void split(struct ranges *r, uint32_t n, uint64_t start, uint32_t *before, uint32_t *after)
{
    if (!n) {
        *before = *after = 0;
        return;
    }
    if (r->nodes[n].start < start) {
        split(r, r->nodes[n].right, start, &r->nodes[n].right, after);
        *before = n;
    } else {
        split(r, r->nodes[n].left, start, before, &r->nodes[n].left);
        *after = n;
    }
    update(r, n);
}

static uint32_t join(struct ranges *r, uint32_t a, uint32_t b)
{
    if (!a || !b)
        return a ? a : b;
    uint32_t top = r->nodes[a].weight > r->nodes[b].weight ? a : b;
    if (top == a)
        r->nodes[a].right = join(r, r->nodes[a].right, b);
    else
        r->nodes[b].left = join(r, a, r->nodes[b].left);
    update(r, top);
    return top;
}

static uint32_t node_take(struct ranges *r)
{
    if (r->free) {
        uint32_t n = r->free;
        r->free = r->nodes[n].left;
        return n;
    }
    if (r->used == r->room) {
        uint32_t room = r->room ? 2 * r->room : 64;
        struct range *nodes = realloc(r->nodes, room * sizeof *nodes);
        if (!nodes)
            return 0;
        r->nodes = nodes;
        r->room = room;
        if (!r->used)
            nodes[r->used++] = (struct range){0};
    }
    return r->used++;
}

static uint32_t next_weight(struct ranges *r)
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->random >> 32);
}

bool ranges_add(struct ranges *r, uint64_t start, uint64_t size, uint32_t value)
{
    uint32_t n = node_take(r);
    if (!n)
        return false;
    r->nodes[n] = (struct range){.start = start, .size = size, .largest = size, .value = value, .weight = next_weight(r)};
    uint32_t before, after;
    split(r, r->root, start, &before, &after);
    r->root = join(r, join(r, before, n), after);
    r->count++;
    return true;
}

void ranges_remove(struct ranges *r, uint64_t start)
{
    uint32_t before, from, node, after;
    split(r, r->root, start, &before, &from);
    split(r, from, start + 1, &node, &after);
    r->root = join(r, before, after);
    r->nodes[node].left = r->free;
    r->free = node;
    r->count--;
}

struct range *ranges_holding(const struct ranges *r, uint64_t at)
{
    uint32_t found = 0;
    for (uint32_t n = r->root; n;) {
        bool later = r->nodes[n].start <= at;
        if (later)
            found = n;
        n = later ? r->nodes[n].right : r->nodes[n].left;
    }
    return found && at - r->nodes[found].start < r->nodes[found].size ? &r->nodes[found] : NULL;
}

struct range *ranges_at_or_after(const struct ranges *r, uint64_t at)
{
    uint32_t found = 0;
    for (uint32_t n = r->root; n;) {
        bool earlier = r->nodes[n].start >= at;
        if (earlier)
            found = n;
        n = earlier ? r->nodes[n].left : r->nodes[n].right;
    }
    return found ? &r->nodes[found] : NULL;
}

bool ranges_give(struct ranges *r, uint64_t start, uint64_t size)
{
    const struct range *before = start ? ranges_holding(r, start - 1) : NULL;
    uint64_t from = before ? before->start : start;
    const struct range *after = ranges_holding(r, start + size);
    uint64_t to = after ? after->start + after->size : start + size;
    if (after)
        ranges_remove(r, start + size);
    if (before)
        ranges_remove(r, from);
    return ranges_add(r, from, to - from, 0);
}

bool ranges_take_at(struct ranges *r, uint64_t start, uint64_t size)
{
    const struct range *found = ranges_holding(r, start);
    if (!found || found->start + found->size - start < size)
        return false;
    struct range whole = *found;
    ranges_remove(r, whole.start);
    uint64_t end = start + size, whole_end = whole.start + whole.size;
    bool kept = true;
    if (start > whole.start)
        kept = ranges_add(r, whole.start, start - whole.start, 0);
    if (whole_end > end)
        kept = ranges_add(r, end, whole_end - end, 0) && kept;
    return kept;
}

static uint64_t aligned(uint64_t start, uint64_t alignment)
{
    return (start + alignment - 1) / alignment * alignment;
}

static uint32_t lowest_fit(const struct ranges *r, uint32_t n, uint64_t size, uint64_t alignment)
{
    if (!n || r->nodes[n].largest < size)
        return 0;
    uint32_t found = lowest_fit(r, r->nodes[n].left, size, alignment);
    if (found)
        return found;
    const struct range *node = &r->nodes[n];
    uint64_t lost = aligned(node->start, alignment) - node->start;
    if (node->size >= size && node->size - size >= lost)
        return n;
    return lowest_fit(r, node->right, size, alignment);
}

bool ranges_take(struct ranges *r, uint64_t size, uint64_t alignment, uint64_t *start)
{
    uint32_t n = lowest_fit(r, r->root, size, alignment);
    if (!n)
        return false;
    uint64_t at = aligned(r->nodes[n].start, alignment);
    if (!ranges_take_at(r, at, size))
        return false;
    *start = at;
    return true;
}
