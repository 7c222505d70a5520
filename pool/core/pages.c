/*
 * pages.c: physical pages, where each is mapped, and whose bytes lie on it.
 *
 * A page is FREE when no live byte lies on it, whatever the free range around it looks like; the bytes of a pending
 * block count as live. Free pages are what moves. A page may be mapped at several slots (aliases). At any time at most
 * one slot OWNS it: the one under live bytes (invariant 3). When a page is harvested its old slots keep their mapping,
 * so that the old range works again, without a driver call, once the page is free again.
 *
 *              own                         lift (fill.c, to another slot)
 *      free --------> owned       free ---------------------------------> owned by the new slot, alias at the old one
 *           <--------             spare (mapped nowhere) ---------------> owned
 *            disown               free ---- trim.c ----> leaving -------> gone
 *
 * Most pages are SOLE: mapped once, not being moved. Their struct page is neither read nor written at an allocation or
 * a free: the bits of their slot, which are written by the word, and the slot's tick say it all. `owner` and `freed` of
 * struct page hold for the others only.
 *
 * A slot can be used by an arena if its page is free and was last used by that arena (stream order is enough) or is
 * complete, or the arena's stream waits for that use on the device (rule 1); and if the same range does not already use
 * that page at another slot. What lacks a page can be filled by fill.c, unless the slot is still in flight: it cannot
 * be unmapped before its last use is done (rule 3).
 *
 * LOCKING: every function here expects the pool's lock, but for pages_unmap_copies.
 */
#include "pool/core/pages.h"

#include "base/check.h"

bool pages_open(struct pages *s, uint32_t shift)
{
    for (uint32_t grade = 0; grade < GRADES; grade++)
        s->shifts[grade] = shift;
    if (!table_open(&s->table, sizeof(struct page), PAGES_MAX))
        return false;
    if (table_open(&s->regions, sizeof(struct region_entry), REGIONS_MAX))
        return true;
    table_close(&s->table);
    return false;
}

void pages_close(struct pages *s)
{
    table_close(&s->table);
    table_close(&s->regions);
}

/* ------------------------------------------------------------------------------------------------- looking at slots */

/* Begins a look at a range: no page has been met yet. */
void pages_look_anew(struct pages *s)
{
    if (++s->epoch == 0) { /* after 2^32 looks old epochs could be mistaken for new ones */
        for (uint32_t page = 1; page < s->table.used; page++)
            page_of(s, page)->met = 0;
        s->epoch = 1;
    }
}

/*
 * In a fixed region what was ever used there stays mapped. A page that is not fixed, or another arena's, comes from the
 * life that the region had before a private group took it over: no graph knows it.
 */
static bool mapping_is_fixed(const struct pages *s, const struct region *r, uint32_t slot)
{
    const struct page *p = page_of(s, r->page[slot]);
    return r->fixed && p->fixed && p->arena == r->arena;
}

static bool slot_may_be_unmapped(const struct pages *s, const struct requester *who, const struct region *r,
                                 uint32_t slot)
{
    return who->may_unmap && !mapping_is_fixed(s, r, slot) && !r->pins[slot] &&
           (fence_has_passed(s->fences, r->freed[slot], r->arena) || BREAKS(3));
}

/* A block elsewhere has the page, and the mapping stays (rule 4): no page can come here before that block is freed. */
bool pages_are_of_another(const struct pages *s, const struct region *r, uint32_t slot)
{
    const struct page *p = page_of(s, r->page[slot]);
    return r->page[slot] && !bit_is_set(r->sole, slot) && p->owner.region && !slot_ref_is(p->owner, r->number, slot) &&
           (mapping_is_fixed(s, r, slot) || r->pins[slot]);
}

