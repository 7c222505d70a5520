/*
 * fill.c: puts a page under each slot of a range that lacks one.
 *
 * The pages come, in this order, from the spares, from free pages that lie elsewhere (harvest: the one that was freed
 * longest ago first; its old place keeps its mapping, but for aliases:off; not as far as the pool may grow instead),
 * and from the driver. What cannot be used where it is mapped now is unmapped first.
 *
 *     fill_plan          fill_create, fill_unmap, fill_map       fill_publish
 *     pool's lock        the turn, no lock                       pool's lock
 *     ------------> create, unmap, map, grant access -------> linked and usable, or picked pages back where they were
 *                        any failure: unmapped in reverse
 *
 * For very many slots the plan is made in steps, and between them the lock may be let go of: fill_hold, then fill_pick
 * and fill_picked for each grade, then fill_lift. The place belongs to the request from the first step on.
 *
 * If the device is not done with a page that was picked (`behind`), the
 * stream of the arena is made to wait for it before fill_map (order.c).
 *
 * Between plan and publish the slots are in transit and the pages that were picked have an owner, so no other thread
 * touches either. After a failure four things may not be as before: the stream waits, if it was made to; pages that
 * were created stay, as spares, so that the next attempt needs that many fewer; old mappings that were taken away stay
 * away, so that their slots lack a page now; and a slot that the driver would not unmap again is broken.
 *
 * LOCKING: the turn throughout. fill_plan and fill_publish have the
 * pool's lock as well; the driver's part between them does not.
 */
#include "pool/core/fill.h"

#include <string.h>

#include "base/check.h"

#define TOUCHED 4096u   /* a page of the system, or less */

/* The system puts memory behind it now, not under the pool's lock. */
static void *map_and_touch(size_t bytes)
{
    char *memory = memory_map(bytes);
    for (size_t at = 0; memory && at < bytes; at += TOUCHED)
        ((volatile char *)memory)[at] = 0;
    return memory;
}

/* False: no host memory. LOCKING: the turn; with or without the pool's lock. */
bool fill_make_room(struct fill *f, uint32_t entries)
{
    if (entries <= f->most)
        return true;
    uint32_t most = entries + entries / 2 + 64;
    struct fill_entry *bigger = map_and_touch(most * sizeof *bigger);
    struct pick *picks = map_and_touch(most * sizeof *picks);
    if (!bigger || !picks) {
        if (bigger)
            memory_unmap(bigger, most * sizeof *bigger);
        if (picks)
            memory_unmap(picks, most * sizeof *picks);
        return false;
    }
    fill_close(f);
    f->entries = bigger;
    f->picks = picks;
    f->most = most;
    return true;
}

void fill_close(struct fill *f)
{
    if (f->most) {
        memory_unmap(f->entries, f->most * sizeof *f->entries);
        memory_unmap(f->picks, f->most * sizeof *f->picks);
    }
    f->most = 0;
}

/*
 * Lists the slots that lack a page. The pages that stay are marked
 * as met (pages_look_anew), so that the picker does not pick them.
 */
static void list_missing(struct fill *f, struct pages *s, const struct requester *who, struct region *r, uint32_t from,
                         uint32_t to)
{
    f->region = r;
    f->is_held = false;
    f->block = 0;
    f->count = f->unmaps = f->stays = f->published = f->lifted = f->creates = f->harvests = f->leaves = f->top = 0;
    f->create_bytes = 0;
    f->behind = 0;
    memset(f->lack, 0, sizeof f->lack);
    memset(f->picked, 0, sizeof f->picked);
    pages_look_anew(s);
    for (uint32_t slot = from; slot < to; slot += region_span(r, slot)) {
        bool blocked;
        if (!pages_lack(s, who, r, slot, &blocked)) {
            page_of(s, r->page[slot])->met = s->epoch; /* a sole page is not met by the look itself */
            continue;
        }
        struct fill_entry *e = &f->entries[f->count++];
        *e = (struct fill_entry){
            .slot = slot, .grade = pages_grade_at(r, slot), .stays = pages_may_stay(s, who, r, slot)};
        CHECK(!blocked || e->stays);
        *(e->stays ? &e->page : &e->old) = r->page[slot];
        f->unmaps += e->old != 0;
        f->stays += e->stays;
        f->lack[e->grade] += !e->stays;
    }
}

/*
 * Of `missing` pages so many come from the driver: that many fewer
 * move. What never was anywhere moves nowhere, and stays picked.
 */
static void leave_to_growth(struct picker *k, uint32_t missing, uint64_t news)
{
    uint32_t found = k->count, least = 0, moves = news < missing ? missing - (uint32_t)news : 0;
    while (least < found && !k->picks[least].freed)
        least++;
    moves = moves > least ? moves : least;
    k->count = found < moves ? found : moves;
    CHECK(k->count == found || missing - k->count <= news);
}

