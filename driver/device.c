/*
 * device.c: opens devices and enters their context. See device.h.
 *
 * A context takes hundreds of MB of its device, so it is retained by the first thread that enters: of eight devices that a process sees, it may use
 * one. A context that a caller keeps (device_open_in) is there from the start; if it is none of the primary ones it has an entry of its own, and its
 * pools know nothing of the device's others.
 *
 * A structure has one context after the other, each with a generation of its own. If a context has ended, the device has none until no pool of that
 * context is left; what else is of it, such as events of pools of other devices, is told by its generation:
 *
 *     open ----the context has ended: generation 0----> lost ----named once more, and no own pool is left----> open, of the next generation
 *       |                                                |
 *       +------------------------------------------------+----the last closes----> closed: generation 0
 *
 * Which way memory can be had is asked once, from device attributes, and then tried: probe.c.
 *
 * LOCKING: see device.h.
 */
#include "driver/device.h"

#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "cenote/cenote.h"

static struct device *devices[DEVICES_MAX + CONTEXTS_MAX]; /* by number; NULL: was never opened */
static struct card cards[DEVICES_MAX];
static LOCK_OF_PROCESS struct lock opening = LOCK_INITIALIZER(LOCK_CONTEXT); /* held while the driver makes a context */

/* A driver too old to know the attribute says INVALID_VALUE: then the answer is no. */
static CUresult attribute(const struct device *d, CUdevice_attribute which, bool *answer)
{
    int value = 0;
    CUresult result = d->driver->cuDeviceGetAttribute(&value, which, d->handle);
    *answer = !result && value;
    return result == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : result;
}

/* Retained once more than released, the context would outlive us: a refusal is asked for once more. */
static void release_context(const struct driver *t, CUdevice device)
{
    if (t->cuDevicePrimaryCtxRelease(device))
        t->cuDevicePrimaryCtxRelease(device);
}

static bool has_vmm_calls(const struct driver *t)
{
    return t->cuMemCreate && t->cuMemRelease && t->cuMemMap && t->cuMemUnmap && t->cuMemSetAccess && t->cuMemAddressReserve &&
           t->cuMemAddressFree && t->cuMemGetAllocationGranularity;
}

/* What the device can do. A question that fails is an error: it does not mean no. */
static CUresult ask_abilities(struct device *d)
{
    const struct driver *t = d->driver;
    bool has_vmm = false;
    CUresult result = attribute(d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, &d->has_rdma);
    if (!result)
        result = attribute(d, (CUdevice_attribute)DECOMPRESSION_ALGORITHMS, &d->has_decompression);
    if (!result)
        result = attribute(d, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, &d->has_pools);
    if (!result)
        result = attribute(d, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &has_vmm);
    d->has_pools = d->has_pools && t->cuMemPoolCreate && t->cuMemPoolDestroy && t->cuMemPoolTrimTo && t->cuMemAllocFromPoolAsync;
    d->granularity = 0;
    d->handles = 0;
    if (result || !has_vmm || !has_vmm_calls(t))
        return result;

    bool has_files = false, has_fabric = false;
    if (t->cuMemExportToShareableHandle && t->cuMemImportFromShareableHandle)
        result = attribute(d, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, &has_files);
    if (!result)
        result = attribute(d, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, &has_fabric);
    d->handles = (has_files ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0u) | (has_fabric ? CU_MEM_HANDLE_TYPE_FABRIC : 0u);
    return result ? result : device_ask_granularity(d);
}

/* Announcements go before threads that want to enter: captures are rare, and must not wait for ever. */
static void open_gate(struct card *card)
{
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&card->gate, &attributes);
    pthread_rwlock_init(&card->quiet, &attributes);
    pthread_rwlockattr_destroy(&attributes);
}

/* LOCKING: that of `opened`. */
static void open_card(struct card *card)
{
    if (card->opened++)
        return;
    if (!card->has_gate) /* it stays: a call that comes too late for a pool may be at it */
        open_gate(card);
    card->has_gate = true;
    atomic_store(&card->before, UINT64_MAX);
    atomic_store(&card->was_asked, false);
    atomic_store(&card->is_short, false);
    atomic_store(&card->mappings, 0);
}

