/*
 * open.c: pinned memory is opened once for the process, by the first block or by cenote_host_open, and closed by a caller that wants everything
 * back. It knows devices by their number: a device is opened when memory is first asked for near it, and its node is looked up then. Where the
 * program has reset the device, its next context is entered once nothing that was registered in the old one is left.
 *
 *             host_get, cenote_host_open                 cenote_host_close
 *     closed ----------------------------> host_opened ---------------------> closed
 *
 * LOCKING: `host_opening` guards opening, closing, the opening of devices, and the end of threads. `closing` is for a thread that closes, and waits
 * for devices without `host_opening`: what a device is at may need a thread to end.
 */
#include <dlfcn.h>
#include <pthread.h>

#include "base/error.h"
#include "host/host.h"
#include "host/jemalloc.h"
#include "host/machine.h"

#define ADDRESSES_RATIO 4   /* chosen: addresses set aside, over the machine's memory: splinters cost addresses, not memory */
#define ADDRESSES_LEAST (64ull << 30)

struct host *_Atomic host_opened;
static struct topology *volatile reachable; /* by leak checkers, too: a struct host is none of malloc's memory */
LOCK_OF_PROCESS struct lock host_opening = LOCK_INITIALIZER(LOCK_POOLS);
static LOCK_OF_PROCESS struct lock closing = LOCK_INITIALIZER(LOCK_BACKGROUND);

/*
 * In the child of a fork the thread that had a lock does not exist. Where the driver was not touched yet the child may begin or go on: the locks and
 * flags of what is open are made anew, and no fork happens while a thread is in hwloc, which has a lock that it does not make anew.
 */
static pthread_mutex_t in_hwloc = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void)
{
    pthread_mutex_lock(&in_hwloc);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&in_hwloc);
}

static void process_forked(void)
{
    struct host *h = atomic_load(&host_opened);
    if (h) {
        lock_open(&h->growing, LOCK_TURN);
        lock_open(&h->lock, LOCK_ADDRESSES);
        pthread_mutex_init(&h->walking, NULL);
        threads_forked(h);
    }
    after_fork();
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, process_forked);
}

const char *cenote_host_message(void)
{
    return cenote_message();
}

/* ---------------------------------------------------------------------------------------------------------- opening and closing */

/* Bytes; 0: none. A limit of almost nothing is one of a byte: nothing may be registered. */
static uint64_t limit_of(const cenote_host_options *o, uint64_t memory)
{
    uint64_t bytes = o->limit < 0 ? host_memlock() : o->limit > 1 ? (uint64_t)o->limit : (uint64_t)(o->limit * (double)memory);
    if (o->limit == 0 || bytes == UINT64_MAX)
        return 0;
    return bytes ? bytes : 1;
}

static int open_topology(struct host *h)
{
    char why[256];
    pthread_mutex_lock(&in_hwloc);
    h->topology = topology_open(h->options.topology, why, sizeof(why));
    pthread_mutex_unlock(&in_hwloc);
    if (!h->topology)
        return error_set(CENOTE_BAD_OPTION, 0, "%s", why);
    reachable = h->topology;
    h->nodes = topology_nodes(h->topology);
    if (h->nodes > NODES_MAX)
        h->nodes = NODES_MAX;
    int named = h->options.node >= 0 ? topology_node_named(h->topology, h->options.node) : 0;
    if (named < 0 || named >= h->nodes)
        return error_set(CENOTE_BAD_OPTION, 0, named < 0 ? "there is no NUMA node %d: see `node` in CENOTE_HOST_CONF"
                         : "NUMA node %d has %d before it, and no more can be used: see `node` in CENOTE_HOST_CONF", h->options.node, NODES_MAX);
    h->options.topology = NULL; /* the caller's text */
    return CENOTE_OK;
}

static int open_parts(struct host *h)
{
    if (!threads_open(h))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "the process has as many keys for the end of threads (pthread_key_create) as there can be");
    if (!driver_stay_loaded())
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "the library cannot be kept loaded: %s", dlerror());
    if (!jemalloc_table())
        return CENOTE_NOT_SUPPORTED;
    uint64_t memory = machine_memory();
    uint64_t addresses = memory * ADDRESSES_RATIO > ADDRESSES_LEAST ? memory * ADDRESSES_RATIO : ADDRESSES_LEAST;
    h->limit = limit_of(&h->options, memory);
    if (!pieces_open(h, addresses))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no addresses, or no host memory for bookkeeping (see ulimit -v)");
    int error = open_topology(h); /* last of what may fail again and again: it takes milliseconds */
    return error ? error : arenas_open(h);
}

