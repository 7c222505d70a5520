/*
 * pin.c: chunks come and go: addresses reserved, bound to their node, registered with the driver, and all of that back.
 *
 * A chunk for small pieces grows with what is registered for them already (an eighth), so that small programs pin little and large ones
 * register seldom; a big piece gets one that is as large as it is. Registering takes the driver milliseconds, so memory that is not used
 * stays registered; but before more is registered idle chunks are given back, about as many bytes as are to come, as long as all
 * registering so far took less than `budget_percent` of the time since we opened, or where a limit is reached.
 *
 * LOCKING: `growing` is taken here, inside the device.
 */
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/check.h"
#include "base/error.h"
#include "host/host.h"

#define GROWTH 8            /* chosen: a new chunk is that part of what is registered: at most an eighth is not used yet */
#define NS_PER_MS 1000000ull

static uint64_t chunk_bytes(const struct host *h, uint64_t needed)
{
    uint64_t most = (uint64_t)h->options.chunk_mib << 20;
    uint64_t bytes = h->small / GROWTH < most ? h->small / GROWTH : most;
    return round_up(bytes > needed && needed <= BIG ? bytes : needed, UNIT);
}

static int refuse(CUresult result, uint64_t bytes)
{
    struct rlimit locked;
    if (driver_result_is_sticky(result))
        return error_set(CENOTE_DEVICE_LOST, (int)result, "cuMemHostRegister says %s: the context is lost", driver_result_name(result));
    bool limited = !getrlimit(RLIMIT_MEMLOCK, &locked) && locked.rlim_cur != RLIM_INFINITY;
    return error_set(result == CUDA_ERROR_OUT_OF_MEMORY ? CENOTE_OUT_OF_HOST_MEMORY : CENOTE_DRIVER, (int)result,
                     "%llu bytes could not be pinned: cuMemHostRegister says %s%s", (unsigned long long)bytes, driver_result_name(result),
                     limited ? " (the process may lock little memory: see ulimit -l)" : "");
}

/*
 * Real memory at the chunk's addresses, preferably of its node. A child of a fork does not get it: it could not use it, and what the
 * system copies when one of the two writes would no longer be what is pinned.
 */
static bool place(struct host *h, struct chunk *c)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, access = PROT_READ | PROT_WRITE;
    void *at = (void *)c->at;
    /* Huge pages are reserved here and now: without that the first touch of one that is not there would end the program. */
    bool huge = h->options.huge_pages == 2 && mmap(at, c->bytes, access, flags | MAP_HUGETLB, -1, 0) != MAP_FAILED;
    if (!huge && mmap(at, c->bytes, access, flags | MAP_NORESERVE, -1, 0) == MAP_FAILED)
        return false;
    madvise(at, c->bytes, MADV_DONTFORK);
    if (h->options.huge_pages == 1)
        madvise(at, c->bytes, MADV_HUGEPAGE);
    c->bound = topology_bind(h->topology, c->node, at, c->bytes);
    return true;
}

/* A chunk has come or gone, and the driver took so long. Its bytes are counted by those who enter it and let it leave. LOCKING: `growing`. */
static void count(struct host *h, const struct chunk *c, bool comes, uint64_t ns)
{
    struct node *n = &h->node[c->node];
    h->registered += comes ? c->bytes : -c->bytes;
    h->small += c->big ? 0 : comes ? c->bytes : -c->bytes;
    lock_take(&h->lock);
    *(comes ? &n->registrations : &n->unregistrations) += 1;
    *(comes ? &n->registration_ns : &n->unregistration_ns) += ns;
    lock_give(&h->lock);
}

/* Some of its pages lie on another node: the first, the middle one and the last are asked, because each question costs. */
static bool has_strayed(const struct host *h, const struct chunk *c)
{
    for (uint64_t at = c->at; at < c->at + c->bytes; at += (c->bytes - HOST_PAGE) / 2) {
        int found = topology_node_of_page(h->topology, (const void *)at);
        if (found >= 0 && found != c->node)
            return true;
    }
    return false;
}

/* LOCKING: `growing`, in the device. */
static int enter(struct host *h, struct device *d, uint32_t number, uint32_t *piece)
{
    struct chunk *c = chunk_at(h, number);
    if (!place(h, c))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "the system has no memory for %llu bytes to be pinned", (unsigned long long)c->bytes);
    uint64_t begun = clock_ns();
    CUresult result = d->driver->cuMemHostRegister((void *)c->at, c->bytes, CU_MEMHOSTREGISTER_PORTABLE);
    if (result)
        return refuse(result, c->bytes);
    uint64_t ns = clock_ns() - begun;
    c->strayed = has_strayed(h, c);
    *piece = chunk_enter(h, number);
    if (*piece) {
        count(h, c, true, ns);
        return CENOTE_OK;
    }
    d->driver->cuMemHostUnregister((void *)c->at);
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for bookkeeping");
}

/* In the context that registered it, which may be another than that of `inside`. Where the program has ended it the registration has ended, too. */
static CUresult unregister(struct host *h, const struct device *inside, const struct chunk *c)
{
    bool is_here = inside == c->device;
    CUresult result = is_here ? device_entered() : device_visit(c->device, c->generation);
    bool visits = !is_here && !result;
    if (!result)
        result = c->device->driver->cuMemHostUnregister((void *)c->at);
    if (visits)
        device_visit_end(c->device);
    return result && host_was_reset(h, c->device, c->generation) ? CUDA_SUCCESS : result;
}

