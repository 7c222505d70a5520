/*
 * topology.c: hwloc, as far as memory needs it. See topology.h.
 *
 * A device's locality is what its PCI bus hangs on: a node, or a package with several. Of several the first is taken, as hwloc orders
 * them. Binding is a preference, not a demand: a node without memory must not have the system kill the program, which strict binding may
 * do when the pages are first touched; a caller that wants to know asks where they are.
 *
 * LOCKING: none; a topology does not change once it is loaded.
 */
#include "driver/topology.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rights.h"

struct topology {
    hwloc_topology_t hwloc;
    bool             is_here;
};

/* Of other kinds of devices hwloc would ask their libraries, CUDA's among them: they are left out, as in near.c. */
static bool load(hwloc_topology_t hwloc, const char *xml)
{
    return (!xml || !hwloc_topology_set_xml(hwloc, xml)) &&
           !hwloc_topology_set_type_filter(hwloc, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) &&
           !hwloc_topology_load(hwloc) && hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_NUMANODE) > 0;
}

struct topology *topology_open(const char *xml, char *why, size_t room)
{
    if (rights_forbid("HWLOC_")) { /* it may name a plug-in, which hwloc would run with rights that the caller does not have */
        snprintf(why, room, "the program has other rights than its caller, who has set a variable of hwloc's (HWLOC_...): unset it");
        return NULL;
    }
    struct topology *t = calloc(1, sizeof(*t));
    if (!t || hwloc_topology_init(&t->hwloc)) {
        free(t);
        snprintf(why, room, "no memory for the topology");
        return NULL;
    }
    if (!load(t->hwloc, xml)) {
        topology_close(t);
        snprintf(why, room, "hwloc cannot read the topology of %s", xml ? xml : "this machine");
        return NULL;
    }
    t->is_here = hwloc_topology_is_thissystem(t->hwloc);
    return t;
}

void topology_close(struct topology *t)
{
    if (t)
        hwloc_topology_destroy(t->hwloc);
    free(t);
}

static hwloc_obj_t node_at(const struct topology *t, int node)
{
    return hwloc_get_obj_by_type(t->hwloc, HWLOC_OBJ_NUMANODE, (unsigned)node);
}

int topology_nodes(const struct topology *t)
{
    return hwloc_get_nbobjs_by_type(t->hwloc, HWLOC_OBJ_NUMANODE);
}

int topology_system_number(const struct topology *t, int node)
{
    return (int)node_at(t, node)->os_index;
}

int topology_node_named(const struct topology *t, int system_number)
{
    hwloc_obj_t node = hwloc_get_numanode_obj_by_os_index(t->hwloc, (unsigned)system_number);
    return system_number >= 0 && node ? (int)node->logical_index : -1;
}

uint64_t topology_memory(const struct topology *t)
{
    return hwloc_get_root_obj(t->hwloc)->total_memory;
}

int topology_node_of_device(const struct topology *t, const char *bus_id)
{
    hwloc_obj_t pci = hwloc_get_pcidev_by_busidstring(t->hwloc, bus_id);
    hwloc_obj_t place = pci ? hwloc_get_non_io_ancestor_obj(t->hwloc, pci) : NULL;
    for (int node = 0; place && place->nodeset && node < topology_nodes(t); node++)
        if (hwloc_bitmap_isset(place->nodeset, node_at(t, node)->os_index))
            return node;
    return -1;
}

unsigned topology_distance(const struct topology *t, int from, int to)
{
    struct hwloc_distances_s *distances = NULL;
    unsigned count = 1;
    hwloc_uint64_t there = 0, back = 0;
    if (hwloc_distances_get_by_name(t->hwloc, "NUMALatency", &count, &distances, 0) || !count || !distances)
        return 0;
    if (hwloc_distances_obj_pair_values(distances, node_at(t, from), node_at(t, to), &there, &back))
        there = 0;
    hwloc_distances_release(t->hwloc, distances);
    return (unsigned)there;
}

bool topology_bind(const struct topology *t, int node, void *memory, size_t bytes)
{
    return t->is_here &&
           !hwloc_set_area_membind(t->hwloc, memory, bytes, node_at(t, node)->nodeset, HWLOC_MEMBIND_BIND, HWLOC_MEMBIND_BYNODESET);
}

int topology_node_of_page(const struct topology *t, const void *page)
{
    int found = -1;
    hwloc_bitmap_t nodes = t->is_here ? hwloc_bitmap_alloc() : NULL;
    if (nodes && !hwloc_get_area_memlocation(t->hwloc, page, 1, nodes, HWLOC_MEMBIND_BYNODESET) && hwloc_bitmap_weight(nodes) == 1)
        found = topology_node_named(t, hwloc_bitmap_first(nodes));
    hwloc_bitmap_free(nodes);
    return found;
}
