/*
 * import.c: blocks of other processes, mapped in this one.
 *
 *     view     a run of another process's pages, mapped for one device, in exactly as many addresses as they need; or a segment, opened
 *     import   an address that cenote_import gave out, and how often. Several may lie in one view: small blocks of one page
 *
 *                map_pages, open_segment             found again: counted       last close, share_sweep
 *     new view -------------------------> in use <-------------------------> in use ------------------> gone
 *         |                                                                    |
 *         +--- any failure --------> idle, in no index <--- the driver refuses +
 *                                       |  ^ refused, or a capture is open
 *                           share_sweep v--+
 *
 * The last close waits for the device and takes the mapping away before it returns, because the exporter may free the memory then. During a
 * capture it is refused, and the import stays open. What the driver refuses to take back is offered by the next sweep. A reset of the device ends
 * segments that were opened for it: nothing is asked of the driver for them. Pages stay mapped, and are taken down without a wait.
 *
 * LOCKING: `lock` guards the tables and which view is whose. A view that is new or being swept belongs to one thread, and driver calls
 * are made without the lock, inside the device. No question is asked over a socket inside the device.
 */
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "pool/life/pool.h"
#include "pool/life/pools.h"
#include "share/share.h"

#define VIEWS_MAX (1u << 24)

struct view {
    uint32_t unused;                /* the table chains views given back through it */
    uint32_t uses;                  /* by imports */
    struct device *device;          /* NULL: not in use */
    uint64_t generation;            /* of its context: segments end with that */
    bool     sweeping;              /* a thread takes it down */
    bool     whole;                 /* was usable: kernels may be at work on it */
    uint32_t shift;                 /* 0: a segment */
    uint64_t base, pages, mapped;   /* the last in pages */
    uint64_t exporter[2], identity; /* what it shows: a page by its serial; several by the generation of the one block on them all */
};

struct import {
    uint32_t unused;                /* the table chains imports given back through it */
    uint32_t count;
    uint32_t view;
    uint64_t at;
    uint64_t start, bytes;          /* the block that it is of */
    const cenote_pool *pool;        /* ends with it; NULL: with none */
};

static LOCK_OF_PROCESS struct lock lock = LOCK_INITIALIZER(LOCK_SHARE);
static struct table views, imports;
static struct index by_identity, by_address;
static _Atomic(uint32_t) idle;      /* views that no import uses and the driver has yet to take back */

static struct view   *view_at(uint32_t number) { return table_at(&views, number); }
static struct import *import_at(uint32_t number) { return table_at(&imports, number); }

/* Keys of an index are multiples of 512, and not 0. */
static uint64_t key_of_address(uint64_t at) { return at << 9; }
static uint64_t key_of_view(const struct view *v)
{
    return ((v->exporter[0] ^ (v->exporter[1] + v->identity * 0x9e3779b97f4a7c15ull) ^ v->generation << 1) | 1) << 9;
}

static int no_books(void)
{
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for the books of an import");
}

/* Its context has, with what was opened there, as the last call knows that entered it. */
static bool has_ended(const struct view *v)
{
    return !device_is(v->device, v->generation);
}

/* ------------------------------------------------------------------------------------------------------------------ views come and go */

/*
 * A view that shows what `like` does, used once more by the caller: one that is there, or a new one, which keeps the device open. 0: no
 * host memory. Two of one key are rare: the second is not found again.
 */
static uint32_t take_view(const struct view *like, bool *is_new)
{
    lock_take(&lock);
    uint32_t number = index_find(&by_identity, key_of_view(like));
    const struct view *v = number ? view_at(number) : like;
    *is_new = !number || v->generation != like->generation || v->identity != like->identity || v->shift != like->shift || v->pages != like->pages ||
              memcmp(v->exporter, like->exporter, sizeof v->exporter) != 0;
    if (*is_new) {
        bool open = (views.items || table_open(&views, sizeof(struct view), VIEWS_MAX)) &&
                    (imports.items || table_open(&imports, sizeof(struct import), VIEWS_MAX));
        number = open ? table_take(&views) : 0;
        if (number)
            *view_at(number) = *like;
    }
    if (number)
        view_at(number)->uses++;
    lock_give(&lock);
    return number;
}

/* One use less. The last makes it idle, and no import finds it any more. LOCKING: the lock. */
static void drop_view(uint32_t number)
{
    struct view *v = view_at(number);
    if (--v->uses)
        return;
    if (index_find(&by_identity, key_of_view(v)) == number)
        index_remove(&by_identity, key_of_view(v));
    idle++;
}

