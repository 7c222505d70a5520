/*
 * near.c: which processors are near a device: those of the package or node that its PCI bus hangs on, as hwloc knows them.
 *
 * libcenote.so runs where there is no hwloc, so it is not linked: it is loaded when a thread is to be placed, and where it is missing
 * that thread runs wherever the system lets it. The topology is read, asked once and let go of. What pinned host memory wants of hwloc is
 * in topology.c, which links it.
 *
 * LOCKING: none; from one thread at a time.
 */
#include "driver/near.h"

#if __has_include(<hwloc.h>)
#include <dlfcn.h>
#include <hwloc.h>
#include <stdio.h>

#include "base/rights.h"

#define LIBRARY "libhwloc.so.15" /* all of hwloc 2 */

#define FUNCTIONS(F) \
    F(topology_init) F(topology_set_type_filter) F(topology_load) F(topology_is_thissystem) F(topology_destroy) F(get_obj_by_depth) F(bitmap_isset)

static struct {
#define FUNCTION(name) __typeof__(hwloc_##name) *name;
    FUNCTIONS(FUNCTION)
#undef FUNCTION
} table;

/* All of them, or none. */
static bool load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    bool all = library != NULL;
#define FUNCTION(name) all = all && (*(void **)&table.name = dlsym(library, "hwloc_" #name));
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    return all;
}

/* Of other kinds of devices hwloc would ask their libraries, CUDA's among them: they are left out. */
static bool read_machine(hwloc_topology_t *topology)
{
    if (table.topology_init(topology))
        return false;
    if (!table.topology_set_type_filter(*topology, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) && !table.topology_load(*topology) &&
        table.topology_is_thissystem(*topology))
        return true;
    table.topology_destroy(*topology);
    return false;
}

static hwloc_obj_t find(hwloc_topology_t topology, unsigned domain, unsigned bus, unsigned device)
{
    for (unsigned i = 0;; i++) {
        hwloc_obj_t pci = table.get_obj_by_depth(topology, HWLOC_TYPE_DEPTH_PCI_DEVICE, i);
        if (!pci || (pci->attr->pcidev.domain == domain && pci->attr->pcidev.bus == bus && pci->attr->pcidev.dev == device))
            return pci;
    }
}

bool near_processors(const struct device *d, cpu_set_t *processors)
{
    char id[32];
    unsigned domain, bus, device;
    hwloc_topology_t topology;
    CPU_ZERO(processors);
    if (!d->driver->cuDeviceGetPCIBusId || d->driver->cuDeviceGetPCIBusId(id, sizeof id, d->handle) ||
        sscanf(id, "%x:%x:%x", &domain, &bus, &device) != 3 || rights_forbid("HWLOC_") || !load() || !read_machine(&topology))
        return false;
    hwloc_obj_t place = find(topology, domain, bus, device);
    while (place && !place->cpuset)
        place = place->parent;
    for (unsigned i = 0; place && i < CPU_SETSIZE; i++)
        if (table.bitmap_isset(place->cpuset, i))
            CPU_SET(i, processors);
    table.topology_destroy(topology);
    return CPU_COUNT(processors) != 0;
}

#else

bool near_processors(const struct device *d, cpu_set_t *processors)
{
    (void)d;
    CPU_ZERO(processors);
    return false;
}

#endif