/* May the page at this slot be used here by `who`? Meets the page: a second slot of the same look may not. */
static bool slot_has_page(struct pages *s, const struct requester *who, const struct region *r, uint32_t slot)
{
    struct page *p = page_of(s, r->page[slot]);
    if (p->leaving) /* also if a block lies there: then it sleeps, or is about to */
        return false;
    if (slot_ref_is(p->owner, r->number, slot)) {
        p->met = s->epoch;
        return true;
    }
    if (p->owner.region || p->met == s->epoch)
        return false;
    if (p->arena != who->arena && (p->fixed || !requester_comes_after(s, who, p->freed, p->arena)))
        return false;
    p->met = s->epoch;
    return true;
}

/* The slot maps a free page that the requester's stream may use once it waits for its last free. Meets the page. */
bool pages_may_stay(struct pages *s, const struct requester *who, const struct region *r, uint32_t slot)
{
    struct page *p = page_of(s, r->page[slot]);
    bool may = r->page[slot] && !bit_is_set(r->transit, slot) && !bit_is_set(r->broken, slot) && !p->owner.region &&
               !p->leaving && !p->fixed && p->met != s->epoch && p->freed <= who->orderable;
    if (may)
        p->met = s->epoch;
    return may;
}

/*
 * Does the slot lack a page? If so, *blocked says that none can be put there
 * now. Slots are looked at in rising order after pages_look_anew.
 */
bool pages_lack(struct pages *s, const struct requester *who, const struct region *r, uint32_t slot, bool *blocked)
{
    *blocked = false;
    if (bit_is_set(r->sole, slot))
        return false;
    if (bit_is_set(r->transit, slot) || bit_is_set(r->broken, slot)) {
        *blocked = true;
        return true;
    }
    if (!r->page[slot])
        return true;
    if (slot_has_page(s, who, r, slot))
        return false;
    /* it leaves, or stays if its source refuses */
    *blocked = page_of(s, r->page[slot])->leaving || !slot_may_be_unmapped(s, who, r, slot);
    return true;
}

/* ---------------------------------------------------------------------------------------- coming and going of bytes */

/*
 * Only regions in which some page may be free are looked through for one. They join the list when a page becomes free,
 * and leave it when a look finds none: an allocation touches no list, and a free only if its region is in none.
 */
static void list(struct pages *s, struct region *r)
{
    uint32_t *first = &s->listed[region_is_segment(r)];
    if (r->is_listed)
        return;
    r->is_listed = true;
    r->before_listed = 0;
    r->next_listed = *first;
    if (*first)
        region_of(s, *first)->before_listed = r->number;
    *first = r->number;
}

void pages_unlist(struct pages *s, struct region *r)
{
    if (!r->is_listed)
        return;
    r->is_listed = false;
    *(r->before_listed ? &region_of(s, r->before_listed)->next_listed : &s->listed[region_is_segment(r)]) =
        r->next_listed;
    if (r->next_listed)
        region_of(s, r->next_listed)->before_listed = r->before_listed;
}

/* Slots in transit get their owner from fill.c, the others have a page that pages_lack found good. */
void pages_own(struct pages *s, struct region *r, uint32_t from, uint32_t to)
{
    uint32_t last = region_first(r, to - 1);
    r->edges[from]++;
    r->edges[last] += last != from;
    bits_set(r->busy, from, to);
    for (uint32_t slot = from; (slot = bits_next(r->sole, slot, to, false)) < to; slot++) {
        if (bit_is_set(r->transit, slot)) {
            slot = bits_next(r->transit, slot, to, false) - 1; /* tens of thousands may be, side by side */
            continue;
        }
        struct page *p = page_of(s, r->page[slot]);
        CHECK(!p->owner.region || slot_ref_is(p->owner, r->number, slot)); /* invariant 3: one owner */
        p->owner = (struct slot_ref){r->number, slot};
    }
}

/*
 * A block of a private group came to the slots: their pages are that arena's and stay with it (rule 4), also those that
 * it took over as aliases of what another used last. Those in transit are fixed when they are lifted.
 */
