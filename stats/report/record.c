/*
 * record.c: the last so many allocations and frees of a pool, kept in a ring and written as a trace when asked for.
 *
 * The ring is one mapping of our own. The system puts memory under it when recording is switched on: doing so record by record would cost
 * more than the records, under the lock. What is in it was written under the pool's lock, in the order in which it happened.
 *
 * A trace begins with the blocks that were live when its oldest record was written, so that it is whole whatever the ring has lost. Which those
 * were follows from the records and a picture of the pool (pieces.c): a block whose first record is a free was live; one without a record from
 * then until now is as the picture shows it. So the picture need not be one moment's. Ring and picture are copied in portions (look.c): the oldest
 * records first, then the picture, and after each pause what was written in it. If more is written in a pause than the ring has room for, the copy
 * begins again.
 *
 *            cenote_pool_record, option record                cenote_pool_record again, 0, end of the pool
 *     off -----------------------------------> recording ----------------------------------------> off
 *
 * CENOTE_TRACE=FILE in the environment records every pool from its opening and writes a trace when the pool, or the process, ends.
 *
 * LOCKING: the pool's lock guards the ring.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/exits.h"
#include "base/file.h"
#include "pool/arenas/look.h"
#include "pool/life/pool.h"
#include "pool/life/pools.h"
#include "stats/account/record.h"
#include "stats/records/records.h"
#include "stats/report/pieces.h"

#define RECORDS_MAX 1000000000u    /* as options.def says */
#define RECORDS_FOR_ENVIRONMENT (1u << 20)
#define SYSTEM_PAGE 4096u           /* or more: then some pages are written twice */
#define RECORDS_FILLED (1u << 22)   /* chosen: 160 MiB, some 0.1 s; what a longer ring has beyond that is filled as it is written */
#define RECORDS_LEAST  (1u << 16)   /* chosen: room in each ring, 6 ms of nothing but allocations and frees: what may happen while a copy pauses */
#define RECORDS_AT_ONCE 1000u       /* copied in one portion; cold memory */
#define RECORDS_A_UNIT 2u           /* of work, see look.c */
#define COPIES_MAX    100          /* begun, for one trace */

static const char ops[4] = {'a', 'f', 'u', 's'};

/* The system puts memory under the beginning of a new ring. Written, as reading it would only map the page of zeros. */
static void fill(struct ring_entry *entries, uint64_t count)
{
    uint64_t filled = count < RECORDS_FILLED ? count : RECORDS_FILLED;
    madvise(entries, count * sizeof *entries, MADV_HUGEPAGE); /* fewer faults; a refusal costs nothing else */
    for (uint64_t i = 0; i < filled; i += SYSTEM_PAGE / sizeof *entries)
        *(volatile uint64_t *)&entries[i].ns = 0;
}

/* The ring of the pool becomes another one, and the old one goes. LOCKING: the pool's lock, which is given back. */
static void change_ring(cenote_pool *pool, struct ring next)
{
    struct ring old = pool->recorder.ring;
    pool->recorder.ring = next;
    lock_give(&pool->lock);
    memory_unmap(old.entries, old.room * sizeof *old.entries);
}

static int make_ring(struct ring *made, uint64_t records)
{
    struct ring ring = {.room = !records || records > RECORDS_LEAST ? records : RECORDS_LEAST, .kept = records, .begun_ns = clock_ns()};
    if (records > RECORDS_MAX)
        return error_set(CENOTE_INVALID, 0, "%llu records: a ring holds up to %u", (unsigned long long)records, RECORDS_MAX);
    if (records && !(ring.entries = memory_map(ring.room * sizeof *ring.entries)))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a ring of %llu records of %zu bytes", (unsigned long long)records,
                         sizeof *ring.entries);
    if (records)
        fill(ring.entries, ring.room);
    *made = ring;
    return CENOTE_OK;
}

int cenote_pool_record(cenote_pool *pool, uint64_t records)
{
    struct ring ring;
    int error = pool_usable(pool);
    if (error || (error = make_ring(&ring, records)))
        return error;
    if (!(error = pool_take_lock(pool)))
        change_ring(pool, ring);
    else
        memory_unmap(ring.entries, ring.room * sizeof *ring.entries);
    return error;
}

void record_forget(cenote_pool *pool)
{
    lock_take(&pool->lock);
    change_ring(pool, (struct ring){0});
}

/* --------------------------------------------------------------------------------------------------------------------------- the copy */