/* False: the driver will not let it go. LOCKING: `growing`, inside. */
static bool leave(struct host *h, const struct device *inside, uint32_t number)
{
    struct chunk *c = chunk_at(h, number);
    uint64_t begun = clock_ns();
    CUresult result = unregister(h, inside, c);
    if (result && !driver_result_is_sticky(result))
        result = unregister(h, inside, c); /* a refusal is asked for once more */
    if (result) {
        chunk_stay(h, number);
        return false;
    }
    count(h, c, false, clock_ns() - begun);
    chunk_unreserve(h, number);
    return true;
}

/* Idle chunks go until `keep` bytes are registered. One that the driver keeps is idle anew, and keeps no other. LOCKING: `growing`, inside. */
static uint64_t release(struct host *h, const struct device *inside, uint64_t keep, uint64_t idle_before, uint64_t step_before)
{
    uint64_t before = h->registered, now = clock_ns();
    uint32_t number;
    idle_before = idle_before < now ? idle_before : now;
    while (h->registered > keep && (number = chunk_leave(h, idle_before, step_before, 0)))
        leave(h, inside, number);
    return before - h->registered;
}

static bool within_budget(const struct host *h)
{
    uint64_t spent = 0;
    for (int node = 0; node < h->nodes; node++)
        spent += h->node[node].registration_ns + h->node[node].unregistration_ns;
    return spent * 100 <= (clock_ns() - h->opened) * h->options.budget_percent || h->options.budget_percent == 100;
}

/* Makes room below the limit, and keeps what is not used small. LOCKING: `growing`, in the device. */
static int make_room(struct host *h, const struct device *d, uint64_t *bytes, uint64_t needed)
{
    uint64_t decay = h->options.decay_ms * NS_PER_MS, now = clock_ns();
    release(h, d, 0, now > decay ? now - decay : 0, UINT64_MAX);
    if (within_budget(h))
        release(h, d, h->registered > *bytes ? h->registered - *bytes : 0, UINT64_MAX, UINT64_MAX);
    if (h->limit && h->registered + *bytes > h->limit)
        *bytes = round_up(needed, UNIT);
    if (h->limit && h->registered + *bytes > h->limit)
        release(h, d, h->limit > *bytes ? h->limit - *bytes : 0, UINT64_MAX, UINT64_MAX);
    if (!h->limit || h->registered + *bytes <= h->limit)
        return CENOTE_OK;
    return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "%llu bytes more would be pinned, and the limit is %llu with %llu pinned: see `limit` in "
                     "CENOTE_HOST_CONF", (unsigned long long)*bytes, (unsigned long long)h->limit, (unsigned long long)h->registered);
}

/* A new chunk that holds `needed` bytes; `piece` is all of it, live. LOCKING: `growing`, in the device. */
static int grow(struct host *h, struct device *d, int node, uint64_t needed, uint32_t *piece)
{
    uint64_t bytes = chunk_bytes(h, needed);
    int error = make_room(h, d, &bytes, needed);
    if (error)
        return error;
    uint32_t number = chunk_reserve(h, bytes);
    if (!number)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no addresses left for %llu bytes to be pinned", (unsigned long long)bytes);
    chunk_at(h, number)->node = node;
    chunk_at(h, number)->device = d;
    chunk_at(h, number)->generation = host_generation(h, d);
    chunk_at(h, number)->big = needed > BIG;
    error = enter(h, d, number, piece);
    if (error)
        chunk_unreserve(h, number);
    return error;
}

int pin_chunk(struct host *h, int device, int node, uint64_t needed, uint32_t *piece)
{
    int error;
    struct device *d = host_device(h, device, &error);
    if (!d)
        return error;
    uint64_t generation = host_generation(h, d);
    CUresult result = device_enter(d, generation);
    if (result) {
        bool lost = host_was_reset(h, d, generation) || driver_result_is_sticky(result);
        error = driver_is_exiting() ? error_set(CENOTE_EXITING, 0, "the process is exiting")
                                    : error_set(lost ? CENOTE_DEVICE_LOST : CENOTE_DRIVER, (int)result,
                                                "the context of device %d cannot be entered: %s", device, driver_result_name(result));
    } else {
        lock_take(&h->growing);
        error = grow(h, d, node, needed, piece);
        if (error == CENOTE_OUT_OF_HOST_MEMORY && release(h, d, 0, UINT64_MAX, UINT64_MAX)) /* what is idle may be what is missing */
            error = grow(h, d, node, needed, piece);
        lock_give(&h->growing);
    }
    device_leave(d);
    return error;
}

/* From within any device that can be entered, or one that was reset: what was registered there goes without a call. */
uint64_t pin_release(struct host *h, uint64_t keep, uint64_t idle_before, uint64_t step_before)
{
    uint64_t released = 0;
    for (int i = 0, done = false; i < DEVICES_MAX && !done; i++) {
        struct device *d = atomic_load(&h->devices[i]);
        if (!d)
            continue;
        uint64_t generation = host_generation(h, d);
        done = device_enter(d, generation) == CUDA_SUCCESS || host_was_reset(h, d, generation);
        if (done) {
            lock_take(&h->growing);
            released = release(h, d, keep, idle_before, step_before);
            lock_give(&h->growing);
        }
        device_leave(d);
    }
    if (atomic_load(&h->reset))
        host_look_for_resets(h);
    return released;
}