/* After pin_release; what the driver would not let go of stays where it is. LOCKING: `host_opening`. */
static void close_parts(struct host *h)
{
    threads_close(h);
    uses_close(h);
    for (int i = 0; i < DEVICES_MAX; i++)
        if (h->devices[i])
            device_close(h->devices[i]);
    pieces_close(h);
    pthread_mutex_lock(&in_hwloc);
    topology_close(h->topology);
    pthread_mutex_unlock(&in_hwloc);
    pthread_mutex_destroy(&h->walking);
    lock_close(&h->growing);
    memory_unmap(h, sizeof(*h));
}

/* The driver is not asked for yet: a process that has only opened may fork. LOCKING: `host_opening`. */
static int open_new(const cenote_host_options *given, size_t size)
{
    static uint64_t number;
    int error;
    struct host *h = memory_map(sizeof(*h));
    if (!h)
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for bookkeeping");
    h->number = ++number;
    h->opened = clock_ns();
    lock_open(&h->growing, LOCK_TURN);
    pthread_mutex_init(&h->walking, NULL);
    error = host_options_check(given, size, &h->options);
    h->large = h->options.large_kib ? (uint64_t)h->options.large_kib << 10 : UINT64_MAX;
    if (!error)
        error = open_parts(h);
    if (error) {
        arenas_close(h);
        close_parts(h);
        return error;
    }
    if (!h->options.announced)
        touch_be_careful(true);
    atomic_store_explicit(&host_opened, h, memory_order_release);
    return CENOTE_OK;
}

int(cenote_host_open)(const cenote_host_options *options, size_t size)
{
    if (driver_is_forked())
        return error_set(CENOTE_FORKED, 0, "this process is a fork of one that uses CUDA: start it anew (spawn) instead");
    lock_take(&host_opening);
    int error = atomic_load(&host_opened) ? error_set(CENOTE_BUSY, 0, "pinned memory is open already: its options come before the first block")
                                          : open_new(options, size);
    lock_give(&host_opening);
    return error;
}

/* LOCKING: `closing`, so that pinned memory stays open. */
static void be_careful(struct host *h, bool announced)
{
    lock_take(&host_opening);
    bool changes = announced != (h->options.announced != 0);
    h->options.announced = announced;
    if (changes)
        touch_be_careful(!announced);
    lock_give(&host_opening);
    for (int i = 0; i < DEVICES_MAX && changes && !announced; i++)
        if (atomic_load(&h->devices[i]))
            device_let_calls_end(atomic_load(&h->devices[i]));
}

int cenote_host_set_announced(int announced)
{
    int error = CENOTE_OK;
    if (announced != 0 && announced != 1)
        return error_set(CENOTE_INVALID, 0, "captures are announced, 1, or they are not, 0: cenote_host_set_announced knows no %d", announced);
    if (!host_get(&error))
        return error;
    lock_take(&closing);
    struct host *h = atomic_load(&host_opened);
    if (h)
        be_careful(h, announced);
    lock_give(&closing);
    return h ? CENOTE_OK : error_set(CENOTE_BUSY, 0, "another thread is closing pinned memory");
}

struct host *host_get(int *error)
{
    struct host *h = atomic_load_explicit(&host_opened, memory_order_acquire);
    if (driver_is_forked()) {
        *error = error_set(CENOTE_FORKED, 0, "this process is a fork of one that uses CUDA: start it anew (spawn) instead");
        return NULL;
    }
    if (h)
        return h;
    lock_take(&host_opening);
    *error = atomic_load(&host_opened) ? CENOTE_OK : open_new(NULL, 0);
    h = atomic_load(&host_opened);
    lock_give(&host_opening);
    return h;
}

/* LOCKING: `host_opening`. */
static uint64_t live_blocks(struct host *h)
{
    uint64_t blocks = 0;
    threads_flush(h, FLUSH_ALL);
    for (int node = 0; node < h->nodes; node++)
        blocks += atomic_load(&h->node[node].in[2]) - atomic_load(&h->node[node].out[2]);
    return blocks;
}