/* For explanations alone: if the driver does not say it, it stays unknown. The context is current. */
static uint64_t ask_used(const struct device *d)
{
    size_t left = 0, total = 0;
    CUresult result = d->driver->cuMemGetInfo(&left, &total);
    return result || left > total ? UINT64_MAX : total - left;
}

/* No other context has it, before and after. 0: not known. Without it a reset would not be seen: a refusal is asked for once more. */
static unsigned long long ask_id(const struct device *d, CUcontext context)
{
    unsigned long long id = 0;
    CUresult (*ask)(CUcontext, unsigned long long *) = d->driver->cuCtxGetId;
    return ask && (!ask(context, &id) || !ask(context, &id)) ? id : 0;
}

bool device_lives(struct device *d, uint64_t generation)
{
    unsigned long long id = 0;
    CUcontext context = device_context(d);
    unsigned long long own = atomic_load(&d->context_id);
    if (!context || !own || !device_is(d, generation))
        return device_is(d, generation);
    CUresult result = d->driver->cuCtxGetId(context, &id);
    if (result ? result == CUDA_ERROR_CONTEXT_IS_DESTROYED || result == CUDA_ERROR_INVALID_CONTEXT : id != own)
        atomic_compare_exchange_strong(&d->generation, &(uint64_t){generation}, 0); /* another thread may have begun the next */
    return device_is(d, generation);
}

CUresult device_prepare(struct device *d)
{
    CUcontext context = device_context(d);
    CUresult result = CUDA_SUCCESS;
    if (context)
        return CUDA_SUCCESS;
    lock_take(&opening);
    context = device_context(d);
    if (!context && !d->opened)
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED; /* the call has come too late for the last pool: nothing would be given back */
    else if (!context && !(result = d->driver->cuDevicePrimaryCtxRetain(&context, d->handle))) {
        atomic_store(&d->context_id, ask_id(d, context));
        atomic_store(&d->context, context);
    }
    lock_give(&opening);
    return result;
}

/* Another thread may close the device meanwhile, for good, and then it has no context: this call has come too late. */
static CUresult make_current(const struct device *d, CUcontext context)
{
    return context ? d->driver->cuCtxPushCurrent(context) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult push_context(struct device *d, uint64_t generation)
{
    CUresult result = device_is(d, generation) ? device_prepare(d) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    CUcontext context = device_context(d);
    if (!result && !device_lives(d, generation))
        result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!result)
        result = make_current(d, context);
    if (!result && !atomic_load_explicit(&d->card->was_asked, memory_order_relaxed) && !atomic_exchange(&d->card->was_asked, true))
        atomic_store(&d->card->before, ask_used(d));
    return result;
}

static uint64_t generations; /* that were given; guarded by the caller's global lock */

/* What was entered is not the device's context any more. LOCKING: the caller's global lock. */
static void leave_context(struct device *d)
{
    bool is_retained = device_context(d) && !d->is_kept;
    touch_close(d);
    atomic_store(&d->context, NULL);
    atomic_store(&d->is_kept, false);
    if (is_retained && !driver_is_exiting() && !driver_is_forked())
        release_context(d->driver, d->handle);
}

/*
 * Pools of a context that has ended stand in the way of others of the device: the program may still free the blocks there, whose addresses the driver
 * may give again.
 */
bool device_begin_anew(struct device *d)
{
    if (device_lives(d, atomic_load(&d->generation)))
        return true;
    if (d->pools)
        return false;
    leave_context(d);
    atomic_store(&d->generation, ++generations);
    return true;
}

/* Of that number, in a context that lives unless pools are in one that has ended. NULL: no host memory. LOCKING: the caller's global lock. */
static struct device *of_number(int number)
{
    struct device *d = devices[number];
    if (d && d->opened)
        device_begin_anew(d);
    if (d || !(d = memory_map(sizeof *d)))
        return d;
    d->number = number;
    return devices[number] = d;
}

static struct device *no_memory(int *error)
{
    *error = error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for a device");
    return NULL;
}

