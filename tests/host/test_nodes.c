/*
 * test_nodes.c: memory comes from the node nearest to the device, on this machine and on two that hwloc's files describe:
 *     two-nodes.xml    two packages with a node each: device 0 (bus 01) at node 1, device 1 (bus 02) at node 0
 *     four-nodes.xml   two packages with two nodes each, which the system counts 0, 2, 4, 6: device 0 at the first package, device 1 at
 *                      node 6, device 2 at node 4, device 3 nowhere
 */
#include "driver/topology.h"
#include "tests/host/pinned.h"

/* The path of the topology is read during the call alone: afterwards it names another file. */
static void open_with(struct scene *scene, const char *topology, int devices, int node)
{
    cenote_host_options options = pinned_options();
    char path[200];
    snprintf(path, sizeof path, "%s", topology);
    options.topology = path;
    options.node = node;
    pinned_open_devices(scene, &options, devices);
    memset(path, 'x', sizeof path - 1);
}

static int node_of(int device, size_t bytes)
{
    void *block;
    cenote_host_block found = {.node = -9};
    DONE(cenote_host_alloc(device, bytes, &block));
    DONE(cenote_host_find(block, &found));
    DONE(cenote_host_free(block));
    return found.node;
}

static const char *report(void)
{
    static char text[2000];
    size_t length = cenote_host_report(text, sizeof text);
    EXPECT(length < sizeof text);
    EXPECT_EQ(cenote_host_report(NULL, sizeof text), length); /* no text at all */
    return text;
}

CASE(two_nodes)
{
    struct scene scene;
    open_with(&scene, TOPOLOGIES "two-nodes.xml", 2, -1);
    for (size_t bytes = 100; bytes < 5 * MIB; bytes *= 10) {
        EXPECT_EQ(node_of(0, bytes), 1);
        EXPECT_EQ(node_of(1, bytes), 0);
    }
    EXPECT(strstr(report(), "2 NUMA nodes\n"));
    EXPECT(strstr(report(), "device 0: memory from node 1; nodes seen from there: 0 at 21, 1 at 10\n"));
    EXPECT(strstr(report(), "device 1: memory from node 0; nodes seen from there: 0 at 10, 1 at 21\n"));
    EXPECT(strstr(report(), "not bound"));
    pinned_close(&scene);
}

CASE(four_nodes)
{
    struct scene scene;
    open_with(&scene, TOPOLOGIES "four-nodes.xml", 4, -1);
    EXPECT_EQ(node_of(0, 1000), 0);
    EXPECT_EQ(node_of(1, 1000), 6);
    EXPECT_EQ(node_of(2, 1000), 4);
    EXPECT_EQ(node_of(3, 1000), 0);
    EXPECT(strstr(report(), "device 1: memory from node 6; nodes seen from there: 0 at 32, 2 at 32, 4 at 12, 6 at 10\n"));
    pinned_close(&scene);
}

CASE(a_node_by_option)
{
    struct scene scene;
    open_with(&scene, TOPOLOGIES "four-nodes.xml", 2, 2);
    EXPECT_EQ(node_of(0, 1000), 2);
    EXPECT_EQ(node_of(1, 100000), 2);
    EXPECT(strstr(report(), "device 1: memory from node 2, by option"));
    pinned_close(&scene);
}

/* A thread's caches hold blocks of two nodes, and none goes to the wrong one. */
CASE(nodes_do_not_mix)
{
    struct scene scene;
    void *block[2][200];
    open_with(&scene, TOPOLOGIES "two-nodes.xml", 2, -1);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 200; i++)
            for (int device = 0; device < 2; device++) {
                cenote_host_block found;
                DONE(cenote_host_alloc(device, (size_t)i * 300 + 1, &block[device][i]));
                DONE(cenote_host_find(block[device][i], &found));
                EXPECT_EQ(found.node, 1 - device);
            }
        for (int i = 0; i < 200; i++)
            for (int device = 0; device < 2; device++)
                DONE(cenote_host_free(block[device][(i * 7 + round) % 200]));
    }
    uint64_t peaks = 0;
    for (int node = 0; node < 2; node++) {
        cenote_host_stats stats;
        DONE(cenote_host_node_stats(node, &stats));
        EXPECT_EQ(stats.blocks.total_in, 600);
        EXPECT_EQ(stats.blocks.current, 0);
        peaks += stats.requested.peak;
    }
    EXPECT_EQ(pinned_stats().requested.peak, peaks);
    EXPECT_EQ(pinned_stats().blocks.total_in, 1200);
    pinned_close(&scene);
}

CASE(what_is_not_there_is_refused)
{
    struct scene scene;
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_host_options options = pinned_options();
    scene_open_card(&scene, &shape);
    options.topology = TOPOLOGIES "no-such-file.xml";
    EXPECT_EQ(cenote_host_open(&options), CENOTE_BAD_OPTION);
    EXPECT(strstr(cenote_host_message(), "no-such-file.xml"));
    options.topology = TOPOLOGIES "two-nodes.xml";
    options.node = 7;
    EXPECT_EQ(cenote_host_open(&options), CENOTE_BAD_OPTION);
    EXPECT(strstr(cenote_host_message(), "no NUMA node 7"));
    scene_close(&scene);
}

/* More nodes than are known here: the first are used, and no other can be asked for. */
CASE(a_hundred_nodes)
{
    char path[32];
    struct scene scene;
    hwloc_topology_t machine;
    cenote_host_options options = pinned_options();
    snprintf(path, sizeof path, "/proc/self/fd/%d", memfd_create("topology", 0));
    REQUIRE(!hwloc_topology_init(&machine) && !hwloc_topology_set_synthetic(machine, "group:10 node:10 pu:1"));
    REQUIRE(!hwloc_topology_load(machine) && !hwloc_topology_export_xml(machine, path, 0));
    hwloc_topology_destroy(machine);
    options.topology = path;
    options.node = 64;
    EXPECT_EQ(cenote_host_open(&options), CENOTE_BAD_OPTION);
    EXPECT(strstr(cenote_host_message(), "NUMA node 64 has 64 before it"));
    open_with(&scene, path, 1, 63);
    EXPECT_EQ(node_of(0, 100), 63);
    pinned_close(&scene);
}

static bool topology_says(const void *page, int *node)
{
    char why[100];
    struct topology *here = topology_open(NULL, why, sizeof why);
    int found = here ? topology_node_of_page(here, page) : -1;
    *node = found < 0 ? -1 : topology_system_number(here, found);
    topology_close(here);
    return found >= 0;
}

/* Where the system says on which node a page is, it is the one that was asked for. */
CASE(this_machine)
{
    struct scene scene;
    pinned_open(&scene);
    char *block = pinned_take(3 * MIB);
    memset(block, 1, 3 * MIB);
    cenote_host_block found;
    DONE(cenote_host_find(block, &found));
    int node = 0;
    bool said = topology_says(block, &node);
    EXPECT(!said || !found.is_bound || node == found.node);
    EXPECT_EQ(pinned_stats().strayed, 0);
    printf("(%s, pages %s) ", found.is_bound ? "bound" : "not bound", said ? "seen" : "not seen");
    EXPECT(strstr(report(), "device 0: memory from node"));
    DONE(cenote_host_free(block));
    pinned_close(&scene);
}

SCENES_MAIN("nodes")