/*
 * CUDA_ERROR_NOT_READY: a capture is open, nothing may be taken down (rule 5) but what has to go with its context. Otherwise none begins before the
 * caller leaves. In a context that has ended nothing runs. `result`: of entering. LOCKING: inside.
 */
static CUresult settle(struct device *device, uint64_t generation, CUresult result, bool in_use)
{
    bool whole;
    if (!device_is(device, generation))
        return CUDA_SUCCESS;
    if (!result && in_use)
        result = device_wait(device, &whole);
    return !result && device_bars_end(device) ? CUDA_ERROR_NOT_READY : result;
}

/* The driver takes it back, step by step: memory, then addresses. LOCKING: inside the device; the view is this thread's. */
static CUresult take_down(struct view *v)
{
    const struct driver *t = v->device->driver;
    CUresult result = CUDA_SUCCESS;
    if (v->mapped && (v->shift || !has_ended(v)))
        result = v->shift ? t->cuMemUnmap(v->base, v->mapped << v->shift) : t->cuIpcCloseMemHandle(v->base);
    if (result)
        return result;
    v->mapped = 0;
    if (v->base && v->shift)
        result = region_unreserve(v->device, v->base, v->pages << v->shift);
    if (!result)
        v->base = 0;
    return result;
}

/* This thread is done with an idle view, which is gone or waits for the next sweep. LOCKING: none, not inside a device. */
static void end_sweep(uint32_t number, bool gone)
{
    lock_take(&lock);
    struct view *v = view_at(number);
    struct device *device = v->device;
    v->sweeping = false;
    if (gone) {
        v->device = NULL;
        table_give(&views, number);
        idle--;
    }
    lock_give(&lock);
    if (gone)
        pool_close_device(device);
}

/* The next idle view after `number`: this thread's from now on. 0: none. */
static uint32_t claim_idle(uint32_t number)
{
    lock_take(&lock);
    while (++number < views.used && (!view_at(number)->device || view_at(number)->uses || view_at(number)->sweeping)) {}
    number = number < views.used ? number : 0;
    if (number)
        view_at(number)->sweeping = true;
    lock_give(&lock);
    return number;
}

/* Gives back views that no import uses, but during a capture (rule 5). Not for a fork. LOCKING: none, not inside a device. */
void share_sweep(void)
{
    if (driver_is_exiting() || !idle)
        return;
    for (uint32_t number = 0; (number = claim_idle(number));) {
        struct view *v = view_at(number);
        struct device *device = v->device;
        bool gone = !settle(device, v->generation, device_enter(device, v->generation), v->whole) && !take_down(v);
        device_leave(device);
        end_sweep(number, gone);
    }
}

/* ------------------------------------------------------------------------------------------------------------------------------ import */

static int refused(CUresult result, const char *what)
{
    return error_set(result == CUDA_ERROR_OUT_OF_MEMORY ? CENOTE_OUT_OF_MEMORY : CENOTE_DRIVER, result, "%s another process failed: %s",
                     what, driver_result_name(result));
}

/* The next page, whose descriptor that is: `span` of the view's. Once mapped the driver keeps it without a handle. LOCKING: inside the device. */
static CUresult map_page(struct view *v, int file, uint64_t span)
{
    const struct driver *t = v->device->driver;
    CUmemGenericAllocationHandle handle;
    CUresult result = t->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result)
        return result;
    result = t->cuMemMap(v->base + (v->mapped << v->shift), span << v->shift, 0, handle, 0);
    v->mapped += result ? 0 : span;
    if (t->cuMemRelease(handle)) /* it would be lost: a refusal is asked for once more */
        t->cuMemRelease(handle);
    if (result || v->mapped < v->pages)
        return result;
    CUmemAccessDesc access = device_access(v->device);
    return t->cuMemSetAccess(v->base, v->pages << v->shift, &access, 1);
}

static int no_sense(int file)
{
    close(file);
    return error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "the answer about shared memory makes no sense");
}

/* Page by page: asked for, mapped, and its descriptor closed. */
static int map_pages(const struct share_message *m, struct view *v)
{
    CUresult result = device_enter(v->device, v->generation);
    if (!result)
        result = region_reserve(v->device, v->pages << v->shift, 1ull << v->shift, &v->base);
    device_leave(v->device);
    while (!result && v->mapped < v->pages) {
        struct share_reply reply;
        int file, error = share_ask(m, v->mapped + 1, &reply, &file);
        uint64_t span = error ? 0 : 1ull << reply.span_shift;
        if (error)
            return error;
        if (span > v->pages - v->mapped)
            return no_sense(file);
        result = device_enter(v->device, v->generation);
        if (!result)
            result = map_page(v, file, span);
        device_leave(v->device);
        close(file);
    }
    return result ? refused(result, "mapping memory of") : CENOTE_OK;
}