static int open_first(struct device *d, int ordinal)
{
    int error;
    const struct driver *t = driver_table(&error);
    if (!t)
        return error_set(error, 0, "%s", driver_load_message());

    int count = 0;
    CUresult result = t->cuDeviceGetCount(&count);
    if (result || ordinal >= count || ordinal >= DEVICES_MAX)
        return error_set(CENOTE_NO_DEVICE, result, "device %d does not exist: the driver has %d", ordinal, count);
    d->driver = t;
    d->ordinal = ordinal;
    size_t capacity = 0;
    if (!(result = t->cuDeviceGet(&d->handle, ordinal)))
        result = t->cuDeviceTotalMem(&capacity, d->handle);
    if (result)
        return error_set(CENOTE_NO_DEVICE, result, "device %d cannot be used: %s", ordinal, driver_result_name(result));
    d->capacity = capacity;
    if (!t->cuDeviceGetUuid || t->cuDeviceGetUuid((CUuuid *)(void *)d->uuid, d->handle))
        memset(d->uuid, 0, sizeof d->uuid);
    result = ask_abilities(d);
    if (result)
        return error_set(CENOTE_DRIVER, result, "device %d does not say what it can do: %s", ordinal, driver_result_name(result));
    atomic_store(&d->generation, ++generations);
    atomic_store(&d->is_kept, false);
    d->card = &cards[ordinal];
    open_card(d->card);
    return CENOTE_OK;
}

/* A context that a caller keeps so far is also used by one that does not: from now on it is retained. */
static int retain_kept(struct device *d)
{
    CUcontext context;
    CUresult result = d->driver->cuDevicePrimaryCtxRetain(&context, d->handle);
    if (result)
        return error_set(CENOTE_DRIVER, result, "the context of device %d cannot be retained: %s", d->ordinal, driver_result_name(result));
    atomic_store(&d->is_kept, false);
    return CENOTE_OK;
}

struct device *device_open(int ordinal, int *error)
{
    if (ordinal < 0 || ordinal >= DEVICES_MAX) {
        *error = error_set(CENOTE_NO_DEVICE, 0, "device %d does not exist", ordinal);
        return NULL;
    }
    struct device *d = of_number(ordinal);
    if (!d)
        return no_memory(error);
    bool lives = atomic_load(&d->generation) != 0; /* or pools are left in it, and the caller is refused later */
    *error = !d->opened ? open_first(d, ordinal) : d->is_kept && lives ? retain_kept(d) : CENOTE_OK;
    if (*error)
        return NULL;
    d->opened++;
    return d;
}

/* Of which device, and is it the primary one? That one is retained and released for the answer, if it is there. */
static CUresult ask_whose(const struct driver *t, CUcontext context, CUdevice *device, bool *is_primary)
{
    CUcontext primary = NULL;
    unsigned flags;
    int active = 0;
    CUresult result = t->cuCtxPushCurrent(context);
    if (result)
        return result;
    result = t->cuCtxGetDevice(device);
    device_pop_context(t);
    if (!result)
        result = t->cuDevicePrimaryCtxGetState(*device, &flags, &active);
    if (!result && active && !(result = t->cuDevicePrimaryCtxRetain(&primary, *device)))
        release_context(t, *device);
    *is_primary = primary == context;
    return result;
}

/* The number of a context beside the primary ones, or one that is not in use. DEVICES_MAX + CONTEXTS_MAX: there are too many. */
static int find_beside(CUcontext context)
{
    int unused = DEVICES_MAX + CONTEXTS_MAX;
    for (int i = DEVICES_MAX + CONTEXTS_MAX - 1; i >= DEVICES_MAX; i--) {
        if (devices[i] && devices[i]->opened && device_context(devices[i]) == context)
            return i;
        if (!devices[i] || !devices[i]->opened)
            unused = i;
    }
    return unused;
}

/* A context that cenote has retained already stays so. */
static void keep_context(struct device *d, CUcontext context)
{
    lock_take(&opening);
    if (!device_context(d)) {
        atomic_store(&d->is_kept, true);
        atomic_store(&d->context_id, ask_id(d, context));
        atomic_store(&d->context, context);
    }
    lock_give(&opening);
}

