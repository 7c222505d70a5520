/*
 * rows.c: the allocated bytes of a pool, divided by arena, group, size, tag, phase and kind.
 *
 * Arenas, groups and sizes are counted from the start, in count.h, as blocks come and go. The labels of blocks are counted from the first
 * one that has any: until then everything is in row 0 of each division, which is what the pool's own level says, so that a program without
 * labels pays nothing for them.
 *
 * LOCKING: the pool's lock. Arenas, groups and tags, of which there may be thousands, are listed in portions (look.c): while other threads allocate
 * and free, the rows of one of these may be of different moments of the call.
 */
#include "stats/report/rows.h"

#include <stdio.h>

#include "pool/arenas/locate.h"
#include "pool/arenas/look.h"
#include "pool/life/pool.h"
#include "stats/account/count.h"
#include "stats/account/rows.h"
#include "stats/report/pieces.h"

static void reset(struct row *r, uint64_t epoch, bool peaks)
{
    if (!peaks) {
        r->total_in = 0;
        r->held = r->current;
        return;
    }
    r->peak = r->at_peak = r->current;
    r->epoch = epoch;
}

/* Forgets peaks, or what came in and went out. Of arenas, groups and tags in portions. LOCKING: the pool's lock. */
void rows_reset(struct look *look, bool peaks)
{
    cenote_pool *pool = look->pool;
    pool->account.epoch += peaks;
    for (uint32_t i = 0; i < SIZE_ROWS; i++)
        reset(&pool->account.by_size[i], pool->account.epoch, peaks);
    for (uint32_t i = 0; i < CENOTE_KINDS; i++)
        reset(&pool->account.by_kind[i], pool->account.epoch, peaks);
    for (uint32_t i = 0; i < CENOTE_PHASES; i++)
        reset(&pool->account.by_phase[i], pool->account.epoch, peaks);
    for (uint32_t number = 1; number < pool->store.arenas.used; number++, look_goes_on(look, 1))
        reset(&arena_of(pool, number)->row, pool->account.epoch, peaks);
    for (uint32_t number = 1; number < pool->groups.table.used; number++, look_goes_on(look, 1))
        reset(&group_of(pool, number)->row, pool->account.epoch, peaks);
    for (uint32_t tag = 0; tag < pool->account.by_tag.committed; tag++, look_goes_on(look, 1))
        reset(count_row_of_tag(pool, tag), pool->account.epoch, peaks);
}

/* -------------------------------------------------------------------------------------------------------------------------- questions */

/*
 * The row, to be given its name. False: it never held anything. After a reset of totals the peak tells that, after a reset of peaks the
 * totals; after both there is nothing left to add up.
 */
static bool has_row(const cenote_pool *pool, const struct row *r, uint64_t key, uint64_t reserved, cenote_row *row)
{
    if (!r->total_in && !r->held && !r->peak && !reserved)
        return false;
    *row = (cenote_row){.key = key, .blocks = r->blocks, .at_peak = r->epoch == pool->account.epoch ? r->at_peak : r->current, .reserved = reserved};
    row->allocated = (cenote_level){r->current, r->peak, r->total_in, r->total_in + r->held - r->current};
    return true;
}

#define WORK_OF_ROW 5u              /* names are printed; see look.c */

static void list_arenas(struct sized_list *l, struct look *look, const struct arena_sums *sums)
{
    const cenote_pool *pool = look->pool;
    cenote_row row;
    for (uint32_t number = 1; number < pool->store.arenas.used; number++) {
        const struct arena *a = arena_of(pool, number);
        if (a->number && has_row(pool, &a->row, a->stream, sum_of_arena(sums, number), &row)) {
            row.group = a->group ? group_of(pool, a->group) : NULL;
            row.stream = a->handle;
            snprintf(row.name, sizeof row.name, "%s%sstream %llu", row.group ? row.group->name : "", row.group ? ", " : "",
                     (unsigned long long)a->stream);
            sized_add(l, &row, sizeof row);
        }
        look_goes_on(look, WORK_OF_ROW);
    }
}

