/*
 * report.c: what is known of pinned memory: counters, and the report of nodes and devices. Nothing is changed here but peaks.
 *
 * LOCKING: what a thread counted is flushed under its lock, then `lock` for the rest.
 */
#include <string.h>

#include "base/error.h"
#include "base/sized.h"
#include "host/host.h"
#include "stats/text/out.h"
#include "stats/text/quantity.h"

static cenote_level level(const struct node *n, int q)
{
    cenote_level l = {0};
    l.total_in = atomic_load(&n->in[q]);
    l.total_out = atomic_load(&n->out[q]);
    l.current = l.total_in - l.total_out;
    l.peak = atomic_load(&n->peak[q]);
    return l;
}

/* LOCKING: `lock`. */
static void add_node(cenote_host_stats *stats, const struct node *n)
{
    cenote_host_stats s = {.requested = level(n, 0), .allocated = level(n, 1), .blocks = level(n, 2), .registered = n->registered};
    s.registrations = n->registrations;
    s.registration_ns = n->registration_ns;
    s.unregistrations = n->unregistrations;
    s.unregistration_ns = n->unregistration_ns;
    s.waits = n->waits;
    s.ooms = n->ooms;
    s.trimmed = n->trimmed;
    s.cached = s.registered.current - s.allocated.current;
    s.bound = n->bound;
    s.strayed = n->strayed;
    s.pending_blocks = n->pending;
#define CENOTE_LEVEL(name, unit, text) \
    stats->name.current += s.name.current; \
    stats->name.peak += s.name.peak; \
    stats->name.total_in += s.name.total_in; \
    stats->name.total_out += s.name.total_out;
#define CENOTE_COUNT(name, unit, text) stats->name += s.name;
#define CENOTE_GAUGE(name, unit, text) stats->name += s.name;
#include <cenote/host_counters.def>
#undef CENOTE_LEVEL
#undef CENOTE_COUNT
#undef CENOTE_GAUGE
}

int(cenote_host_node_stats)(int node, cenote_host_stats *stats, size_t size)
{
    cenote_host_stats sum = {0};
    int error = sized_check(size, "cenote_host_stats");
    if (error || !stats)
        return error ? error : error_set(CENOTE_INVALID, 0, "stats is NULL");
    struct host *h = host_get(&error);
    if (!h)
        return error;
    int chosen = node < 0 ? -1 : topology_node_named(h->topology, node);
    if (node != -1 && (chosen < 0 || chosen >= h->nodes))
        return error_set(CENOTE_INVALID, 0, "there is no NUMA node %d", node);
    threads_flush(h, FLUSH_COUNTS);
    lock_take(&h->lock);
    for (int i = 0; i < h->nodes; i++)
        if (chosen < 0 || chosen == i)
            add_node(&sum, &h->node[i]);
    lock_give(&h->lock);
    sized_out(stats, size, &sum, sizeof(sum));
    return CENOTE_OK;
}

int cenote_host_reset_peaks(void)
{
    int error = CENOTE_OK;
    struct host *h = host_get(&error);
    if (!h)
        return error;
    threads_flush(h, FLUSH_COUNTS);
    lock_take(&h->lock);
    for (int i = 0; i < h->nodes; i++) {
        struct node *n = &h->node[i];
        n->registered.peak = n->registered.current;
        for (int q = 0; q < 3; q++)
            atomic_store(&n->peak[q], atomic_load(&n->in[q]) - atomic_load(&n->out[q]));
    }
    lock_give(&h->lock);
    return CENOTE_OK;
}

int cenote_host_check(void)
{
    const char *broken;
    struct host *h = atomic_load(&host_opened);
    if (!h || driver_is_forked() || pieces_are_valid(h, &broken))
        return CENOTE_OK;
    return error_set(CENOTE_INVALID, 0, "pinned memory: %s", broken);
}

/* ---------------------------------------------------------------------------------------------------------------------- report */

static void say_node(struct out *text, struct host *h, int node)
{
    char registered[QUANTITY_TEXT], allocated[QUANTITY_TEXT];
    cenote_host_stats s;
    int number = topology_system_number(h->topology, node);
    if (cenote_host_node_stats(number, &s))
        return;
    /* host_get, of another file, has an error where it has no memory: NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Branch) */
    const char *bound = !s.registered.current             ? "nothing to bind yet"
                        : s.strayed                       ? "part of it lies on another node"
                        : s.bound == s.registered.current ? "bound to it"
                                                          : "not bound: the system does not allow it, or it is another machine's topology";
    out_print(text, "node %d: %s registered, %s in blocks, %s\n", number, quantity_write_bytes(registered, s.registered.current),
        quantity_write_bytes(allocated, s.allocated.current), bound);
}

static void say_device(struct out *text, struct host *h, int device)
{
    int error, node = host_node(h, device, &error);
    if (node < 0)
        return;
    out_print(text, "device %d: memory from node %d%s", device, topology_system_number(h->topology, node), h->options.node >= 0 ? ", by option" : "");
    for (int other = 0; other < h->nodes; other++) {
        unsigned distance = topology_distance(h->topology, node, other);
        if (distance)
            out_print(text, "%s %d at %u", other ? "," : "; nodes seen from there:", topology_system_number(h->topology, other), distance);
    }
    out_print(text, "\n");
}

size_t cenote_host_report(char *text, size_t room)
{
    int error = CENOTE_OK, devices = 0;
    struct out out = {text, room, 0};
    struct host *h = host_get(&error);
    const struct driver *t = h ? driver_table(&error) : NULL;
    if (!t || t->cuDeviceGetCount(&devices))
        return 0;
    out_print(&out, "%d NUMA node%s", h->nodes, h->nodes == 1 ? ": every device is as near as any other\n" : "s\n");
    for (int node = 0; node < h->nodes; node++)
        say_node(&out, h, node);
    for (int device = 0; device < devices && device < DEVICES_MAX; device++)
        say_device(&out, h, device);
    return out.length;
}