struct copy {
    struct look look;               /* the first member, for after_pause */
    struct ring_entry *entries;     /* oldest first */
    uint64_t first, count;          /* number of the oldest, of all that were written; how many */
    cenote_piece *pieces;           /* what lies where; of blocks without a record */
    size_t piece_count;
    size_t entry_bytes, piece_bytes;
    uint64_t ring_ns;               /* when the ring was begun that is being copied */
    uint64_t begun_ns;              /* when the first of the records may have happened */
    uint64_t reserved;              /* now */
    bool     is_last;               /* by the thread that ends the pool */
    bool     has_gap;               /* records were lost that had to be copied */
    struct index decided;           /* address of a block with a record -> see live_at_the_beginning */
    struct index ids;               /* address of a block that is live where the writer is -> its id */
    struct index streams;           /* key -> number */
    uint64_t tags[(CENOTE_TAGS_MAX + 1) / 64 + 1];  /* bits: named before */
    uint32_t serial;                /* the id given last */
    struct records_writer *writer;
    uint32_t device;
};

static void copy_close(struct copy *c)
{
    memory_unmap(c->entries, c->entry_bytes);
    memory_unmap(c->pieces, c->piece_bytes);
    index_close(&c->decided);
    index_close(&c->ids);
    index_close(&c->streams);
}

static uint64_t room_of(const struct copy *c) { return c->entry_bytes / sizeof *c->entries; }

/* Copies a portion of what was written since. False: that was all there is, or nothing more can be copied. LOCKING: the pool's lock. */
static bool copy_records(struct copy *c)
{
    const struct ring *r = &c->look.pool->recorder.ring;
    uint64_t next = c->first + c->count, left = r->written - next, room = room_of(c) - c->count;
    if (!r->entries || r->begun_ns != c->ring_ns || left > r->room)
        c->has_gap = true;
    if (c->has_gap || !left || !room)
        return false;
    uint64_t at = r->next >= left ? r->next - left : r->next + r->room - left, count = left < RECORDS_AT_ONCE ? left : RECORDS_AT_ONCE;
    count = count < room ? count : room;
    count = count < r->room - at ? count : r->room - at;
    memcpy(c->entries + c->count, r->entries + at, count * sizeof *c->entries);
    c->count += count;
    c->look.work += (uint32_t)(count / RECORDS_A_UNIT);
    return true;
}

static void copy_after_pause(struct look *look)
{
    struct copy *c = (struct copy *)(void *)look;
    if (copy_records(c))
        copy_records(c); /* and no more: what is left waits for the next pause */
}

enum outcome { COPY_DONE, COPY_AGAIN, COPY_NOTHING };

/* One attempt, with the room there is. What is needed, if it was too little, in *entries and *pieces. LOCKING: none on entry and return. */
static enum outcome copy_once(struct copy *c, cenote_pool *pool, uint64_t *entries, size_t *pieces)
{
    struct sized_list list = {.items = c->pieces, .room = c->piece_bytes / sizeof *c->pieces, .size = sizeof *c->pieces};
    const struct ring *r = &pool->recorder.ring;
    if (c->is_last)
        look_begin_held(&c->look, pool);
    else if (look_begin(&c->look, pool))
        return COPY_NOTHING;
    c->ring_ns = r->begun_ns;
    c->first = r->written - ring_count(r);
    c->count = 0;
    c->has_gap = false;
    while (copy_records(c))
        look_goes_on(&c->look, 0);
    c->look.after_pause = copy_after_pause;
    pieces_draw(&c->look, NULL, &list);
    while (copy_records(c))
        look_goes_on(&c->look, 0);
    bool whole = !c->has_gap && c->first + c->count == r->written && list.count <= list.room;
    enum outcome outcome = !r->entries ? COPY_NOTHING : whole ? COPY_DONE : COPY_AGAIN;
    *entries = r->written - c->first;
    *pieces = c->piece_count = list.count;
    c->reserved = pool->store.pages.reserved;
    look_end(&c->look);
    c->begun_ns = outcome == COPY_DONE && c->first ? c->entries[0].ns : c->ring_ns;
    return outcome;
}