/* What lies in the group. After a pause the arenas that were to come may be others': then the sum ends there. */
static uint64_t sum_of_group(struct look *look, uint32_t group, const struct arena_sums *sums)
{
    const cenote_pool *pool = look->pool;
    const cenote_group *g = group_of(pool, group);
    uint64_t sum = 0;
    for (uint32_t i = g->number ? g->first_arena : 0; i && arena_of(pool, i)->group == group; i = arena_of(pool, i)->next_of_group) {
        sum += sum_of_arena(sums, i);
        look_goes_on(look, 1);
    }
    return sum;
}

static void list_groups(struct sized_list *l, struct look *look, const struct arena_sums *sums)
{
    const cenote_pool *pool = look->pool;
    cenote_row row;
    for (uint32_t number = 1; number < pool->groups.table.used; number++) {
        cenote_group *g = group_of(pool, number);
        uint64_t reserved = sum_of_group(look, number, sums);
        if (g->number && has_row(pool, &g->row, number, reserved, &row)) {
            row.group = g;
            snprintf(row.name, sizeof row.name, "%s", g->name);
            sized_add(l, &row, sizeof row);
        }
        look_goes_on(look, WORK_OF_ROW);
    }
}

static void list_sizes(struct sized_list *l, const cenote_pool *pool)
{
    cenote_row row;
    for (uint32_t i = 0; i < SIZE_ROWS; i++) {
        uint64_t most = i < CLASS_COUNT ? class_bytes(i) : 512ull << (i - CLASS_COUNT);
        if (!has_row(pool, &pool->account.by_size[i], most, 0, &row))
            continue;
        snprintf(row.name, sizeof row.name, "%s to %llu", i < CLASS_COUNT ? "slab" : "block", (unsigned long long)most);
        sized_add(l, &row, sizeof row);
    }
}

static void list_tags(struct sized_list *l, struct look *look)
{
    const cenote_pool *pool = look->pool;
    cenote_row row;
    struct row all = rows_all(pool);
    bool is_labelled = pool->account.is_labelled;
    for (uint32_t tag = 0; tag < (is_labelled ? pool->account.by_tag.committed : 1); tag++) {
        bool has = has_row(pool, is_labelled ? count_row_of_tag(pool, tag) : &all, tag, 0, &row);
        if (has) {
            label_path(tag, row.name, sizeof row.name);
            sized_add(l, &row, sizeof row);
        }
        look_goes_on(look, has ? WORK_OF_ROW : 1);
    }
}

static void list_named(struct sized_list *l, const cenote_pool *pool, const struct row *rows, const char *const names[], size_t count)
{
    cenote_row row;
    struct row all = rows_all(pool);
    for (size_t i = 0; i < (pool->account.is_labelled ? count : 1); i++) {
        if (!has_row(pool, pool->account.is_labelled ? &rows[i] : &all, i, 0, &row))
            continue;
        snprintf(row.name, sizeof row.name, "%s", names[i]);
        sized_add(l, &row, sizeof row);
    }
}

/* Adds the rows of the division; `sums` for those of arenas and groups. LOCKING: the pool's lock. */
void rows_list(struct look *look, enum cenote_division division, const struct arena_sums *sums, struct sized_list *l)
{
    const cenote_pool *pool = look->pool;
    switch (division) {
    case CENOTE_BY_ARENA: list_arenas(l, look, sums); break;
    case CENOTE_BY_GROUP: list_groups(l, look, sums); break;
    case CENOTE_BY_CLASS: list_sizes(l, pool); break;
    case CENOTE_BY_TAG: list_tags(l, look); break;
    case CENOTE_BY_PHASE: list_named(l, pool, pool->account.by_phase, label_phases, CENOTE_PHASES); break;
    default: list_named(l, pool, pool->account.by_kind, label_kinds, CENOTE_KINDS);
    }
}