struct device *device_open_in(CUcontext context, int *error)
{
    CUdevice device = -1;
    bool is_primary = false;
    const struct driver *t = driver_table(error);
    if (!t) {
        error_set(*error, 0, "%s", driver_load_message());
        return NULL;
    }
    CUresult result = context ? ask_whose(t, context, &device, &is_primary) : CUDA_ERROR_INVALID_CONTEXT;
    if (result || device < 0 || device >= DEVICES_MAX) {
        *error = error_set(CENOTE_INVALID, result, "%p is no context in which a pool can be: %s", (void *)context, driver_result_name(result));
        return NULL;
    }
    int number = is_primary ? device : find_beside(context);
    if (number == DEVICES_MAX + CONTEXTS_MAX) {
        *error = error_set(CENOTE_NOT_SUPPORTED, 0, "there are pools in %d contexts beside primary ones already", CONTEXTS_MAX);
        return NULL;
    }
    struct device *d = of_number(number);
    if (!d)
        return no_memory(error);
    *error = d->opened ? CENOTE_OK : open_first(d, device);
    if (*error)
        return NULL;
    keep_context(d, context);
    d->opened++;
    return d;
}

struct device *device_open_more(struct device *d)
{
    if (!d->opened)
        return NULL;
    d->opened++;
    return d;
}

struct device *device_open_again(int number)
{
    struct device *d = devices[number];
    if (d && d->opened)
        device_begin_anew(d);
    return d ? device_open_more(d) : NULL;
}

void device_close(struct device *d)
{
    CHECK(d->opened);
    lock_take(&opening); /* from here on no thread makes the context, see device_prepare */
    bool is_last = !--d->opened;
    lock_give(&opening);
    if (!is_last)
        return;
    d->card->opened--;
    leave_context(d);
    atomic_store(&d->generation, 0);
}

/* What device_leave has to give back. */
static _Thread_local struct {
    bool inside, pushed, has_mode;
    CUstreamCaptureMode mode;
    CUresult result;
} scope;

/* The gate has been passed. */
static CUresult enter(struct device *d, uint64_t generation, bool makes)
{
    scope.inside = driver_gate_is_shut = true;
    scope.pushed = scope.has_mode = false;
    scope.result = CUDA_ERROR_DEINITIALIZED;
    if (driver_is_exiting() || driver_is_forked())
        return scope.result;
    scope.mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    scope.result = d->driver->cuThreadExchangeStreamCaptureMode(&scope.mode);
    scope.has_mode = scope.result == CUDA_SUCCESS; /* without the mode a call might end a capture */
    if (!scope.result && (makes || device_context(d))) {
        scope.result = push_context(d, generation);
        scope.pushed = scope.result == CUDA_SUCCESS;
    }
    return scope.result;
}

CUresult device_entered(void)
{
    CHECK(scope.inside);
    return scope.result;
}

CUresult device_enter(struct device *d, uint64_t generation)
{
    CHECK(!scope.inside);
    pthread_rwlock_rdlock(&d->card->gate);
    return enter(d, generation, true);
}

bool device_try_enter(struct device *d, uint64_t generation, CUresult *result)
{
    CHECK(!scope.inside);
    if (pthread_rwlock_tryrdlock(&d->card->gate))
        return false;
    *result = enter(d, generation, true);
    return true;
}

CUresult device_enter_as_it_is(struct device *d, uint64_t generation)
{
    CHECK(!scope.inside);
    pthread_rwlock_rdlock(&d->card->gate);
    return enter(d, generation, false);
}

void device_leave(struct device *d)
{
    CHECK(scope.inside && driver_gate_is_shut);
    if (scope.pushed)
        device_pop_context(d->driver);
    if (scope.has_mode)
        d->driver->cuThreadExchangeStreamCaptureMode(&scope.mode);
    scope.inside = driver_gate_is_shut = false;
    pthread_rwlock_unlock(&d->card->gate);
}

