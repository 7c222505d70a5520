/*
 * slab.c: cuts one heap block into equal small blocks, so that most allocations touch no tree.
 *
 * A slab is one heap block cut into 8 to 128 items of one size class. A bin holds the slabs of a class that have a free
 * item; a slab that gets its first free item goes to the front, so that nearly full slabs are filled first and nearly
 * empty ones become empty. A few empty slabs are kept, so that a program that repeats itself finds them again; the
 * others go back to the heap, and all of them if memory is short.
 *
 *      slab_open             slab_take                 slab_give
 *    ------------> in bin -------------> full: no bin -----------> in bin ----------> empty: slab_close by the arena
 *
 * This file knows neither streams nor the heap: the arena decides which request gets what.
 *
 * LOCKING: every function here expects the pool's lock.
 */
#include "pool/core/slab.h"

#include "base/check.h"

/*
 * The items of a slab are 64 KiB together, or a little less if they do not
 * fit evenly. A table, because every small allocation needs the size.
 */
#define ITEMS(class) (SLAB_ALIGNMENT / CLASS_BYTES(class))
static const uint8_t items_of[CLASS_COUNT] = {ITEMS(0), ITEMS(1), ITEMS(2), ITEMS(3), ITEMS(4),  ITEMS(5),
                                              ITEMS(6), ITEMS(7), ITEMS(8), ITEMS(9), ITEMS(10), ITEMS(11)};
_Static_assert(CLASS_BYTES_MAX <= UINT16_MAX && SLAB_ITEMS_MAX <= UINT8_MAX, "what slabs count in 16 and 8 bits");
_Static_assert(ITEMS(0) == SLAB_ITEMS_MAX && ITEMS(CLASS_COUNT - 1) == SLAB_ITEMS_MIN,
               "the smallest and the largest class");

uint64_t slab_bytes(uint32_t class)
{
    return (uint64_t)items_of[class] * class_bytes(class);
}

/* The slab that `at` lies in, 0: none. */
uint32_t slab_at_address(const struct region *r, uint64_t at)
{
    return r->granules[region_granule(r, at)].slab;
}

static void enter_bin(struct slabs *s, uint32_t number)
{
    struct slab *slab = slab_of(s->table, number);
    slab->before = 0;
    slab->after = s->bins[slab->class];
    if (slab->after)
        slab_of(s->table, slab->after)->before = number;
    s->bins[slab->class] = number;
}

static void leave_bin(struct slabs *s, uint32_t number)
{
    struct slab *slab = slab_of(s->table, number);
    *(slab->before ? &slab_of(s->table, slab->before)->after : &s->bins[slab->class]) = slab->after;
    if (slab->after)
        slab_of(s->table, slab->after)->before = slab->before;
}

static void mark_granules(struct region *r, uint64_t at, uint64_t bytes, uint32_t number)
{
    for (uint32_t g = region_granule(r, at); g <= region_granule(r, at + bytes - 1); g++)
        r->granules[g].slab = number;
}

/* The heap block becomes a slab. The table has room: the caller asked table_reserve. */
void slab_open(struct slabs *s, uint32_t class, struct region *r, uint64_t at, uint32_t block)
{
    uint32_t number = table_take(s->table);
    CHECK(number && at % SLAB_ALIGNMENT == 0);
    struct slab *slab = slab_of(s->table, number);
    slab->at = at;
    slab->block = block;
    slab->region = r->number;
    slab->class = class;
    slab->item_bytes = class_bytes(class);
    slab->items = slab->free_items = items_of[class];
    s->empty++;
    bits_set(slab->free, 0, slab->items);
    mark_granules(r, at, slab_bytes(class), number);
    enter_bin(s, number);
}

static inline uint64_t take_item(struct slabs *s, uint32_t number, uint32_t item, uint64_t requested, uint64_t mark)
{
    struct slab *slab = slab_of(s->table, number);
    CHECK(slab->free_items && bit_is_set(slab->free, item));
    s->empty -= slab->free_items == slab->items;
    bit_clear(slab->free, item);
    slab->requested[item] = (uint16_t)requested;
    slab->uses[item] = 0;
    slab->mark[item] = mark;
    if (--slab->free_items == 0)
        leave_bin(s, number);
    return slab->at + (uint64_t)item * slab->item_bytes;
}

/* Takes an item and returns its address; 0: no slab of the class has a free item. */
uint64_t slab_take(struct slabs *s, uint32_t class, uint64_t requested, uint64_t mark)
{
    uint32_t number = s->bins[class];
    if (!number)
        return 0;
    const struct slab *slab = slab_of(s->table, number);
    uint32_t item =
        slab->free[0] ? (uint32_t)__builtin_ctzll(slab->free[0]) : 64 + (uint32_t)__builtin_ctzll(slab->free[1]);
    return take_item(s, number, item, requested, mark);
}