/* The page belongs to the slot of the entry from now on. */
static void lift_page(struct fill *f, struct pages *s, const struct requester *who, struct fill_entry *e)
{
    struct page *p = page_of(s, e->page);
    tick behind = pick_behind(s, who, e->page);
    f->behind = f->behind < behind ? behind : f->behind;
    e->handle = p->handle;
    f->harvests += p->maps != 0 && !e->stays;
    if (s->mapped_once && p->maps) {
        e->home = region_of(s, p->home.region);
        e->home_slot = p->home.slot;
        f->leaves++;
    }
    e->past = pages_lift(s, e->page, (struct slot_ref){f->region->number, e->slot});
}

static void count_new(struct fill *f, const struct pages *s, uint32_t grade, uint32_t pages)
{
    f->creates += pages;
    f->create_bytes += (uint64_t)pages << s->shifts[grade];
    f->top = pages && grade > f->top ? grade : f->top;
}

/*
 * The next page of that grade that was picked and may still move; for
 * each that may not any more one is created. 0: there is none.
 */
static uint32_t next_pick(struct fill *f, const struct pages *s, uint32_t grade)
{
    const struct picker *k = &f->pickers[grade];
    while (f->picked[grade] < k->count) {
        uint32_t page = k->picks[f->picked[grade]++].page;
        if (!f->is_held || pick_may_take(s, k, page))
            return page;
        count_new(f, s, grade, 1);
    }
    return 0;
}

/*
 * The slots go into transit, and the pages that were picked, of each grade, or stay, belong to them. The next `most`
 * entries; true: there are more. If other threads had the lock, they may have taken pages that were picked: as many
 * more are created. LOCKING: the pool's lock and the turn.
 */
bool fill_lift(struct fill *f, struct pages *s, const struct requester *who, uint32_t most)
{
    for (; f->lifted < f->count && most; f->lifted++, most--) {
        struct fill_entry *e = &f->entries[f->lifted];
        bit_set(f->region->transit, e->slot);
        if (e->stays && f->is_held)
            continue; /* it belongs to the slot already */
        if (!e->stays)
            e->page = next_pick(f, s, e->grade);
        if (e->page)
            lift_page(f, s, who, e);
    }
    return f->lifted < f->count;
}

/*
 * Begins to pick pages of one grade for the slots that lack them, unless as many can be created. Of grades the larger
 * come first. Then come pick_some and pick_sort, and then fill_picked. LOCKING: the pool's lock and the turn.
 */
void fill_pick(struct fill *f, struct pages *s, const struct requester *who, uint32_t grade)
{
    uint32_t shift = s->shifts[grade], missing = f->lack[grade], before = 0;
    for (uint32_t larger = grade + 1; larger < GRADES; larger++)
        before += f->lack[larger];
    f->pickers[grade] = (struct picker){.who = who,
                                        .only_shift = shift,
                                        .latest = f->growth >> shift < missing ? s->fences->now : 0,
                                        .most = missing,
                                        .picks = f->picks + before};
}

/* The pages of the grade were picked: what is missing beyond that is created. LOCKING: the turn. */
void fill_picked(struct fill *f, const struct pages *s, uint32_t grade)
{
    struct picker *k = &f->pickers[grade];
    leave_to_growth(k, f->lack[grade], f->growth >> s->shifts[grade]);
    uint32_t news = f->lack[grade] - k->count;
    uint64_t bytes = (uint64_t)news << s->shifts[grade];
    count_new(f, s, grade, news);
    f->growth -= bytes < f->growth ? bytes : f->growth;
}

/*
 * Plans for the slots [from, to), found fit by heap_find under the same lock. On PLAN_READY the slots are in transit,
 * and the driver's part must follow. `growth`: bytes of new pages that are created although free pages could move, see
 * budget.c; `allowance`: bytes that may be created at all. LOCKING: the pool's lock and the turn.
 */
enum plan fill_plan(struct fill *f, struct pages *s, const struct requester *who, struct region *r, uint32_t from,
                    uint32_t to, uint64_t growth, uint64_t allowance)
{
    if (!fill_make_room(f, to - from))
        return PLAN_NO_MEMORY;
    list_missing(f, s, who, r, from, to);
    f->growth = growth;
    for (uint32_t grade = GRADES; grade-- > 0;) {
        fill_pick(f, s, who, grade);
        if (f->lack[grade])
            pick_pages(s, &f->pickers[grade]);
        fill_picked(f, s, grade);
    }
    if (f->create_bytes > allowance)
        return PLAN_OVER_LIMIT;
    if (!table_reserve(&s->table, f->creates))
        return PLAN_NO_MEMORY;
    while (fill_lift(f, s, who, UINT32_MAX)) {}
    return PLAN_READY;
}

/*
 * The same for many slots, step by step, so that the lock may be let go of between: afterwards the slots that lack a
 * page are in transit, and pages that stay belong to theirs, so that heap_take can follow under the same lock. Then
 * come the picks of each grade, and fill_lift. To undo it: fill_publish with an error, and the block goes back to the
 * heap. False: no host memory, nothing changed. LOCKING: as fill_plan.
 */