/* LOCKING: `host_opening`. */
static int close_all(struct host *h, int error)
{
    uint64_t blocks = live_blocks(h);
    if (blocks)
        return error_set(CENOTE_BUSY, 0, "%llu blocks of pinned memory are live", (unsigned long long)blocks);
    for (struct thread *t = atomic_load(&h->threads); t; t = t->next)
        thread_drop_caches(t);
    arenas_close(h);
    pin_release(h, 0, UINT64_MAX, UINT64_MAX);
    uint64_t left = h->registered;
    atomic_store(&host_opened, NULL);
    if (!h->options.announced)
        touch_be_careful(false);
    close_parts(h);
    return !left ? error : error_set(error ? error : CENOTE_DRIVER, cenote_driver_result(),
                                     "the driver would not unregister %llu bytes: they stay as they are", (unsigned long long)left);
}

int cenote_host_close(void)
{
    if (driver_is_forked() || driver_is_exiting())
        return error_set(driver_is_forked() ? CENOTE_FORKED : CENOTE_EXITING, 0, "no driver call may be made any more");
    lock_take(&closing);
    struct host *h = atomic_load(&host_opened);
    int error = h ? uses_wait(h, true) : CENOTE_OK;
    if (h && !error && atomic_load(&h->pending))
        error = error_set(CENOTE_BUSY, 0, "%u freed blocks wait for streams that are being captured, or for devices as a whole, which are not waited "
                          "for with announced:0", atomic_load(&h->pending));
    if (h && (!error || error == CENOTE_DEVICE_LOST)) {
        lock_take(&host_opening);
        error = close_all(h, error);
        lock_give(&host_opening);
    }
    lock_give(&closing);
    return error;
}

/* --------------------------------------------------------------------------------------------------------------------- devices */

static int make_room_for_events(struct host *h, int ordinal, const struct device *d)
{
    if (!h->events[ordinal])
        h->events[ordinal] = memory_map(sizeof(*h->events[ordinal]));
    if (!h->sweeps[ordinal])
        h->sweeps[ordinal] = memory_map(sizeof(*h->sweeps[ordinal]));
    if (!h->events[ordinal] || !h->sweeps[ordinal])
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no host memory for bookkeeping");
    return d->driver->cuMemHostRegister && d->driver->cuMemHostUnregister ? CENOTE_OK
           : error_set(CENOTE_DRIVER_TOO_OLD, 0, "the CUDA driver lacks cuMemHostRegister");
}

/* LOCKING: `host_opening`. NULL: it cannot be opened. */
static struct device *open_device(struct host *h, int ordinal, int *error)
{
    struct device *d = device_open(ordinal, error);
    if (d && (*error = make_room_for_events(h, ordinal, d))) {
        device_close(d);
        d = NULL;
    }
    if (!d)
        return NULL;
    atomic_store(&h->generations[ordinal], atomic_load(&d->generation));
    atomic_store_explicit(&h->devices[ordinal], d, memory_order_release);
    return d;
}

/* Its context has ended, and nothing that was registered there is left. */
static bool is_over(struct host *h, struct device *d)
{
    return !device_lives(d, host_generation(h, d)) && !chunks_are_of(h, host_generation(h, d));
}

struct device *host_device(struct host *h, int ordinal, int *error)
{
    if (ordinal < 0 || ordinal >= DEVICES_MAX)
        return device_open(ordinal, error); /* which says so */
    struct device *d = atomic_load_explicit(&h->devices[ordinal], memory_order_acquire);
    if (d && !is_over(h, d))
        return d;
    lock_take(&host_opening);
    d = atomic_load(&h->devices[ordinal]);
    if (!d)
        d = open_device(h, ordinal, error);
    else if (is_over(h, d) && device_begin_anew(d))
        atomic_store(&h->generations[ordinal], atomic_load(&d->generation));
    lock_give(&host_opening);
    return d;
}

/*
 * A reset ends the context with all that was registered in it: what lies there is memory as any other. So nothing is handed out any more until all
 * that was registered there has gone. What other devices have registered is not told apart: jemalloc keeps both.
 */
void host_look_for_resets(struct host *h)
{
    int reset = 0;
    for (int i = 0; i < DEVICES_MAX && !reset; i++) {
        const struct device *d = atomic_load(&h->devices[i]);
        if (d && !device_is(d, host_generation(h, d)) && chunks_are_of(h, host_generation(h, d)))
            reset = i + 1;
    }
    atomic_store(&h->reset, reset);
}