static int open_segment(struct view *v, CUipcMemHandle segment)
{
    CUdeviceptr base = 0;
    CUresult result = device_enter(v->device, v->generation);
    if (!result)
        result = v->device->driver->cuIpcOpenMemHandle(&base, segment, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    device_leave(v->device);
    v->base = base;
    v->mapped = !result;
    return result ? refused(result, "opening memory of") : CENOTE_OK;
}

/* All its uses. LOCKING: the lock. */
static void end_import(uint32_t number)
{
    struct import *import = import_at(number);
    for (; import->count; import->count--)
        drop_view(import->view);
    index_remove(&by_address, key_of_address(import->at));
    table_give(&imports, number);
}

/* The address is the program's until it closes it, and others find the view. An import that a reset has ended has it no more. */
static int hand_out(const struct import *like, void **address)
{
    uint32_t view = like->view;
    uint64_t at = like->at;
    lock_take(&lock);
    struct view *v = view_at(view);
    uint64_t key = key_of_address(at);
    uint32_t number = index_find(&by_address, key);
    if (number && has_ended(view_at(import_at(number)->view))) {
        end_import(number);
        number = 0;
    }
    if (!number && index_reserve(&by_address, 1) && index_reserve(&by_identity, 1) && (number = table_take(&imports))) {
        index_add(&by_address, key, number);
        *import_at(number) = *like;
        if (!index_find(&by_identity, key_of_view(v)))
            index_add(&by_identity, key_of_view(v), view);
    }
    if (number) {
        if (import_at(number)->view != view) { /* a segment that two threads opened at once: the driver counts, and gave one address */
            view_at(import_at(number)->view)->uses++;
            drop_view(view);
        }
        import_at(number)->count++;
        view_at(import_at(number)->view)->whole = true;
        *address = (void *)(uintptr_t)at;
    }
    lock_give(&lock);
    return number ? CENOTE_OK : no_books();
}

static int may_be_mapped(const struct share_message *m, const struct share_reply *about, const struct device *device)
{
    const struct driver *t = device->driver;
    bool can = about->shift ? device->granularity && t->cuMemImportFromShareableHandle : t->cuIpcOpenMemHandle && t->cuIpcCloseMemHandle;
    if (m->offset >= about->bytes)
        return error_set(CENOTE_INVALID | ERROR_ANSWER, 0, "the share points behind the end of its block");
    if (can && (about->shift || !share_is_own(m->exporter)))
        return CENOTE_OK;
    return error_set(CENOTE_NOT_SUPPORTED, 0, can ? "a segment can be opened by other processes only, and the share is of this one" :
                     "device %d or its driver cannot import this kind of memory", device->ordinal);
}

/* *kept: a new view has the device from here on. */
static int bring(const struct share_message *m, struct device *device, uint64_t generation, const cenote_pool *pool, bool *kept, void **address)
{
    struct share_reply about;
    int file, error = share_ask(m, 0, &about, &file);
    if (error || (error = may_be_mapped(m, &about, device)))
        return error;
    const struct view like = {.device = device, .generation = generation, .shift = about.shift, .pages = about.pages,
                              .exporter = {m->exporter[0], m->exporter[1]},
                              .identity = about.pages == 1 ? about.serial << 1 : m->generation << 1 | 1};
    bool is_new;
    uint32_t view = take_view(&like, &is_new);
    *kept = view && is_new;
    if (!view)
        return no_books();
    if (is_new)
        error = about.shift ? map_pages(m, view_at(view)) : open_segment(view_at(view), about.segment);
    uint64_t start = view_at(view)->base + about.lead;
    if (!error)
        error = hand_out(&(struct import){.view = view, .at = start + m->offset, .start = start, .bytes = about.bytes, .pool = pool}, address);
    if (error) {
        lock_take(&lock);
        drop_view(view);
        lock_give(&lock);
    }
    return error;
}

static struct device *open_once_more(struct device *device)
{
    lock_take(&pools_lock);
    device = device_open_more(device);
    lock_give(&pools_lock);
    return device;
}

/* For the context of the pool, or for a device with its primary one. */
static int import(const cenote_share *share, size_t length, const cenote_pool *pool, int device, void **address)
{
    struct share_message m;
    bool kept = false;
    if (!share || !address)
        return error_set(CENOTE_INVALID, 0, "an import needs a share and a place for the address");
    int error = pool_process_usable();
    if (error || (error = share_unseal(share, length, &m)))
        return error;
    struct device *opened = pool ? open_once_more(pool->config.device) : pool_open_device(device, &error);
    if (!opened)
        return error;
    error = bring(&m, opened, pool ? pool->config.generation : atomic_load(&opened->generation), pool, &kept, address);
    if (!kept)
        pool_close_device(opened);
    share_sweep();
    return error;
}

int cenote_import(const cenote_share *share, size_t length, int device, void **address)
{
    return import(share, length, NULL, device, address);
}

int cenote_pool_import(cenote_pool *pool, const cenote_share *share, size_t length, void **address)
{
    int error = pool_usable(pool);
    return error ? error : import(share, length, pool, -1, address);
}

/* --------------------------------------------------------------------------------------------------------------------------- closing */

struct closing {
    uint64_t key;                   /* of the address */
    struct device *device;          /* the importing one; NULL: none */
    uint64_t generation;
    uint32_t view;                  /* that nothing uses any more, this thread's to take down; 0: none */
};

/* One use less, unless that is the view's last and not `last_too`. False: so it is. */
static bool close_use(struct closing *c, bool last_too)
{
    lock_take(&lock);
    uint32_t number = c->key ? index_find(&by_address, c->key) : 0, view = number ? import_at(number)->view : 0;
    bool last = number && view_at(view)->uses == 1, goes = number && (!last || last_too);
    c->device = number ? view_at(view)->device : NULL;
    c->generation = number ? view_at(view)->generation : 0;
    if (goes) {
        drop_view(view);
        if (!--import_at(number)->count) {
            index_remove(&by_address, c->key);
            table_give(&imports, number);
        }
    }
    if (goes && last) {
        view_at(view)->sweeping = true;
        c->view = view;
    }
    lock_give(&lock);
    return goes || !number;
}

/* The device is done with it and no capture is open when it goes; another thread may have imported it again meanwhile. */
static int close_last(struct closing *c)
{
    bool open = false;
    struct device *device = open_once_more(c->device);
    if (!device) /* another thread has just closed the last */
        return error_set(CENOTE_NOT_OURS, 0, "the import has ended");
    CUresult result = settle(device, c->generation, device_enter(device, c->generation), true);
    bool busy = result == CUDA_ERROR_NOT_READY;
    if (!busy)
        close_use(c, true);
    if (c->view) {
        struct view *v = view_at(c->view);
        result = result ? result : take_down(v);
        open = v->mapped != 0;
    }
    device_leave(device);
    if (c->view)
        end_sweep(c->view, !result);
    open = open && !device_is_lost(device, c->generation, result) && !driver_is_exiting();
    int ordinal = device->ordinal;
    pool_close_device(device);
    if (busy)
        return error_set(CENOTE_BUSY, 0, "a capture is open on device %d: the import stays open, close it when the capture has ended", ordinal);
    return open ? refused(result, "closing memory of") : CENOTE_OK;
}

int cenote_import_close(void *address)
{
    struct closing c = {.key = key_of_address((uint64_t)(uintptr_t)address)};
    if (pool_refuses())
        return pool_process_usable();
    int error = close_use(&c, false) ? CENOTE_OK : close_last(&c);
    if (!c.device)
        return error_set(CENOTE_NOT_OURS, 0, "%p was not imported, or was closed already: close each import once, by the address it gave", address);
    if (!error)
        share_sweep();
    return error;
}

/* The import that begins there, or any whose block holds the address. 0: none. LOCKING: the lock. */
static uint32_t find_import(uint64_t at)
{
    uint32_t number = imports.items ? index_find(&by_address, key_of_address(at)) : 0;
    for (uint32_t i = 1; !number && i < imports.used; i++)
        number = import_at(i)->count && at - import_at(i)->start < import_at(i)->bytes ? i : 0;
    return number;
}

int cenote_import_range(const void *address, void **start, size_t *bytes)
{
    if (!start || !bytes)
        return error_set(CENOTE_INVALID, 0, "cenote_import_range needs places for the answers");
    if (pool_refuses())
        return pool_process_usable();
    lock_take(&lock);
    uint32_t number = find_import((uint64_t)(uintptr_t)address);
    if (number) {
        *start = (void *)(uintptr_t)import_at(number)->start;
        *bytes = import_at(number)->bytes;
    }
    lock_give(&lock);
    return number ? CENOTE_OK : error_set(CENOTE_NOT_OURS | ERROR_ANSWER, 0, "%p is in no block that was imported", address);
}

/* What was imported for the pool ends with it. LOCKING: none, not inside a device. */
void share_end_imports(const cenote_pool *pool)
{
    lock_take(&lock);
    for (uint32_t i = 1; imports.items && i < imports.used; i++)
        if (import_at(i)->count && import_at(i)->pool == pool)
            end_import(i);
    lock_give(&lock);
    share_sweep();
}