/* If the current context belongs to another device, the default stream is taken for that of the primary context of `d`. */
CUresult device_default_stream(struct device *d, unsigned long long *id)
{
    const struct driver *t = d->driver;
    CUcontext current = NULL, whole = NULL;
    CUgreenCtx green = NULL;
    CUdevice device;
    CHECK(!scope.inside);
    *id = 0;
    CUresult result = t->cuCtxGetCurrent(&current);
    if (result || !current || current == device_context(d))
        return result;
    result = t->cuCtxGetDevice(&device);
    if (result || device != d->handle || (result = device_prepare(d)) || current == device_context(d))
        return result;
    if (t->cuStreamGetCtx_v2)
        result = t->cuStreamGetCtx_v2(CU_STREAM_LEGACY, &whole, &green);
    if (!result && (!green || whole != device_context(d)))
        result = CUDA_ERROR_INVALID_CONTEXT;
    return result ? result : t->cuStreamGetId(CU_STREAM_LEGACY, id);
}

CUresult device_of_stream(struct device *d, CUstream stream, CUcontext *context, CUdevice *device)
{
    const struct driver *t = d->driver;
    CUgreenCtx green;
    CHECK(!scope.inside);
    CUresult result = device_prepare(d);
    CUcontext own = device_context(d);
    if (!result)
        result = make_current(d, own);
    if (result)
        return result;
    result = t->cuStreamGetCtx_v2 ? t->cuStreamGetCtx_v2(stream, context, &green) : t->cuStreamGetCtx(stream, context);
    *device = d->handle;
    if (!result && *context != own && !(result = t->cuCtxPushCurrent(*context))) {
        result = t->cuCtxGetDevice(device);
        device_pop_context(t);
    }
    device_pop_context(t);
    return result;
}

CUresult device_visit(struct device *other, uint64_t generation)
{
    CHECK(scope.inside);
    if (!device_is(other, generation))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (pthread_rwlock_tryrdlock(&other->card->gate))
        return CUDA_ERROR_NOT_READY;
    CUresult result = push_context(other, generation);
    if (result)
        pthread_rwlock_unlock(&other->card->gate);
    return result;
}

void device_visit_end(struct device *other)
{
    device_pop_context(other->driver);
    pthread_rwlock_unlock(&other->card->gate);
}

/* The primary context is not made for that. */
CUresult device_go_over(struct device *beside, uint64_t generation)
{
    CHECK(scope.inside && driver_gate_is_shut);
    return device_context(beside) ? push_context(beside, generation) : CUDA_ERROR_INVALID_CONTEXT;
}

void device_come_back(struct device *beside)
{
    CHECK(scope.inside && driver_gate_is_shut);
    device_pop_context(beside->driver);
}

void device_wait_begin(struct device *d)
{
    CHECK(scope.inside && driver_gate_is_shut);
    CHECK(lock_none_above(LOCK_BACKGROUND)); /* the gate is passed again afterwards, and comes before all locks */
    driver_gate_is_shut = false;
    pthread_rwlock_unlock(&d->card->gate);
}

void device_wait_end(struct device *d)
{
    pthread_rwlock_rdlock(&d->card->gate);
    driver_gate_is_shut = true;
}

static void let_calls_end(struct device *d, unsigned captures)
{
    CHECK(!scope.inside);
    pthread_rwlock_wrlock(&d->card->quiet);
    pthread_rwlock_wrlock(&d->card->gate);
    atomic_fetch_add(&d->captures, captures);
    atomic_fetch_add(&d->card->captures, captures);
    pthread_rwlock_unlock(&d->card->gate);
    pthread_rwlock_unlock(&d->card->quiet);
}

static atomic_uint open_captures; /* of all devices */

void device_announce_capture(struct device *d)
{
    atomic_fetch_add(&open_captures, 1);
    let_calls_end(d, BREAKS(5) ? 0 : 1);
}

void device_let_calls_end(struct device *d)
{
    let_calls_end(d, 0);
}

void device_let_leave(struct card *card)
{
    CHECK(!scope.inside);
    pthread_rwlock_wrlock(&card->gate);
    pthread_rwlock_unlock(&card->gate);
}

void device_end_capture(struct device *d)
{
    atomic_fetch_sub(&d->captures, BREAKS(5) ? 0 : 1);
    atomic_fetch_sub(&d->card->captures, BREAKS(5) ? 0 : 1);
    atomic_fetch_sub(&open_captures, 1);
}

bool device_captures_are_open(void)
{
    return atomic_load_explicit(&open_captures, memory_order_relaxed);
}