bool host_was_reset(struct host *h, const struct device *d, uint64_t generation)
{
    bool was_reset = !device_is(d, generation);
    if (was_reset && !atomic_load(&h->reset))
        host_look_for_resets(h);
    return was_reset;
}

int cenote_host_stream_set_immortal(int device, cenote_stream stream)
{
    int error = CENOTE_OK;
    struct host *h = host_get(&error);
    struct device *d = h ? host_device(h, device, &error) : NULL;
    if (!d)
        return error;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return CENOTE_OK;
    CUcontext context;
    CUdevice whose;
    if (!device_lives(d, host_generation(h, d))) /* the next context is another device of ours, which would not hear of it */
        return error_set(CENOTE_DEVICE_LOST, 0, "the program has reset device %d, and what was pinned there is not pinned any more: free the blocks "
                         "that are there, call cenote_host_trim, and then name the stream", device);
    CUresult result = device_of_stream(d, stream, &context, &whose);
    if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE || (!result && whose != d->handle))
        return error_set(CENOTE_INVALID, (int)result, "%p is no stream of device %d", (void *)stream, device);
    if (result && result != CUDA_ERROR_NOT_SUPPORTED)
        return error_set(driver_result_is_sticky(result) ? CENOTE_DEVICE_LOST : CENOTE_DRIVER, (int)result,
                         "the driver does not say whose stream %p is: %s", (void *)stream, driver_result_name(result));
    touch_add(d, stream, 0);
    return CENOTE_OK;
}

/* What the topology says; where it does not know the device: the first node. */
static int nearest_node(struct host *h, const struct device *d)
{
    char bus_id[32] = "";
    if (h->options.node >= 0)
        return topology_node_named(h->topology, h->options.node);
    if (d->driver->cuDeviceGetPCIBusId && d->driver->cuDeviceGetPCIBusId(bus_id, sizeof(bus_id), d->handle))
        return 0;
    int node = topology_node_of_device(h->topology, bus_id);
    return node >= 0 && node < h->nodes ? node : 0;
}

int host_node(struct host *h, int device, int *error)
{
    int node = device >= 0 && device < DEVICES_MAX ? atomic_load_explicit(&h->near_node[device], memory_order_relaxed) : 0;
    if (node)
        return node - 1;
    const struct device *d = host_device(h, device, error);
    if (!d)
        return -1;
    node = nearest_node(h, d);
    atomic_store_explicit(&h->near_node[device], node + 1, memory_order_relaxed);
    return node;
}

/* -------------------------------------------------------------------------------------------------------------------- trimming */

static int trim(struct host *h, uint64_t keep, uint64_t step_before, unsigned flags)
{
    int error = flags & CENOTE_TRIM_WAIT ? uses_wait(h, true) : CENOTE_OK;
    struct thread *t = thread_mine(h);
    if (t)
        uses_poll(h, t, true);
    threads_flush(h, FLUSH_ALL);
    uint64_t released = pin_release(h, keep, UINT64_MAX, step_before);
    lock_take(&h->lock);
    h->node[0].trimmed += released;
    lock_give(&h->lock);
    return error;
}

int cenote_host_trim(uint64_t keep_bytes, unsigned flags)
{
    struct host *h = atomic_load(&host_opened);
    if (driver_is_forked())
        return error_set(CENOTE_FORKED, 0, "this process is a fork of the one that owns the memory");
    if (flags & ~CENOTE_TRIM_WAIT)
        return error_set(CENOTE_INVALID, 0, "cenote_host_trim knows no flags %#x", flags);
    return !h || driver_is_exiting() ? CENOTE_OK : trim(h, keep_bytes, UINT64_MAX, flags);
}

int cenote_host_step(void)
{
    struct host *h = atomic_load(&host_opened);
    if (!h || driver_is_forked() || driver_is_exiting())
        return CENOTE_OK;
    uint64_t step = atomic_fetch_add(&h->steps, 1) + 1, every = h->options.trim_every, now = clock_ns();
    uint64_t decay = h->options.decay_ms * 1000000ull;
    if (every && step % every == 0)
        return trim(h, 0, step >= every ? step - every : 0, 0);
    if (now > decay)
        pin_release(h, 0, now - decay, UINT64_MAX);
    return CENOTE_OK;
}
