/*
 * pinned.h: a scene for pinned memory: a simulated card whose clock stands still, pinned memory open, and what every test ends with: the
 * card's own books are empty and nothing was done that CUDA forbids.
 */
#ifndef CENOTE_TESTS_HOST_PINNED_H
#define CENOTE_TESTS_HOST_PINNED_H

#include "driver/driver.h"
#include "tests/api/scene.h"

#include <cenote/host.h>
#include <hwloc.h>
#include <sys/mman.h>

#define TOPOLOGIES "tests/host/topologies/"

static inline cenote_host_options pinned_options(void)
{
    cenote_host_options options;
    DONE(cenote_host_options_default(&options));
    options.budget_percent = 100;   /* nothing depends on the host's speed */
    return options;
}

/* hwloc reads this machine once, and then what it has written down: in a virtual machine it takes 14 ms to read the configuration of all PCI devices,
   and some tests open pinned memory hundreds of times. */
static inline void pinned_write_machine_down(void)
{
    static char path[32];
    hwloc_topology_t machine;
    if (getenv("HWLOC_XMLFILE"))
        return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", memfd_create("topology", 0));
    REQUIRE(!hwloc_topology_init(&machine) && !hwloc_topology_set_io_types_filter(machine, HWLOC_TYPE_FILTER_KEEP_IMPORTANT));
    REQUIRE(!hwloc_topology_load(machine) && !hwloc_topology_export_xml(machine, path, 0));
    hwloc_topology_destroy(machine);
    setenv("HWLOC_XMLFILE", path, 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
}

static inline uint64_t pinned_chunks(void)
{
    return sim_registered(NULL);
}

static inline void pinned_open_devices(struct scene *scene, const cenote_host_options *options, int devices)
{
    struct sim_shape shape = scene_card(64 * MIB);
    shape.devices = devices;
    scene_open_card(scene, &shape);
    DONE(cenote_host_open(options));
}

static inline void pinned_open(struct scene *scene)
{
    cenote_host_options options = pinned_options();
    pinned_open_devices(scene, &options, 1);
}

static inline void pinned_close(struct scene *scene)
{
    DONE(cenote_host_check());
    DONE(cenote_host_close());
    EXPECT_EQ(pinned_chunks(), 0);
    scene_close(scene);
}

static inline cenote_host_stats pinned_stats(void)
{
    cenote_host_stats stats;
    DONE(cenote_host_node_stats(-1, &stats));
    return stats;
}

static inline char *pinned_take(size_t bytes)
{
    void *block = NULL;
    DONE(cenote_host_alloc(0, bytes, &block));
    return block;
}

#endif
