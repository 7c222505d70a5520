/*
 * export.c: blocks that other processes may use: what was exported, and how processes that ask are answered.
 *
 * A message names a block by exporter, address and generation, and says nothing else. A process that imports it asks the exporter over a socket
 * (share/socket.c) what lies under it, and for the file descriptors of its pages, one at a time (share/import.c). So a message that is old,
 * damaged or made up meets the exporter's own books, and thousands of blocks never need more than one descriptor at a time.
 *
 *     exporter                    any channel                     importer
 *     cenote_export ------------ struct share_message ----------> cenote_import
 *     server thread <----------- what is it? page 1, 2, ... ----- maps
 *     cenote_free ends the export                                 cenote_import_close
 *
 * A live block does not move, since its pages are owned: an export freezes nothing beside, and ends with the free. A block of one page is
 * known by the page's serial, so that an importer which has that page under another block maps it once. More than one page lie under
 * one block only.
 *
 * LOCKING: the pool's lock guards its exports. Answers are made with the pool's turn: no page is given back to the driver meanwhile; and
 * with `answering`, so that a pool which goes can wait for the one that is being made.
 */
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "pool/arenas/locate.h"
#include "pool/life/pool.h"
#include "pool/life/prove.h"
#include "pool/life/turn.h"
#include "pool/provider/provider.h"
#include "share/share.h"

static LOCK_OF_PROCESS struct lock answering = LOCK_INITIALIZER(LOCK_SHARE);
static atomic_bool stopped;
static _Atomic(uint64_t) generations, serials;

static struct export *export_of(const cenote_pool *pool, uint32_t number) { return table_at(&pool->exports.table, number); }

/* ----------------------------------------------------------------------------------------------------------------------- the message */

/* FNV-1a: against damage. Forgery gains nothing: the kernel says which process asks, and that decides. */
static uint64_t sum_of(const struct share_message *m)
{
    uint64_t sum = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < offsetof(struct share_message, sum); i++)
        sum = (sum ^ ((const unsigned char *)m)[i]) * 0x100000001b3ull;
    return sum;
}

void share_seal(struct share_message *m)
{
    m->sum = sum_of(m);
}

int share_unseal(const cenote_share *share, size_t length, struct share_message *m)
{
    if (length != sizeof *m)
        return error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "a share has %zu bytes, not %zu", sizeof *m, length);
    memcpy(m, share, sizeof *m);
    if (m->magic != SHARE_MAGIC || m->sum != sum_of(m))
        return error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "this is no share, or it was damaged on its way");
    return m->version == SHARE_VERSION ? CENOTE_OK :
           error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "the share is of another version of cenote (%u, here %u)", m->version, SHARE_VERSION);
}

/* --------------------------------------------------------------------------------------------------------------------------- exporting */

/* Segments of cuMemAlloc can be shared; those of an async pool cannot, and a program's own source is not ours to name. */
static bool segment_may_be_shared(const cenote_pool *pool, const struct arena *a)
{
    return provider_is_plain(pool, a) && pool->config.device->driver->cuIpcGetMemHandle;
}

/* A page under the block sleeps, is about to, or is waking: there is nothing that another process could map. LOCKING: the pool's lock. */
static bool sleeps(const cenote_pool *pool, const struct block_ref *w)
{
    struct slots under = slots_under(w->region, w->start, w->size);
    bool sleeps = false;
    for (uint32_t slot = under.from; slot < under.to && !sleeps; slot += region_span(w->region, slot))
        sleeps = page_of(&pool->store.pages, w->region->page[slot])->leaving; /* under a live block it leaves for no other reason */
    return sleeps;
}