void pages_fix(struct pages *s, struct region *r, uint32_t from, uint32_t to)
{
    for (uint32_t slot = from; slot < to; slot += region_span(r, slot)) {
        if (bit_is_set(r->transit, slot)) {
            slot = region_span(r, slot) > 1 ? slot : bits_next(r->transit, slot, to, false) - 1; /* as in pages_own */
            continue;
        }
        page_of(s, r->page[slot])->fixed = true;
        page_of(s, r->page[slot])->arena = r->arena;
    }
}

/* A block over the slots [from, seam) and one over [behind, to) become one: it begins and ends once. */
void pages_join(struct region *r, uint32_t from, uint32_t seam, uint32_t behind, uint32_t to)
{
    uint32_t ends = region_first(r, seam - 1), last = region_first(r, to - 1);
    r->edges[ends] -= ends != from;
    r->edges[behind]--;
    r->edges[last] -= last != behind;
    r->edges[last] += last != from;
}

void pages_disown(struct pages *s, struct region *r, uint32_t from, uint32_t to, tick freed)
{
    uint32_t end = region_first(r, to - 1);
    CHECK(r->edges[from] && r->edges[end]);
    r->edges[from]--;
    r->edges[end] -= end != from;
    uint32_t first = r->edges[from] ? from + region_span(r, from) : from,
             last = r->edges[end] && end >= first ? end : to;
    bits_clear(r->busy, first, last);
    list(s, r);
    for (uint32_t slot = from; slot < to; slot++)
        /* blocks that were pending come late with an early tick */
        r->freed[slot] = r->freed[slot] > freed ? r->freed[slot] : freed;
    for (uint32_t slot = first; (slot = bits_next(r->sole, slot, last, false)) < last; slot++) {
        struct page *p = page_of(s, r->page[slot]);
        if (!r->page[slot] || !slot_ref_is(p->owner, r->number, slot))
            continue; /* in transit when a fill failed, or a plan, which may come
                         before the table has any memory: nothing came */
        p->owner = (struct slot_ref){0, 0};
        p->freed = p->freed > r->freed[slot] ? p->freed : r->freed[slot];
        /* the program never had an abandoned block: the page is its last user's */
        p->arena = freed ? r->arena : p->arena;
        pages_settle(s, r->page[slot]);
        pages_forget_asleep(s, r->page[slot]);
    }
}

/* ---------------------------------------------------------------------------------------------------------- aliases */

static void set_home(struct pages *s, struct page *p, struct slot_ref home)
{
    if (p->home.region)
        bit_clear(region_of(s, p->home.region)->home, p->home.slot);
    p->home = home;
    if (home.region) {
        bit_set(region_of(s, home.region)->home, home.slot);
        list(s, region_of(s, home.region));
    }
}

/* The slot maps the page from now on: as its home if it is its first slot, otherwise as an alias behind the home. */
void pages_link(struct pages *s, uint32_t page, struct region *r, uint32_t slot)
{
    struct page *p = page_of(s, page);
    struct slot_ref here = {r->number, slot};
    CHECK(!r->page[slot]);
    CHECK(!s->mapped_once || !p->maps); /* invariant 25 */
    CHECK(region_is_segment(r) || p->bytes == region_page_bytes(r, slot)); /* invariant 28 */
    r->page[slot] = page;
    p->maps++;
    p->pins += r->pins[slot];
    if (!p->home.region) {
        r->next_alias[slot] = (struct slot_ref){0, 0};
        set_home(s, p, here);
        return;
    }
    struct region *home = region_of(s, p->home.region);
    r->next_alias[slot] = home->next_alias[p->home.slot];
    home->next_alias[p->home.slot] = here;
}

/*
 * The tick of its last free, if the page is of that arena from now on. Another arena freed it: if the device is done
 * with that, but the stream of this arena has no event that says so, none may ever come, because it owes nothing. 0:
 * never.
 */
