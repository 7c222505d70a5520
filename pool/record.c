/*
 * record.c: the last so many allocations and frees of a pool, kept in a ring and written as a trace when asked for.
 *
 * The ring is one mapping of our own. The system puts memory under it when recording is switched on: doing so record by record would cost
 * more than the records, under the lock. What is in it was written under the pool's lock, in the order in which it happened. A trace is made
 * of a copy of the ring and of the blocks that are live at the same moment, without the lock: from those two follows, backwards, what was
 * live when the oldest record was written. That comes first, so that a trace is whole whatever the ring has lost.
 *
 *            cenote_record, option record                cenote_record again, 0, end of the pool
 *     off -----------------------------------> recording ----------------------------------------> off
 *
 * CENOTE_TRACE=FILE in the environment records every pool from its opening and writes a trace when the pool, or the process, ends.
 *
 * LOCKING: the pool's lock guards the ring. Saving takes it for the time of a copy.
 */
#include "pool/record.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "stats/records/records.h"

#define RECORDS_MOST 1000000000u    /* as options.def says */
#define RECORDS_FOR_ENVIRONMENT (1u << 20)
#define SYSTEM_PAGE 4096u           /* or more: then some pages are written twice */
#define RECORDS_FILLED (1u << 22)   /* chosen: 160 MiB, some 0.1 s; what a longer ring has beyond that is filled as it is written */

/* No device has 2^48 bytes. */
struct ring_entry {
    uint64_t ns;
    uint64_t at;
    uint64_t stream;                /* its key */
    uint64_t bytes : 48, op : 2, tag : MARK_TAG_BITS;
    uint64_t reserved;              /* by the pool then */
};
_Static_assert(sizeof(struct ring_entry) == RECORD_BYTES && MARK_TAG_BITS == 14, "48 + 2 + 14 bits are a word");
static const char ops[4] = {'a', 'f', 'u', 's'};

/* By the system's clock: the pool's may be the program's, and this is under the lock. */
void record_write(cenote_pool *pool, char op, uint64_t at, uint64_t bytes, uint64_t stream, uint32_t tag)
{
    struct ring *r = &pool->ring;
    r->entries[r->next] = (struct ring_entry){clock_ns(), at, stream, bytes, op == 'a' ? 0 : op == 'f' ? 1 : op == 'u' ? 2 : 3, tag,
                                              pool->pages.reserved};
    r->next = r->next + 1 < r->room ? r->next + 1 : 0;
    *(r->count < r->room ? &r->count : &r->lost) += 1;
}

/* The system puts memory under the beginning of a new ring. Written, as reading it would only map the page of zeros. */
static void fill(struct ring_entry *entries, uint64_t count)
{
    uint64_t filled = count < RECORDS_FILLED ? count : RECORDS_FILLED;
    madvise(entries, count * sizeof *entries, MADV_HUGEPAGE); /* fewer faults; a refusal costs nothing else */
    for (uint64_t i = 0; i < filled; i += SYSTEM_PAGE / sizeof *entries)
        *(volatile uint64_t *)&entries[i].ns = 0;
}

/* The ring of the pool becomes another one, and the old one goes. */
static void change_ring(cenote_pool *pool, struct ring next)
{
    lock_take(&pool->lock);
    struct ring old = pool->ring;
    pool->ring = next;
    lock_give(&pool->lock);
    memory_unmap(old.entries, old.room * sizeof *old.entries);
}

static int start(cenote_pool *pool, uint64_t records)
{
    struct ring ring = {.room = records, .begun_ns = clock_ns()};
    if (records > RECORDS_MOST)
        return error_set(CENOTE_INVALID, 0, "%llu records: a ring holds up to %u", (unsigned long long)records, RECORDS_MOST);
    if (records && !(ring.entries = memory_map(records * sizeof *ring.entries)))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a ring of %llu records of %zu bytes", (unsigned long long)records,
                         sizeof *ring.entries);
    if (records)
        fill(ring.entries, records);
    change_ring(pool, ring);
    return CENOTE_OK;
}

int cenote_record(cenote_pool *pool, uint64_t records)
{
    int error = pool_usable(pool);
    return error ? error : start(pool, records);
}

void record_forget(cenote_pool *pool)
{
    change_ring(pool, (struct ring){0});
}

/* ------------------------------------------------------------------------------------------------------------ the copy of one moment */

struct copy {
    struct ring_entry *entries;     /* oldest first */
    uint64_t count;
    cenote_piece *pieces;           /* what lies where after the last of them */
    size_t piece_count;
    size_t entry_bytes, piece_bytes;
    uint64_t begun_ns;              /* when the first of them may have happened */
    uint64_t reserved;              /* now */
    struct index first;             /* address of a block that was live then -> see live_at_the_beginning */
    struct index ids;               /* address of a block that is live where the writer is -> its id */
    struct index streams;           /* key -> number */
    uint64_t tags[(CENOTE_TAGS_MOST + 1) / 64 + 1];  /* bits: named before */
    uint32_t serial;                /* the id given last */
    struct records_writer *writer;
    uint32_t device;
};

static void copy_close(struct copy *c)
{
    memory_unmap(c->entries, c->entry_bytes);
    memory_unmap(c->pieces, c->piece_bytes);
    index_close(&c->first);
    index_close(&c->ids);
    index_close(&c->streams);
}

static void copy_ring(struct copy *c, const struct ring *r)
{
    uint64_t oldest = r->count < r->room ? 0 : r->next, tail = r->count - oldest;
    memcpy(c->entries, r->entries + oldest, tail * sizeof *c->entries);
    memcpy(c->entries + tail, r->entries, oldest * sizeof *c->entries);
    c->count = r->count;
    c->begun_ns = r->lost ? c->entries[0].ns : r->begun_ns;
}