/* LOCKING: the pool's lock. */
static int enter(cenote_pool *pool, const struct block_ref *w, uint64_t *generation)
{
    uint32_t number = index_find(&pool->exports.by_block, w->start);
    if (region_is_segment(w->region) && !segment_may_be_shared(pool, w->arena))
        return CENOTE_NOT_SUPPORTED;
    if (!region_is_segment(w->region) && !(pool_page_prop(pool).requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return CENOTE_NOT_SUPPORTED;
    if (sleeps(pool, w))
        return CENOTE_BUSY;
    if (!number) {
        if (!index_reserve(&pool->exports.by_block, 1) || !(number = table_take(&pool->exports.table)))
            return CENOTE_OUT_OF_HOST_MEMORY;
        index_add(&pool->exports.by_block, w->start, number);
        export_of(pool, number)->generation = atomic_fetch_add(&generations, 1) + 1;
    }
    *generation = export_of(pool, number)->generation;
    return CENOTE_OK;
}

int cenote_export(void *address, cenote_share *share)
{
    static const struct share_books books = {share_answer, share_stop};
    struct share_message m = {.magic = SHARE_MAGIC, .version = SHARE_VERSION, .process = getpid()};
    struct block_ref w = {0};
    cenote_block block;
    if (!share)
        return error_set(CENOTE_INVALID, 0, "nowhere to put the share: the last argument is NULL");
    int error = pool_process_usable();
    if (error || (error = locate_find(address, &block, 0)) || (error = share_serve(&books, m.exporter)))
        return error;
    cenote_pool *pool = locate_lock(block.start, &w);
    m.block = (uint64_t)(uintptr_t)block.start;
    m.offset = (uint64_t)(uintptr_t)address - m.block;
    error = !pool || locate_at(pool, m.block, &w) != FOUND_LIVE ? CENOTE_NOT_OURS : enter(pool, &w, &m.generation);
    bool lost = error == CENOTE_NOT_SUPPORTED && !region_is_segment(w.region) &&
                device_lost_handles(pool->config.device, pool_wants_fabric(pool));
    if (pool)
        lock_give(&pool->lock);
    if (lost)
        return error_set(error, 0, "the memory at %p cannot be shared: the driver says that its memory has handles for other processes, and "
                         "refuses to make it so (`cenote doctor`)", address);
    if (error == CENOTE_BUSY)
        return error_set(error, 0, "the block at %p sleeps, or is about to: cenote_pool_resume comes first", address);
    if (error)
        return error_set(error, 0, error == CENOTE_NOT_OURS ? "the block at %p was freed meanwhile" :
                         error == CENOTE_OUT_OF_HOST_MEMORY ? "no host memory to note the export of %p" :
                         "the memory at %p cannot be shared: the device or system does not do that, or it is of an async pool or of the "
                         "program's own source", address);
    share_seal(&m);
    memcpy(share, &m, sizeof m);
    return CENOTE_OK;
}

/* --------------------------------------------------------------------------------------------------------------------------- answering */

/* log2 of the slots under the smallest page of the block: in such pages they are counted. */
static uint32_t joined_under(const struct region *r, struct slots under)
{
    uint32_t least = r->unit_shift;
    for (uint32_t slot = under.from; slot < under.to; slot += region_span(r, slot))
        least = region_span_shift(r, slot) < least ? region_span_shift(r, slot) : least;
    return least;
}

/* What the books know of the block. LOCKING: the pool's lock. */
static int describe(cenote_pool *pool, struct block_ref *w, const struct share_request *q, struct share_reply *reply,
                    CUmemGenericAllocationHandle *handle)
{
    uint32_t number = q->block % BLOCK_BYTES ? 0 : index_find(&pool->exports.by_block, q->block);
    if (!number || export_of(pool, number)->generation != q->generation)
        return CENOTE_GONE;
    enum lookup found = locate_at(pool, q->block, w);
    CHECK(found == FOUND_LIVE); /* invariant 19: an export ends with its block */
    const struct region *r = w->region;
    struct slots under = slots_under(r, w->start, w->size);
    struct page *first = page_of(&pool->store.pages, r->page[under.from]);
    if (!first->serial)
        first->serial = atomic_fetch_add(&serials, 1) + 1;
    uint32_t joined = joined_under(r, under), slot = under.from + ((uint32_t)(q->page - (q->page > 0)) << joined);
    reply->shift = region_is_segment(r) ? 0 : r->shift + joined;
    reply->unit_shift = r->unit_shift - joined;
    reply->pages = (under.to - under.from) >> joined;
    reply->serial = first->serial;
    reply->lead = w->start - region_slot_at(r, under.from);
    reply->bytes = w->size;
    if (q->page > reply->pages || (q->page && (!reply->shift || region_first(r, slot) != slot)))
        return CENOTE_INVALID;
    reply->span_shift = q->page ? region_span_shift(r, slot) - joined : 0;
    *handle = q->page ? page_of(&pool->store.pages, r->page[slot])->handle : 0;
    return CENOTE_OK;
}

static int answer(const struct share_request *q, struct share_reply *reply, int *file)
{
    struct block_ref w = {0};
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = CUDA_SUCCESS;
    const void *block = (const void *)(uintptr_t)q->block;
    cenote_pool *pool = locate_lock(block, &w);
    if (!pool)
        return CENOTE_GONE;
    lock_give(&pool->lock); /* the turn comes first */
    int error = turn_begin(pool);
    if (error)
        return error;
    cenote_pool *still = locate_lock(block, &w);
    error = still == pool ? describe(pool, &w, q, reply, &handle) : CENOTE_GONE;
    if (still)
        lock_give(&still->lock);
    if (!error && handle)
        result = pool->config.device->driver->cuMemExportToShareableHandle(file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    else if (!error && !reply->shift)
        result = pool->config.device->driver->cuIpcGetMemHandle(&reply->segment, w.region->base);
    turn_end(pool);
    reply->result = (int32_t)result;
    return result ? pool_driver_error(pool, result, "sharing memory with another process") : error;
}

/* Whatever was asked, there is an answer. *file: to be sent along and closed, or -1. */
void share_answer(const void *request, size_t length, struct share_reply *reply, int *file)
{
    struct share_request q = {0};
    memset(reply, 0, sizeof *reply);
    *file = -1;
    if (length == sizeof q)
        memcpy(&q, request, sizeof q);
    reply->key = q.key_back;
    reply->magic = SHARE_MAGIC;
    lock_take(&answering);
    bool known = q.magic == SHARE_MAGIC && q.version == SHARE_VERSION;
    reply->error = !known ? CENOTE_INVALID : atomic_load(&stopped) ? CENOTE_EXITING : answer(&q, reply, file);
    lock_give(&answering);
}

/*
 * The process ends: no answer calls the driver from now on (rule 10). One that is being made is not waited for for ever: it may want the turn of a
 * pool whose watch function or clock exits.
 */
void share_stop(void)
{
    if (driver_is_forked())
        return; /* the lock is as it was in the parent */
    atomic_store(&stopped, true);
    lock_settle(&answering, EXIT_PATIENCE);
}

/* A pool was closed for calls: when this returns no answer is being made from its books. LOCKING: none, not inside a device. */
void share_settle(void)
{
    lock_take(&answering);
    lock_give(&answering);
}