static tick freed_for(const struct pages *s, const struct page *p, uint32_t arena)
{
    bool is_done = p->arena != arena && fence_has_passed(s->fences, p->freed, p->arena);
    return is_done && !fence_has_passed(s->fences, p->freed, arena) ? 0 : p->freed;
}

/* Makes the page sole, if it is mapped once and not on the move: the bits of its slot say what struct page said. */
static void make_sole(struct pages *s, struct page *p)
{
    struct region *r = region_of(s, p->home.region);
    uint32_t slot = p->home.slot;
    if (p->arena != r->arena && !p->owner.region && !fence_has_passed(s->fences, p->freed, p->arena))
        return; /* another stream may still use it, which the slot cannot express */
    if (p->leaving || bit_is_set(r->transit, slot) || bit_is_set(r->broken, slot) ||
        (p->owner.region && !slot_ref_is(p->owner, r->number, slot)))
        return;
    tick freed = freed_for(s, p, r->arena);
    if (r->freed[slot] < freed)
        r->freed[slot] = freed;
    p->arena = r->arena;
    p->owner = (struct slot_ref){0, 0};
    bit_set(r->sole, slot);
}

void pages_unlink(struct pages *s, struct region *r, uint32_t slot)
{
    uint32_t page = r->page[slot];
    struct page *p = page_of(s, page);
    CHECK(!slot_ref_is(p->owner, r->number, slot));
    if (bit_is_set(r->sole, slot)) {
        bit_clear(r->sole, slot);
        p->freed = r->freed[slot];
    }
    if (slot_ref_is(p->home, r->number, slot)) {
        set_home(s, p, r->next_alias[slot]);
    } else {
        struct slot_ref before = p->home;
        while (!slot_ref_is(region_of(s, before.region)->next_alias[before.slot], r->number, slot))
            before = region_of(s, before.region)->next_alias[before.slot];
        region_of(s, before.region)->next_alias[before.slot] = r->next_alias[slot];
    }
    r->page[slot] = 0;
    p->pins -= r->pins[slot];
    p->maps--;
    pages_settle(s, page);
}

/* ----------------------------------------------------------------------------------------- moving and keeping pages */

/* No arena may use the free page at its place any more; what the bits of its slot said goes into struct page. */
static void take_from_slots(struct pages *s, uint32_t page)
{
    struct page *p = page_of(s, page);
    CHECK(!p->owner.region && !p->leaving);
    if (p->home.region) {
        struct region *r = region_of(s, p->home.region);
        if (bit_is_set(r->sole, p->home.slot)) {
            p->freed = r->freed[p->home.slot];
            bit_clear(r->sole, p->home.slot);
        }
    } else {
        *(p->before_spare ? &page_of(s, p->before_spare)->next_spare : &s->spare) = p->next_spare;
        if (p->next_spare)
            page_of(s, p->next_spare)->before_spare = p->before_spare;
        s->spares--;
        s->spare_bytes -= p->bytes;
    }
}

/* Who has called this unmaps it without the lock; of what is constant, who comes next. */
static void drop_copy(struct pages *s, struct page *p)
{
    if (p->copy) {
        p->copy->next = s->copies;
        s->copies = p->copy;
        p->copy = NULL;
    }
}

/* Takes a free page for `target`: from now on no other slot may use it. */
struct page_past pages_lift(struct pages *s, uint32_t page, struct slot_ref target)
{
    struct page *p = page_of(s, page);
    take_from_slots(s, page);
    drop_copy(s, p); /* of constant contents: the next arena there may have the number of this one */
    struct page_past past = {p->arena, p->fixed, p->freed};
    p->owner = target;
    p->freed = freed_for(s, p, region_of(s, target.region)->arena);
    p->arena = region_of(s, target.region)->arena;
    p->fixed = region_of(s, target.region)->fixed;
    return past;
}

/* The target maps the page now, or an alias has gone: if one slot is left, the page is sole again. */
void pages_settle(struct pages *s, uint32_t page)
{
    if (page_of(s, page)->maps == 1)
        make_sole(s, page_of(s, page));
}

