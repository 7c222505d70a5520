/*
 * topology.h: where memory and devices are on this machine, by hwloc: NUMA nodes, the node nearest to a device, memory bound to a node.
 * See topology.c. Only libcenote_host.so has it: the core links to no hwloc.
 */
#ifndef CENOTE_DRIVER_TOPOLOGY_H
#define CENOTE_DRIVER_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct topology;

/* Of this machine, or of the one that an XML file of hwloc describes: there nothing can be bound. NULL, and the reason in `why`. */
struct topology *topology_open(const char *xml, char *why, size_t room);
void             topology_close(struct topology *t);

/* Nodes are numbered from 0 in hwloc's order; the system has numbers of its own for them. */
int      topology_nodes(const struct topology *t);
int      topology_system_number(const struct topology *t, int node);
int      topology_node_named(const struct topology *t, int system_number);                 /* -1: there is none */
uint64_t topology_memory(const struct topology *t);                                        /* bytes, all nodes together */

/* The node nearest to a PCI device ("0000:3B:00.0"); -1 where the topology does not know it. */
int      topology_node_of_device(const struct topology *t, const char *bus_id);
unsigned topology_distance(const struct topology *t, int from, int to);                    /* as firmware gives it, 10: the same; 0: unknown */

/* New pages there come from the node, as long as it has some. False: the system does not allow it, or it is another machine. */
bool     topology_bind(const struct topology *t, int node, void *memory, size_t bytes);
int      topology_node_of_page(const struct topology *t, const void *page);              /* where it is now; -1: cannot be told */

#endif