int(cenote_pool_rows)(cenote_pool *pool, int division, cenote_row *rows, size_t room, size_t *count, size_t size)
{
    struct sized_list l = {.items = rows, .room = rows ? room : 0, .size = size};
    int error = pool_answers(pool);
    if (error || (error = sized_check(size, "cenote_row")))
        return error;
    if (division < CENOTE_BY_ARENA || division > CENOTE_BY_KIND || !count)
        return error_set(CENOTE_INVALID, 0, "cenote_pool_rows needs a division from 0 to %d, not %d, and a place for the count", CENOTE_BY_KIND,
                         division);
    struct look look;
    struct arena_sums sums = {0};
    bool has_sums = division == CENOTE_BY_ARENA || division == CENOTE_BY_GROUP;
    if (has_sums && !pieces_sums_open(&sums, pool))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for the sums of arenas");
    if (!(error = look_begin(&look, pool))) {
        if (has_sums)
            pieces_sum(&look, &sums);
        rows_list(&look, (enum cenote_division)division, &sums, &l);
        look_end(&look);
        *count = l.count;
    }
    pieces_sums_close(&sums);
    return error;
}

/* ----------------------------------------------------------------------------------------------------------------------------- kinds */

/* Moves the block's bytes from one kind to the other. LOCKING: the pool's lock. */
static bool change_kind(cenote_pool *pool, const struct block_ref *w, uint32_t kind)
{
    uint64_t bytes = count_rounded(w->requested), mark = (*w->mark & ~MARK_KIND) | (uint64_t)kind << MARK_KIND_AT;
    if (mark == *w->mark)
        return true;
    if (!rows_reserve(pool, mark))
        return false;
    row_out(&pool->account.by_kind[mark_kind(*w->mark)], pool->account.epoch, bytes);
    row_in(&pool->account.by_kind[kind], pool->account.epoch, bytes);
    *w->mark = mark;
    return true;
}

int cenote_block_set_kind(const void *address, int kind)
{
    struct block_ref w = {0};
    if (!address || kind < 0 || kind >= CENOTE_KINDS)
        return error_set(CENOTE_INVALID, 0, "cenote_block_set_kind needs an address and a kind from 0 to %d, not %d", CENOTE_KINDS - 1, kind);
    if (pool_refuses())
        return pool_process_usable();
    cenote_pool *pool = locate_lock(address, &w);
    enum lookup found = pool ? locate_at(pool, (uint64_t)(uintptr_t)address, &w) : FOUND_NOTHING;
    bool live = found == FOUND_LIVE || found == FOUND_INSIDE;
    bool done = live && change_kind(pool, &w, (uint32_t)kind);
    if (pool)
        lock_give(&pool->lock);
    if (!live)
        return error_set(CENOTE_NOT_OURS, 0, "%p lies in no live block of cenote: give an address inside one", address);
    return done ? CENOTE_OK : error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for the books of labels");
}

/* --------------------------------------------------------------------------------------------------------------------------- invariant */

static uint64_t sum_of(const struct row *rows, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += rows[i].current;
    return sum;
}

/* Invariant 20: the rows of each division add up to what is allocated. Not judged where other threads had the lock meanwhile. */
const char *rows_broken_rule(struct look *look)
{
    const cenote_pool *pool = look->pool;
    uint64_t allocated = pool->account.stats.allocated.current, arenas = 0, tags = 0;
    bool is_same = true;
    for (uint32_t number = 1; number < pool->store.arenas.used && is_same; number++) {
        arenas += arena_of(pool, number)->number ? arena_of(pool, number)->row.current : 0;
        is_same = look_goes_on(look, 1);
    }
    for (uint32_t tag = 0; pool->account.is_labelled && tag < pool->account.by_tag.committed && is_same; tag++) {
        tags += count_row_of_tag(pool, tag)->current;
        is_same = look_goes_on(look, 1);
    }
    if (!is_same)
        return NULL;
    if (arenas != allocated || sum_of(pool->account.by_size, SIZE_ROWS) != allocated)
        return "20: arenas and sizes add up to what is allocated";
    if (pool->account.is_labelled &&
        (sum_of(pool->account.by_kind, CENOTE_KINDS) != allocated || sum_of(pool->account.by_phase, CENOTE_PHASES) != allocated || tags != allocated))
        return "20: kinds, phases and tags add up to what is allocated";
    return NULL;
}