/* The move did not happen: the page is free again, as it was. */
void pages_drop(struct pages *s, uint32_t page, struct page_past past)
{
    struct page *p = page_of(s, page);
    p->owner = (struct slot_ref){0, 0};
    p->arena = past.arena;
    p->fixed = past.fixed;
    p->freed = past.freed;
    pages_settle(s, page);
    if (!p->home.region)
        pages_add_spare(s, page);
}

/*
 * The free page is on its way back to the driver: it stays mapped where
 * it is until trim.c has unmapped it, but no arena may use it.
 */
void pages_leave(struct pages *s, uint32_t page)
{
    take_from_slots(s, page);
    page_of(s, page)->leaving = true;
}

/* The driver refused to take the page back. */
void pages_stay(struct pages *s, uint32_t page)
{
    struct page *p = page_of(s, page);
    p->leaving = false;
    pages_settle(s, page);
    if (!p->home.region)
        pages_add_spare(s, page);
}

/* Segments, which have no handle, are of no grade. */
static void count_held(struct pages *s, CUmemGenericAllocationHandle handle, uint64_t bytes, uint64_t change)
{
    for (uint32_t grade = 0; grade < GRADES && handle; grade++)
        s->held[grade] += bytes == 1ull << s->shifts[grade] ? change : 0;
}

/* The table has room: table_reserve was asked before the page was created. */
uint32_t pages_add(struct pages *s, CUmemGenericAllocationHandle handle, uint64_t bytes)
{
    uint32_t page = table_take(&s->table);
    CHECK(page);
    page_of(s, page)->handle = handle;
    page_of(s, page)->bytes = bytes;
    s->reserved += bytes;
    count_held(s, handle, bytes, bytes);
    return page;
}

void pages_add_spare(struct pages *s, uint32_t page)
{
    struct page *p = page_of(s, page);
    p->before_spare = 0;
    p->next_spare = s->spare;
    if (s->spare)
        page_of(s, s->spare)->before_spare = page;
    s->spare = page;
    s->spares++;
    s->spare_bytes += p->bytes;
}

/* It has no memory, and no slot maps it. */
static void give_number(struct pages *s, uint32_t page)
{
    struct page *p = page_of(s, page);
    CHECK(!p->maps && !p->owner.region && p->wakefulness == AWAKE);
    drop_copy(s, p);
    p->bytes = 0; /* tells that the number is not in use */
    table_give(&s->table, page);
}

/* The driver has the page back. */
void pages_remove(struct pages *s, uint32_t page)
{
    struct page *p = page_of(s, page);
    s->reserved -= p->bytes;
    count_held(s, p->handle, p->bytes, 0 - p->bytes);
    give_number(s, page);
}

/* ----------------------------------------------------------------------------------------------------------- asleep */

/*
 * The page is about to sleep, or to be copied: what the bits of its
 * slot said goes into struct page, and no arena may use it.
 */
void pages_doze(struct pages *s, uint32_t page)
{
    struct page *p = page_of(s, page);
    struct region *r = region_of(s, p->home.region);
    CHECK(p->maps && !p->leaving && !p->pins);
    if (bit_is_set(r->sole, p->home.slot)) {
        p->freed = r->freed[p->home.slot];
        p->owner = bit_is_set(r->busy, p->home.slot) ? p->home : (struct slot_ref){0, 0};
        bit_clear(r->sole, p->home.slot);
    }
    p->leaving = true;
    p->wakefulness = DOZING;
    s->sleepers++;
    list(s, r); /* invariant 23: no bit says any more that it is not free */
}

/* It does not go to sleep after all, or has woken. */
void pages_rouse(struct pages *s, uint32_t page)
{
    s->sleepers--;
    page_of(s, page)->wakefulness = AWAKE;
    pages_stay(s, page);
}