/* Begins a free item of the class at `at`? */
static bool is_free_at(const struct slab *slab, uint32_t class, uint64_t at)
{
    uint32_t item = (uint32_t)((at - slab->at) / slab->item_bytes);
    return slab->class == class && (at - slab->at) % slab->item_bytes == 0 && item < slab->items &&
           bit_is_set(slab->free, item);
}

/* It does, and sleeps. */
bool slab_sleeps_at(const struct slabs *s, uint32_t number, uint32_t class, uint64_t at)
{
    return slab_of(s->table, number)->asleep && is_free_at(slab_of(s->table, number), class, at);
}

/* Takes the item of the class that begins at `at`, in the slab that lies there. 0: there is none, or it is not free. */
uint64_t slab_take_at(struct slabs *s, uint32_t number, uint32_t class, uint64_t at, uint64_t requested, uint64_t mark)
{
    const struct slab *slab = slab_of(s->table, number);
    uint32_t item = (uint32_t)((at - slab->at) / slab->item_bytes);
    return !slab->asleep && is_free_at(slab, class, at) ? take_item(s, number, item, requested, mark) : 0;
}

/*
 * True: the slab is empty, and enough empty ones are kept: the caller
 * closes it. Never fails and allocates nothing (rule 7).
 */
bool slab_give(struct slabs *s, uint32_t number, uint32_t item)
{
    struct slab *slab = slab_of(s->table, number);
    CHECK(!bit_is_set(slab->free, item) && item < slab->items);
    bit_set(slab->free, item);
    if (slab->free_items++ == 0 && !slab->asleep)
        enter_bin(s, number);
    if (slab->free_items < slab->items)
        return false;
    s->empty++;
    return s->empty > SLABS_EMPTY_KEPT || slab->asleep;
}

/* Ends an empty slab. The caller gives the heap block back from which it was cut. */
uint32_t slab_close(struct slabs *s, uint32_t number, struct region *r)
{
    struct slab *slab = slab_of(s->table, number);
    uint32_t block = slab->block;
    CHECK(slab->free_items == slab->items && s->empty);
    s->empty--;
    if (!slab->asleep)
        leave_bin(s, number);
    mark_granules(r, slab->at, slab_bytes(slab->class), 0);
    slab->items = 0; /* tells that the number is not in use */
    table_give(s->table, number);
    return block;
}

/* A page under it goes to sleep: no item is taken from it, and once it is empty it is closed. It has a live item. */
void slab_doze(struct slabs *s, uint32_t number)
{
    struct slab *slab = slab_of(s->table, number);
    CHECK(slab->free_items < slab->items);
    if (!slab->asleep++ && slab->free_items)
        leave_bin(s, number);
}

/* A page under it has woken. */
void slab_wake(struct slabs *s, uint32_t number)
{
    struct slab *slab = slab_of(s->table, number);
    if (!--slab->asleep && slab->free_items)
        enter_bin(s, number);
}

/*
 * Invariant 16: a slab in a bin has free items, as many as bits, and none of them is pending; those wholly free are
 * counted. Invariant 35: it lies on no page that sleeps. Checks the next `most` slabs; true: there are more. All 0 in
 * `w`: it begins.
 */
bool slabs_check(const struct slabs *s, struct slabs_walk *w, uint32_t most, const char **broken)
{
    for (; w->class < CLASS_COUNT; w->class++, w->before = 0) {
        uint32_t number = w->before ? slab_of(s->table, w->before)->after : s->bins[w->class];
        for (; number && most; number = slab_of(s->table, number)->after, most--) {
            const struct slab *slab = slab_of(s->table, number);
            int bits = __builtin_popcountll(slab->free[0]) + __builtin_popcountll(slab->free[1]);
            bool both = (slab->free[0] & slab->pending[0]) || (slab->free[1] & slab->pending[1]);
            if (slab->asleep) {
                *broken = "35: a slab in a bin lies on no page that sleeps";
                return false;
            }
            if (slab->class != w->class || slab->before != w->before || !bits || bits != slab->free_items || both) {
                *broken = "16: a slab in a bin has free items, as many as bits, none of them pending";
                return false;
            }
            w->before = number;
            w->empty += slab->free_items == slab->items;
        }
        if (number)
            return true;
    }
    if (w->empty != s->empty)
        *broken = "16: empty slabs are counted";
    return false;
}

const char *slabs_broken_rule(const struct slabs *s)
{
    struct slabs_walk w = {0};
    const char *broken = NULL;
    slabs_check(s, &w, UINT32_MAX, &broken);
    return broken;
}