/* The pool goes on while there is not enough room: it is asked again. */
static int copy_open(struct copy *c, cenote_pool *pool)
{
    bool whole = false, recording = true;
    size_t entries = 1, pieces = 1;
    while (!whole) {
        if (!memory_make_room((void **)&c->entries, &c->entry_bytes, entries * sizeof *c->entries) ||
            !memory_make_room((void **)&c->pieces, &c->piece_bytes, pieces * sizeof *c->pieces))
            return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a copy of %zu records and %zu blocks", entries, pieces);
        lock_take(&pool->lock);
        recording = pool->ring.entries != NULL;
        entries = pool->ring.count;
        struct sized_list list = {.items = c->pieces, .room = c->piece_bytes / sizeof *c->pieces, .size = sizeof *c->pieces};
        pieces_draw(pool, NULL, &list);
        pieces = c->piece_count = list.count;
        whole = entries <= c->entry_bytes / sizeof *c->entries && pieces <= c->piece_bytes / sizeof *c->pieces;
        if (whole && recording)
            copy_ring(c, &pool->ring);
        c->reserved = pool->pages.reserved;
        lock_give(&pool->lock);
    }
    return recording ? CENOTE_OK : error_set(CENOTE_INVALID, 0, "nothing is recorded: cenote_record, or the option record, comes first");
}

/* ---------------------------------------------------------------------------------------------------------------------- the records */

/*
 * From what is live now back to what was live before the oldest record, in `first`: a piece by its place from 1, a block that was freed since by
 * the place of that record behind all pieces. False: no memory.
 */
static bool live_at_the_beginning(struct copy *c)
{
    for (size_t i = 0; i < c->piece_count; i++) {
        if (c->pieces[i].state != CENOTE_PIECE_LIVE)
            continue;
        if (!index_reserve(&c->first, 1))
            return false;
        index_add(&c->first, c->pieces[i].address, (uint32_t)i + 1);
    }
    for (uint64_t i = c->count; i-- > 0;) {
        const struct ring_entry *e = &c->entries[i];
        if (ops[e->op] == 'f') {
            if (!index_reserve(&c->first, 1))
                return false;
            index_add(&c->first, e->at, (uint32_t)(c->piece_count + i + 1));
        } else if (ops[e->op] == 'a') {
            uint32_t was = index_remove(&c->first, e->at);
            CHECK(was); /* a block that was handed out is live or was freed since */
            (void)was;
        }
    }
    return true;
}

/* Its number in the trace: 0 is the legacy default stream. Beyond what a trace has numbers for, streams share them. */
static bool number_of_stream(struct copy *c, uint64_t key, uint32_t *number)
{
    uint64_t where = ((key ^ key >> 62 << 45) + 1) << 9; /* an index wants addresses; the kind of a key goes where ids do not reach */
    *number = 0;
    if (key == STREAM_KEY_LEGACY)
        return true;
    uint32_t found = index_find(&c->streams, where);
    if (!found) {
        if (!index_reserve(&c->streams, 1))
            return false;
        found = c->streams.count + 1;
        index_add(&c->streams, where, found);
    }
    *number = 1 + (found - 1) % (RECORD_STREAMS_MOST - 1);
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
        if (p->state == CENOTE_PIECE_LIVE && index_find(&c->first, p->address) == i + 1)
            fine = write_born(c, &e);
    }
    for (uint64_t i = 0; fine && i < c->count; i++) {
        struct ring_entry e = c->entries[i];
        if (ops[e.op] != 'f' || index_find(&c->first, e.at) != c->piece_count + i + 1)
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

static int save(cenote_pool *pool, const char *path)
{
    struct copy c = {.device = (uint32_t)pool->device->ordinal};
    if (!path || !*path)
        return error_set(CENOTE_INVALID, 0, "a trace needs the name of a file");
    int error = copy_open(&c, pool);
    if (!error)
        error = write_copy(&c, path);
    copy_close(&c);
    return error;
}

int cenote_record_save(cenote_pool *pool, const char *path)
{
    int error = pool_usable(pool);
    return error ? error : save(pool, path);
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

static void save_for_environment(cenote_pool *pool)
{
    char path[PATH_MAX];
    const char *chosen = secure_getenv("CENOTE_TRACE");
    if (!chosen || !*chosen || !pool->trace_number)
        return;
    if (!trace_path(chosen, pool->trace_number, path))
        fprintf(stderr, "cenote: CENOTE_TRACE is too long\n");
    else if (save(pool, path))
        fprintf(stderr, "cenote: no trace was written: %s\n", cenote_message());
}

/*
 * Of pools that are open still: the default ones always are. No driver call is made. In a fork somebody who is not there may have the locks;
 * who exits from a watch function has some himself.
 */
static void process_ends(void)
{
    if (pool_refuses())
        return;
    for (cenote_pool *pool = NULL; (pool = pool_next_on_device(NULL, pool));)
        save_for_environment(pool);
}

int record_open(cenote_pool *pool)
{
    static _Atomic(uint32_t) traces;
    const char *chosen = secure_getenv("CENOTE_TRACE");
    uint64_t records = pool->options.record;
    if (chosen && *chosen) {
        pool->trace_number = atomic_fetch_add(&traces, 1) + 1;
        records = records ? records : RECORDS_FOR_ENVIRONMENT;
        if (pool->trace_number == 1 && atexit(process_ends))
            return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "the system will not call at the end of the process: CENOTE_TRACE cannot be served");
    }
    return records ? start(pool, records) : CENOTE_OK;
}

void record_close(cenote_pool *pool)
{
    save_for_environment(pool);
    record_forget(pool);
}