/* It has memory from now on, by this handle; 0: the driver has that. */
void pages_hold(struct pages *s, uint32_t page, CUmemGenericAllocationHandle handle)
{
    struct page *p = page_of(s, page);
    CHECK(p->leaving && !p->handle != !handle);
    count_held(s, p->handle ? p->handle : handle, p->bytes, handle ? p->bytes : 0 - p->bytes);
    s->reserved += handle ? p->bytes : 0 - p->bytes;
    s->asleep -= handle ? p->bytes : 0 - p->bytes;
    p->handle = handle;
}

/* None of its slots is of use any more; it still holds memory if the driver has refused to take that. */
void pages_sleep(struct pages *s, uint32_t page, struct sleep_copy *copy)
{
    struct page *p = page_of(s, page);
    CHECK(p->leaving && p->maps && p->wakefulness == DOZING);
    p->wakefulness = ASLEEP;
    p->copy = copy;
    p->serial = 0; /* what comes in its place is other memory: an export says so */
    pages_forget_asleep(s, page);
}

/* The thread brings it memory: it does not go meanwhile. */
void pages_stir(struct pages *s, uint32_t page)
{
    CHECK(page_of(s, page)->wakefulness == ASLEEP);
    page_of(s, page)->wakefulness = STIRRING;
}

/* It is mapped again, with what was kept of it; or it sleeps on. */
void pages_wake(struct pages *s, uint32_t page, bool wakes)
{
    struct page *p = page_of(s, page);
    CHECK(p->wakefulness == STIRRING && (p->handle || !wakes));
    p->wakefulness = wakes ? AWAKE : ASLEEP;
    p->copy = wakes && p->copy && !p->copy->is_constant ? NULL : p->copy;
    if (wakes)
        pages_rouse(s, page);
    else
        pages_forget_asleep(s, page);
}

/* The program may write there once the page is awake: the next sleep copies it anew. */
void pages_forget_constant(struct pages *s, uint32_t page)
{
    struct page *p = page_of(s, page);
    if (p->wakefulness < ASLEEP)
        drop_copy(s, p);
    else if (p->copy)
        p->copy->is_constant = false;
}

/* It leaves the slots that are of no use; one that the driver would not unmap keeps it. */
static void leave_slots(struct pages *s, struct page *p)
{
    for (struct slot_ref at = p->home, next; at.region; at = next) {
        struct region *r = region_of(s, at.region);
        next = r->next_alias[at.slot];
        if (!bit_is_set(r->broken, at.slot))
            pages_unlink(s, r, at.slot);
    }
}

/*
 * If it sleeps, and neither a block nor a replay comes back to it, it goes, and so does its copy. What memory
 * it still has is free then.
 */
void pages_forget_asleep(struct pages *s, uint32_t page)
{
    struct page *p = page_of(s, page);
    if (p->wakefulness != ASLEEP || p->owner.region || p->fixed)
        return;
    drop_copy(s, p);
    leave_slots(s, p);
    p->wakefulness = AWAKE;
    if (p->handle) {
        pages_rouse(s, page);
        return;
    }
    s->sleepers--;
    s->asleep -= p->bytes;
    p->leaving = false;
    give_number(s, page);
}

/* LOCKING: none. */
void pages_unmap_copies(struct sleep_copy *copy)
{
    for (struct sleep_copy *next; copy; copy = next) {
        next = copy->next;
        memory_unmap(copy, copy->mapped);
    }
}

/* Gives the region its number. False: no host memory. */
bool pages_add_region(struct pages *s, struct region *r)
{
    r->number = table_take(&s->regions);
    if (!r->number)
        return false;
    TABLE_AT(struct region_entry, &s->regions, r->number)->region = r;
    s->addresses += r->bytes;
    return true;
}

void pages_remove_region(struct pages *s, struct region *r)
{
    pages_unlist(s, r);
    TABLE_AT(struct region_entry, &s->regions, r->number)->region = NULL;
    s->addresses -= r->bytes;
    table_give(&s->regions, r->number);
}
