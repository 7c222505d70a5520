/*
 * pieces.c: chunks and how they are cut up. Books only: no driver and no jemalloc is called here, no memory of a chunk is touched.
 *
 * All chunks lie in one range of addresses that is set aside when we open, so that a subtraction says whether an address is ours and where
 * its record is. The pieces of a chunk tile it, in a list by address; they never reach into a neighbour, because the driver knows each
 * chunk on its own and refuses a copy that crosses two. Free pieces of a node are kept in order of size by base/ranges.c: best fit.
 *
 * LOCKING: `growing` for chunk_reserve and chunk_unreserve; the others take `lock` themselves.
 */
#include <string.h>
#include <sys/mman.h>

#include "base/bits.h"
#include "base/check.h"
#include "host/host.h"

#define PIECES_MAX (1u << 26)

static void *set_aside(uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* As many again are left for the program, which may have a limit (RLIMIT_AS). */
static bool open_addresses(struct host *h, uint64_t bytes)
{
    void *both = set_aside(2 * bytes);
    if (both)
        munmap(both, 2 * bytes);
    char *at = both ? set_aside(bytes + UNIT) : NULL;
    if (!at)
        return false;
    uint64_t spare = round_up((uint64_t)at, UNIT) - (uint64_t)at;
    if (spare)
        munmap(at, spare);
    munmap(at + spare + bytes, UNIT - spare);
    h->base = at + spare;
    h->units = (uint32_t)(bytes / UNIT);
    return true;
}

/* A piece is a page at least. */
static bool open_tables(struct host *h)
{
    uint64_t pages = h->units * (UNIT / HOST_PAGE);
    h->taken = memory_map(bits_words(h->units) * sizeof(uint64_t));
    h->chunk_of = memory_map(h->units * sizeof(*h->chunk_of));
    h->records = memory_map(h->units * (UNIT / HOST_GRAIN) * sizeof(record));
    return h->taken && h->chunk_of && h->records && table_open(&h->chunks, sizeof(struct chunk), h->units) &&
           table_open(&h->pieces, sizeof(struct block), pages < PIECES_MAX ? (uint32_t)pages : PIECES_MAX) &&
           table_open(&h->uses, sizeof(struct use), USES_MAX) && table_commit(&h->uses, 2) && (h->few_uses = h->uses.committed);
}

/* But for chunks that the driver would not let go of: they stay where they are. */
static void unmap_addresses(struct host *h)
{
    for (uint32_t from = 0, to; h->base && from < h->units; from = to + 1) {
        for (to = from; to < h->units && !(h->taken && bit_is_set(h->taken, to)); to++)
            ;
        if (to > from)
            munmap(h->base + from * UNIT, (to - from) * UNIT);
    }
    h->base = NULL;
}

static void close_tables(struct host *h)
{
    table_close(&h->pieces);
    table_close(&h->chunks);
    table_close(&h->uses);
    index_close(&h->starts);
    unmap_addresses(h);
    memory_unmap(h->taken, bits_words(h->units) * sizeof(uint64_t));
    memory_unmap(h->chunk_of, h->units * sizeof(*h->chunk_of));
    memory_unmap(h->records, h->units * (UNIT / HOST_GRAIN) * sizeof(record));
    h->taken = NULL;
    h->chunk_of = NULL;
    h->records = NULL;
}

bool pieces_open(struct host *h, uint64_t bytes)
{
    bool opened = false;
    lock_open(&h->lock, LOCK_ADDRESSES);
    for (; !opened && bytes >= 64 * UNIT; bytes /= 2) {
        opened = open_addresses(h, bytes / UNIT * UNIT) && open_tables(h);
        if (!opened)
            close_tables(h);
    }
    for (int node = 0; node < NODES_MAX; node++)
        h->node[node].free[0].blocks = h->node[node].free[1].blocks = &h->pieces;
    return opened;
}

void pieces_close(struct host *h)
{
    close_tables(h);
    lock_close(&h->lock);
}

/* ------------------------------------------------------------------------------------------------------------------- addresses */

static bool find_units(const struct host *h, uint32_t count, uint32_t *from)
{
    for (uint32_t run = 0, unit = 0; unit < h->units; unit++) {
        run = bit_is_set(h->taken, unit) ? 0 : run + 1;
        if (run == count) {
            *from = unit + 1 - count;
            return true;
        }
    }
    return false;
}

uint32_t chunk_reserve(struct host *h, uint64_t bytes)
{
    uint32_t from;
    if (bytes > h->units * UNIT || !find_units(h, (uint32_t)(bytes / UNIT), &from))
        return 0;
    lock_take(&h->lock);
    uint32_t number = table_take(&h->chunks);
    lock_give(&h->lock);
    if (!number)
        return 0;
    bits_set(h->taken, from, from + (uint32_t)(bytes / UNIT));
    chunk_at(h, number)->at = (uint64_t)h->base + from * UNIT;
    chunk_at(h, number)->bytes = bytes;
    return number;
}

/* Its memory goes back to the system, or does so when the addresses are used again. Those stay ours. */
void chunk_unreserve(struct host *h, uint32_t number)
{
    struct chunk *c = chunk_at(h, number);
    uint32_t from = (uint32_t)((c->at - (uint64_t)h->base) / UNIT);
    void *gone = mmap((void *)c->at, c->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    (void)gone;
    madvise((void *)record_of(h, c->at), c->bytes / HOST_GRAIN * sizeof(record), MADV_DONTNEED);
    bits_clear(h->taken, from, from + (uint32_t)(c->bytes / UNIT));
    lock_take(&h->lock);
    table_give(&h->chunks, number);
    lock_give(&h->lock);
}

static void set_chunk_of(struct host *h, const struct chunk *c, uint32_t number)
{
    uint32_t from = (uint32_t)((c->at - (uint64_t)h->base) / UNIT);
    for (uint32_t unit = from; unit < from + c->bytes / UNIT; unit++)
        atomic_store_explicit(&h->chunk_of[unit], number, memory_order_release);
}

/* ---------------------------------------------------------------------------------------------------------------------- pieces */

static struct ranges *free_of(struct host *h, const struct chunk *c)
{
    return &h->node[c->node].free[c->big];
}

/* Room in the books for a piece that is cut twice. LOCKING: `lock`, as for everything static here. */
static bool books_reserve(struct host *h)
{
    return table_reserve(&h->pieces, 2) && index_reserve(&h->starts, 2);
}

static void set_live(struct host *h, uint32_t piece)
{
    struct block *p = piece_of(h, piece);
    p->state = BLOCK_LIVE;
    chunk_at(h, p->region)->live += p->size;
    index_add(&h->starts, p->at, piece);
}

static void unset_live(struct host *h, uint32_t piece)
{
    struct block *p = piece_of(h, piece);
    index_remove(&h->starts, p->at);
    chunk_at(h, p->region)->live -= p->size;
}

static void set_free(struct host *h, uint32_t piece)
{
    struct block *p = piece_of(h, piece);
    p->state = BLOCK_FREE;
    ranges_add(free_of(h, chunk_at(h, p->region)), piece);
}

/* The second part of a piece becomes one of its own, in neither state. Its books are reserved. */
static uint32_t cut_off(struct host *h, uint32_t piece, uint64_t first)
{
    uint32_t second = table_take(&h->pieces);
    struct block *p = piece_of(h, piece), *s = piece_of(h, second);
    CHECK(first && first < p->size);
    *s = (struct block){.at = p->at + first, .size = p->size - first, .region = p->region, .before = piece, .after = p->after};
    if (p->after)
        piece_of(h, p->after)->before = second;
    p->after = second;
    p->size = first;
    return second;
}

/* `piece` takes up the one after it, which is in neither state. */
static void join(struct host *h, uint32_t piece)
{
    struct block *p = piece_of(h, piece);
    uint32_t after = p->after;
    struct block *a = piece_of(h, after);
    p->size += a->size;
    p->after = a->after;
    if (p->after)
        piece_of(h, p->after)->before = piece;
    table_give(&h->pieces, after);
}

/* A piece in neither state becomes free, together with free neighbours. */
static void release(struct host *h, uint32_t piece)
{
    struct block *p = piece_of(h, piece);
    struct chunk *c = chunk_at(h, p->region);
    if (p->after && piece_of(h, p->after)->state == BLOCK_FREE) {
        ranges_remove(free_of(h, c), p->after);
        join(h, piece);
    }
    if (p->before && piece_of(h, p->before)->state == BLOCK_FREE) {
        piece = p->before;
        ranges_remove(free_of(h, c), piece);
        join(h, piece);
    }
    set_free(h, piece);
    if (c->live == 0) {
        c->idle_since = clock_ns();
        c->idle_step = atomic_load_explicit(&h->steps, memory_order_relaxed);
    }
}

/* A piece in neither state: `bytes` of it, aligned, become live, the rest free. Its books are reserved, and it is large enough. */
static uint32_t carve(struct host *h, uint32_t piece, uint64_t bytes, uint64_t alignment)
{
    struct block *p = piece_of(h, piece);
    uint64_t lead = round_up(p->at, alignment) - p->at;
    uint32_t before = 0, after = 0;
    if (lead) {
        before = piece;
        piece = cut_off(h, piece, lead);
    }
    if (piece_of(h, piece)->size > bytes)
        after = cut_off(h, piece, bytes);
    set_live(h, piece); /* first, or the chunk would look idle */
    if (before)
        release(h, before);
    if (after)
        release(h, after);
    return piece;
}

static uint64_t room_for(uint64_t bytes, uint64_t alignment)
{
    return bytes + (alignment > HOST_PAGE ? alignment - HOST_PAGE : 0);
}

uint32_t piece_take(struct host *h, int node, uint64_t bytes, uint64_t alignment)
{
    lock_take(&h->lock);
    struct ranges *free = &h->node[node].free[bytes > BIG];
    uint32_t piece = books_reserve(h) ? ranges_at_least(free, room_for(bytes, alignment)) : 0;
    if (piece) {
        ranges_remove(free, piece);
        piece_of(h, piece)->state = BLOCK_PENDING; /* in neither state: no neighbour may take it up */
        piece = carve(h, piece, bytes, alignment);
    }
    lock_give(&h->lock);
    return piece;
}

uint32_t piece_cut(struct host *h, uint32_t piece, uint64_t bytes, uint64_t alignment)
{
    lock_take(&h->lock);
    bool fits = piece_of(h, piece)->size >= room_for(bytes, alignment) && books_reserve(h);
    if (fits) {
        unset_live(h, piece);
        piece = carve(h, piece, bytes, alignment);
    }
    lock_give(&h->lock);
    return fits ? piece : 0;
}

void piece_give(struct host *h, uint32_t piece)
{
    lock_take(&h->lock);
    unset_live(h, piece);
    release(h, piece);
    lock_give(&h->lock);
}

/* jemalloc cuts an extent in two: both stay live. */
bool piece_split(struct host *h, uint64_t at, uint64_t first)
{
    lock_take(&h->lock);
    uint32_t piece = index_find(&h->starts, at);
    bool split = piece && books_reserve(h);
    if (split) {
        uint32_t second = cut_off(h, piece, first);
        piece_of(h, second)->state = BLOCK_LIVE;
        index_add(&h->starts, at + first, second);
    }
    lock_give(&h->lock);
    return split;
}

/* jemalloc joins two extents: only inside a chunk. */
bool piece_merge(struct host *h, uint64_t first, uint64_t second)
{
    lock_take(&h->lock);
    uint32_t piece = index_find(&h->starts, first), after = index_find(&h->starts, second);
    bool merges = piece && after && piece_of(h, piece)->after == after;
    if (merges) {
        index_remove(&h->starts, second);
        join(h, piece);
    }
    lock_give(&h->lock);
    return merges;
}

uint32_t piece_at(struct host *h, uint64_t at)
{
    lock_take(&h->lock);
    uint32_t piece = index_find(&h->starts, at);
    lock_give(&h->lock);
    return piece;
}

/* The live piece around an address; 0: none. */
uint32_t piece_holding(struct host *h, uint64_t address, uint64_t *at, uint64_t *bytes)
{
    lock_take(&h->lock);
    uint32_t found = 0;
    uint32_t number = atomic_load(&h->chunk_of[(address - (uint64_t)h->base) / UNIT]);
    if (number)
        found = chunk_at(h, number)->first;
    while (found && address - piece_of(h, found)->at >= piece_of(h, found)->size)
        found = piece_of(h, found)->after;
    if (found && piece_of(h, found)->state != BLOCK_LIVE)
        found = 0;
    if (found) {
        *at = piece_of(h, found)->at;
        *bytes = piece_of(h, found)->size;
    }
    lock_give(&h->lock);
    return found;
}

/* ---------------------------------------------------------------------------------------------------------------------- chunks */

/* Together with its pieces, so that the sums agree whenever a thread looks. LOCKING: `lock`. */
static void count_bytes(struct host *h, const struct chunk *c, bool comes)
{
    struct node *n = &h->node[c->node];
    uint64_t change = comes ? c->bytes : -c->bytes;
    n->registered.current += change;
    *(comes ? &n->registered.total_in : &n->registered.total_out) += c->bytes;
    if (n->registered.peak < n->registered.current)
        n->registered.peak = n->registered.current;
    atomic_store(&n->flush_bytes, n->registered.current / 64 > 1u << 20 ? n->registered.current / 64 : 1u << 20);
    n->bound += c->bound ? change : 0;
    n->strayed += c->strayed ? change : 0;
}

uint32_t chunk_enter(struct host *h, uint32_t number)
{
    lock_take(&h->lock);
    struct chunk *c = chunk_at(h, number);
    uint32_t piece = books_reserve(h) ? table_take(&h->pieces) : 0;
    if (piece) {
        *piece_of(h, piece) = (struct block){.at = c->at, .size = c->bytes, .region = number};
        c->is_registered = true;
        c->first = piece;
        set_chunk_of(h, c, number);
        set_live(h, piece);
        count_bytes(h, c, true);
    }
    lock_give(&h->lock);
    return piece;
}

/* The longest idle of those that have been idle long enough and have `least` bytes: no thread can take anything from it any more. */
uint32_t chunk_leave(struct host *h, uint64_t idle_before, uint64_t step_before, uint64_t least)
{
    uint32_t found = 0;
    lock_take(&h->lock);
    for (uint32_t number = 1; number < h->chunks.used; number++) {
        const struct chunk *c = chunk_at(h, number);
        bool may_go = c->is_registered && !c->live && c->bytes >= least && c->idle_since <= idle_before && c->idle_step <= step_before;
        if (may_go && (!found || c->idle_since < chunk_at(h, found)->idle_since))
            found = number;
    }
    if (found) {
        struct chunk *c = chunk_at(h, found);
        ranges_remove(free_of(h, c), c->first);
        table_give(&h->pieces, c->first);
        set_chunk_of(h, c, 0);
        c->is_registered = false;
        count_bytes(h, c, false);
    }
    lock_give(&h->lock);
    return found;
}

/* The driver would not let it go: it serves again. Where there is no memory for that it stays unused. */
void chunk_stay(struct host *h, uint32_t number)
{
    uint32_t piece = chunk_enter(h, number);
    if (piece)
        piece_give(h, piece);
}

bool chunks_are_of(struct host *h, uint64_t generation)
{
    bool any = false;
    lock_take(&h->lock);
    for (uint32_t number = 1; number < h->chunks.used && !any; number++)
        any = chunk_at(h, number)->is_registered && chunk_at(h, number)->generation == generation;
    lock_give(&h->lock);
    return any;
}

/* ---------------------------------------------------------------------------------------------------------------------- checks */

/* Pieces tile their chunk, no two neighbours are free, sums agree, and every live one is found by its address. */
static const char *chunk_problem(struct host *h, uint32_t number, uint64_t *live_pieces)
{
    const struct chunk *c = chunk_at(h, number);
    uint64_t live = 0, at = c->at;
    bool was_free = false;
    for (uint32_t piece = c->first; piece; piece = piece_of(h, piece)->after) {
        const struct block *p = piece_of(h, piece);
        bool is_live = p->state == BLOCK_LIVE;
        if (p->at != at || p->region != number || !p->size || p->size % HOST_PAGE)
            return "the pieces of a chunk do not tile it";
        if ((is_live && index_find(&h->starts, at) != piece) || (!is_live && p->state != BLOCK_FREE))
            return "a piece is neither free nor found";
        if (!is_live && was_free)
            return "two neighbours are free";
        was_free = !is_live;
        live += is_live ? p->size : 0;
        *live_pieces += is_live;
        at += p->size;
    }
    return at == c->at + c->bytes && live == c->live ? NULL : "the sums of a chunk do not agree";
}

bool pieces_are_valid(struct host *h, const char **broken)
{
    uint64_t live_pieces = 0, registered = 0, counted = 0;
    *broken = NULL;
    lock_take(&h->lock);
    for (uint32_t number = 1; !*broken && number < h->chunks.used; number++) {
        if (!chunk_at(h, number)->is_registered)
            continue;
        *broken = chunk_problem(h, number, &live_pieces);
        registered += chunk_at(h, number)->bytes;
    }
    for (int node = 0; node < h->nodes; node++)
        counted += h->node[node].registered.current;
    if (!*broken && registered != counted)
        *broken = "chunks and counters of registered bytes differ";
    if (!*broken && live_pieces != h->starts.count)
        *broken = "live pieces and their index differ";
    lock_give(&h->lock);
    return !*broken;
}