bool fill_hold(struct fill *f, struct pages *s, const struct requester *who, struct region *r, uint32_t from,
               uint32_t to, uint64_t growth)
{
    if (!fill_make_room(f, to - from))
        return false;
    list_missing(f, s, who, r, from, to);
    f->growth = growth;
    f->is_held = true;
    for (uint32_t i = 0; i < f->count; i++) {
        bit_set(r->transit, f->entries[i].slot);
        if (f->entries[i].stays)
            lift_page(f, s, who, &f->entries[i]);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------ the driver's part */

/*
 * The driver's part, in three steps, so that the caller can measure each. After a failure of one there is no next.
 * `prop`: the kind of the pool's pages. LOCKING: the turn, without the pool's lock.
 */
CUresult fill_create(struct fill *f, const struct device *d, const CUmemAllocationProp *prop)
{
    for (uint32_t i = 0; i < f->count; i++) {
        struct fill_entry *e = &f->entries[i];
        if (e->page)
            continue;
        CUresult result = d->driver->cuMemCreate(&e->handle, region_page_bytes(f->region, e->slot), prop, 0);
        if (result)
            return result;
        e->created = true;
    }
    return CUDA_SUCCESS;
}

/* What cannot be used where it is mapped now leaves. LOCKING: as fill_create. */
CUresult fill_unmap(struct fill *f, struct device *d)
{
    for (uint32_t i = 0; i < f->count; i++) {
        struct fill_entry *e = &f->entries[i];
        CUresult result = e->old ? region_unmap(d, f->region, e->slot) : CUDA_SUCCESS;
        if (result)
            return result;
        e->unmapped = e->old != 0;
        if (e->home && (result = region_unmap(d, e->home, e->home_slot)))
            return result;
        e->left = e->home != NULL;
    }
    return CUDA_SUCCESS;
}

static CUresult map_pages(struct fill *f, struct device *d)
{
    for (uint32_t i = 0; i < f->count; i++) {
        struct fill_entry *e = &f->entries[i];
        if (e->stays)
            continue;
        CUresult result = region_map(d, f->region, e->slot, e->handle);
        if (result)
            return result;
        e->mapped = true;
    }
    return CUDA_SUCCESS;
}

/* One call for each run of neighbouring slots: its time grows with the pages, but there are fewer calls. */
static CUresult grant_access(struct fill *f, const struct device *d, const CUmemAccessDesc *who, uint32_t count)
{
    uint32_t from = 0, to = 0; /* the run so far */
    for (uint32_t i = 0; i < f->count; i++) {
        const struct fill_entry *e = &f->entries[i];
        if (!e->mapped)
            continue;
        from = e->slot == to ? from : e->slot;
        to = e->slot + region_span(f->region, e->slot);
        if (i + 1 < f->count && f->entries[i + 1].slot == to && f->entries[i + 1].mapped)
            continue;
        CUresult result = region_grant(d, f->region, from, to, who, count);
        if (result)
            return result;
    }
    return CUDA_SUCCESS;
}

static void undo_maps(struct fill *f, struct device *d)
{
    for (uint32_t i = f->count; i-- > 0;)
        if (f->entries[i].mapped && region_unmap(d, f->region, f->entries[i].slot) == CUDA_SUCCESS)
            f->entries[i].mapped = false;
}

/* `who`: the devices that may use what is mapped, `count` of them. */
CUresult fill_map(struct fill *f, struct device *d, const CUmemAccessDesc *who, uint32_t count)
{
    CUresult result = map_pages(f, d);
    if (!result)
        result = grant_access(f, d, who, count);
    if (result)
        undo_maps(f, d);
    return result;
}

/* ---------------------------------------------------------------------------------------------------------- the end */

static void publish_entry(struct fill *f, struct pages *s, struct fill_entry *e, bool done)
{
    struct region *r = f->region;
    struct slot_ref target = {r->number, e->slot};
    bit_clear(r->transit, e->slot);
    if (e->unmapped)
        pages_unlink(s, r, e->slot);
    if (e->left)
        pages_unlink(s, e->home, e->home_slot);
    if (e->created) {
        e->page = pages_add(s, e->handle, region_page_bytes(f->region, e->slot));
        pages_add_spare(s, e->page);
        e->past = pages_lift(s, e->page, target);
    } else if (!e->page) {
        return; /* never created */
    }
    if (e->mapped) {
        if (!done)
            bit_set(r->broken, e->slot); /* the driver would not undo it: the slot is lost, its page is not */
        pages_link(s, e->page, r, e->slot);
    }
    if (done)
        pages_settle(s, e->page);
    else
        pages_drop(s, e->page, e->past);
}

/*
 * The next `most` entries; true: there are more. The lock may be let go of between: each slot stays in transit until it
 * is published. After a failure the caller gives the block back to the heap. LOCKING: the pool's lock and the turn.
 */
bool fill_publish(struct fill *f, struct pages *s, CUresult result, uint32_t most)
{
    f->creates = f->published ? f->creates : 0;
    for (; f->published < f->count && most; f->published++, most--) {
        f->creates += f->entries[f->published].created;
        publish_entry(f, s, &f->entries[f->published], result == CUDA_SUCCESS);
    }
    /* after a failure the block has yet to be given back */
    CHECK_SLOW(result || f->published < f->count || !pages_broken_rule(s));
    return f->published < f->count;
}