/* The pool goes on: while there was not enough room, or the ring came round in a pause, it is copied again. */
static int copy_open(struct copy *c, cenote_pool *pool)
{
    uint64_t entries = 0, more = RECORDS_AT_ONCE; /* for what is written meanwhile */
    size_t pieces = 1;
    enum outcome outcome = COPY_AGAIN;
    for (int copies = 0; copies < COPIES_MAX && outcome == COPY_AGAIN; copies++) {
        if (!memory_make_room((void **)&c->entries, &c->entry_bytes, (entries + more) * sizeof *c->entries) ||
            !memory_make_room((void **)&c->pieces, &c->piece_bytes, pieces * sizeof *c->pieces))
            return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a copy of %zu records and %zu blocks", (size_t)entries, pieces);
        outcome = copy_once(c, pool, &entries, &pieces);
        more += more < RECORDS_LEAST ? more : 0;
    }
    return outcome == COPY_DONE ? CENOTE_OK :
           outcome == COPY_NOTHING ? error_set(CENOTE_INVALID, 0, "nothing is recorded: cenote_pool_record, or the option record, comes first") :
           error_set(CENOTE_BUSY, 0, "the pool wrote more records than its ring holds while they were copied, %d times: record more of them",
                     COPIES_MAX);
}

/* ---------------------------------------------------------------------------------------------------------------------- the records */

#define WAS_FREE UINT32_MAX
_Static_assert(RECORDS_MAX < WAS_FREE, "numbers of records, from 1");

/*
 * The blocks with a record: was there one at this address before, in `decided`? The number of the record that frees it, from 1, or WAS_FREE.
 * False: no memory.
 */
static bool live_at_the_beginning(struct copy *c)
{
    for (uint64_t i = 0; i < c->count; i++) {
        const struct ring_entry *e = &c->entries[i];
        if ((ops[e->op] != 'a' && ops[e->op] != 'f') || index_find(&c->decided, e->at))
            continue;
        if (!index_reserve(&c->decided, 1))
            return false;
        index_add(&c->decided, e->at, ops[e->op] == 'f' ? (uint32_t)i + 1 : WAS_FREE);
    }
    return true;
}

/* Its number in the trace: 0 is the legacy default stream. Beyond what a trace has numbers for, streams share them. */
static bool number_of_stream(struct copy *c, uint64_t key, uint32_t *number)
{
    uint64_t where = ((key ^ key >> 62 << 45) + 1) << 9; /* an index wants addresses; the kind of a key goes where ids do not reach */
    *number = 0;
    if (key == KEY_LEGACY)
        return true;
    uint32_t found = index_find(&c->streams, where);
    if (!found) {
        if (!index_reserve(&c->streams, 1))
            return false;
        found = c->streams.count + 1;
        index_add(&c->streams, where, found);
    }
    *number = 1 + (found - 1) % (RECORD_STREAMS_MAX - 1);
    return true;
}

static bool write_one(struct copy *c, const struct ring_entry *e, uint32_t id)
{
    struct record r = {.t_ns = e->ns - c->begun_ns, .op = (enum record_op)ops[e->op], .id = id, .bytes = e->bytes, .device = c->device,
                       .tag = e->tag};
    char label[sizeof(((cenote_row *)NULL)->name)] = "";
    if (!number_of_stream(c, e->stream, &r.stream))
        return false;
    if (r.op == RECORD_STEP)
        r.stream = 0;
    if (r.tag && !bit_is_set(c->tags, r.tag)) {
        bit_set(c->tags, r.tag);
        label_path(r.tag, label, sizeof label);
    }
    records_write_labelled(c->writer, &r, e->at, label, e->reserved);
    return true;
}

/* A block has its id from here on. */
static bool write_born(struct copy *c, const struct ring_entry *e)
{
    CHECK(!index_find(&c->ids, e->at)); /* what was there has been freed */
    if (!index_reserve(&c->ids, 1))
        return false;
    index_add(&c->ids, e->at, ++c->serial);
    return write_one(c, e, c->serial);
}

/* The blocks that were there before the oldest record come first, and are as old as that. */
static bool write_first(struct copy *c)
{
    bool fine = true;
    uint64_t reserved = c->count ? c->entries[0].reserved : c->reserved;
    for (size_t i = 0; fine && i < c->piece_count; i++) {
        const cenote_piece *p = &c->pieces[i];
        struct ring_entry e = {c->begun_ns, p->address, p->stream_id, p->requested, 0, p->tag & MARK_TAG, reserved};
        if (p->state == CENOTE_PIECE_LIVE && !index_find(&c->decided, p->address))
            fine = write_born(c, &e);
    }
    for (uint64_t i = 0; fine && i < c->count; i++) {
        struct ring_entry e = c->entries[i];
        if (ops[e.op] != 'f' || index_find(&c->decided, e.at) != i + 1)
            continue;
        e.ns = c->begun_ns;
        e.op = 0;
        e.reserved = reserved;
        fine = write_born(c, &e);
    }
    return fine;
}

static bool write_records(struct copy *c)
{
    bool fine = write_first(c);
    for (uint64_t i = 0; fine && i < c->count; i++) {
        const struct ring_entry *e = &c->entries[i];
        char op = ops[e->op];
        if (op == 'a')
            fine = write_born(c, e);
        else
            fine = write_one(c, e, op == 'f' ? index_remove(&c->ids, e->at) : op == 'u' ? index_find(&c->ids, e->at) : 0);
    }
    return fine;
}

static int no_memory(void)
{
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory left to find out which blocks a trace begins with");
}

static int write_copy(struct copy *c, const char *path)
{
    if (!live_at_the_beginning(c))
        return no_memory();
    c->writer = records_create_labelled(path);
    if (!c->writer)
        return file_error(path);
    if (!write_records(c)) {
        records_abandon(c->writer);
        return no_memory();
    }
    return records_finish(c->writer) ? CENOTE_OK : file_error(path);
}

static int save(cenote_pool *pool, const char *path, bool is_last)
{
    struct copy c = {.device = (uint32_t)pool->config.device->ordinal, .is_last = is_last};
    if (!path || !*path)
        return error_set(CENOTE_INVALID, 0, "a trace needs the name of a file");
    int error = copy_open(&c, pool);
    if (!error)
        error = write_copy(&c, path);
    copy_close(&c);
    return error;
}

int cenote_pool_record_save(cenote_pool *pool, const char *path)
{
    int error = pool_usable(pool);
    return error ? error : save(pool, path, false);
}

/* ------------------------------------------------------------------------------------------------------------------- the environment */

/* FILE of the first pool, FILE with its number before the endings of another; %p is the process. False: too long. */
static bool trace_path(const char *chosen, uint32_t number, char path[PATH_MAX])
{
    const char *name = strrchr(chosen, '/') ? strrchr(chosen, '/') + 1 : chosen;
    const char *ending = *name && strchr(name + 1, '.') ? strchr(name + 1, '.') : name + strlen(name);
    size_t length = 0;
    for (const char *c = chosen; length < PATH_MAX - 32; c++) {
        if (c == ending && number > 1)
            length += (size_t)sprintf(path + length, ".%u", number);
        if (c[0] == '%' && c[1] == 'p')
            length += (size_t)sprintf(path + length, "%d", (int)getpid()), c++;
        else if (!(path[length++] = *c))
            return true;
    }
    return false;
}

static void save_for_environment(cenote_pool *pool, bool is_last)
{
    char path[PATH_MAX];
    const char *chosen = secure_getenv("CENOTE_TRACE");
    if (!chosen || !*chosen || !pool->recorder.trace_number)
        return;
    if (!trace_path(chosen, pool->recorder.trace_number, path))
        fprintf(stderr, "cenote: CENOTE_TRACE is too long\n");
    else if (save(pool, path, is_last))
        fprintf(stderr, "cenote: no trace was written: %s\n", cenote_message());
}

/*
 * Of pools that are open still: the default ones always are. No driver call is made. In a fork a thread that does not exist there may have the locks;
 * a thread that exits from a watch function has some itself, and so may one that exits from a handler of a signal.
 */
static void process_ends(void)
{
    if (pool_refuses())
        return;
    if (!lock_settle(&pools_lock, EXIT_PATIENCE))
        return;
    for (cenote_pool *pool = NULL; (pool = pool_next_on_device(NULL, pool));)
        if (lock_settle(&pool->lock, EXIT_PATIENCE))
            save_for_environment(pool, false);
        else
            fprintf(stderr, "cenote: no trace was written: the program ended inside a call of cenote\n");
}

int record_open(cenote_pool *pool)
{
    static _Atomic(uint32_t) traces;
    const char *chosen = secure_getenv("CENOTE_TRACE");
    uint64_t records = pool->config.options.record;
    if (chosen && *chosen) {
        pool->recorder.trace_number = atomic_fetch_add(&traces, 1) + 1;
        records = records ? records : RECORDS_FOR_ENVIRONMENT;
        if (pool->recorder.trace_number == 1 && !exits_call(process_ends))
            return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "the system will not call at the end of the process: CENOTE_TRACE cannot be served");
    }
    struct ring ring;
    int error = records ? make_ring(&ring, records) : CENOTE_OK;
    if (records && !error) {
        lock_take(&pool->lock);
        change_ring(pool, ring);
    }
    return error;
}

void record_close(cenote_pool *pool)
{
    save_for_environment(pool, true);
    record_forget(pool);
}
