/*
 * graphs.c: graphs: nodes in the order of their creation, and edges between them.
 *
 * A node knows what it waits for and what waits for it. A line of nodes in which each waits for the one before is a chain; memory that was
 * freed in a chain may be taken again further down the same chain (graph_memory.c).
 *
 * Graphs inside a node (of a child node, bodies of a condition) are owned by the node and end with it.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/graph/graph.h"

#define GRAPHS_MAX 65536
#define NODES_MAX (1u << 22)

static struct slots graphs;     /* CUgraph, and those of execs */
static struct slots nodes;      /* CUgraphNode */
static uint64_t last_id;        /* of graphs and nodes, over all resets */

struct graph *graph_at(uint32_t number)
{
    return slots_at(&graphs, number);
}

struct node *node_at(uint32_t number)
{
    return slots_at(&nodes, number);
}

CUgraph graph_handle(uint32_t number)
{
    return slots_handle(&graphs, number);
}

CUgraphNode node_handle(uint32_t number)
{
    return slots_handle(&nodes, number);
}

static void free_node(struct node *n)
{
    free(n->before.list);
    free(n->after.list);
    free(n->child);
    free(n->told);
}

void graphs_reset(void)
{
    if (!graphs.items) {
        slots_open(&graphs, sizeof(struct graph), GRAPHS_MAX, SLOTS_OLDEST_FIRST);
        slots_open(&nodes, sizeof(struct node), NODES_MAX, SLOTS_OLDEST_FIRST);
    }
    for (uint32_t i = 1; i < graphs.used; i++) {
        if (!slots_is_live(&graphs, i))
            continue;
        free(graph_at(i)->nodes);
        free(graph_at(i)->holdings);
    }
    for (uint32_t i = 1; i < nodes.used; i++)
        if (slots_is_live(&nodes, i))
            free_node(node_at(i));
    slots_clear(&graphs);
    slots_clear(&nodes);
}

uint32_t graph_open(void)
{
    uint32_t number = slots_take(&graphs);
    if (number)
        graph_at(number)->id = ++last_id;
    return number;
}

static void close_node(uint32_t number)
{
    struct node *n = node_at(number);
    for (uint32_t i = 0; i < n->children; i++)
        graph_close(n->child[i]);
    if (n->memory)
        graph_memory_drop(n->memory);
    free_node(n);
    slots_give(&nodes, number);
}

void graph_close(uint32_t number)
{
    struct graph *g = graph_at(number);
    for (uint32_t i = 0; i < g->count; i++)
        close_node(g->nodes[i]);
    free(g->nodes);
    objects_release_all(g);
    slots_give(&graphs, number);
}

uint32_t graph_find_quietly(CUgraph graph)
{
    uint32_t number = slots_number(&graphs, graph);
    return number && !graph_at(number)->hidden ? number : 0;
}

uint32_t graph_find(CUgraph graph, const char *call)
{
    uint32_t number = graph_find_quietly(graph);
    if (number)
        return number;
    model_violation("%s: graph %p was destroyed or never created", call, (void *)graph);
    return 0;
}

uint32_t node_find(CUgraphNode node, const char *call)
{
    uint32_t number = slots_number(&nodes, node);
    if (number && !graph_at(node_at(number)->graph)->hidden)
        return number;
    model_violation("%s: node %p was destroyed or never created", call, (void *)node);
    return 0;
}

static bool append_edge(struct edges *e, uint32_t node, const CUgraphEdgeData *data)
{
    if (e->count == e->room) {
        uint32_t room = e->room ? 2 * e->room : 2;
        struct edge *list = realloc(e->list, room * sizeof *list);
        if (!list)
            return false;
        e->list = list;
        e->room = room;
    }
    e->list[e->count++] = (struct edge){.node = node, .data = data ? *data : (CUgraphEdgeData){0}};
    return true;
}

static bool remove_edge(struct edges *e, uint32_t node)
{
    for (uint32_t i = 0; i < e->count; i++) {
        if (e->list[i].node != node)
            continue;
        memmove(&e->list[i], &e->list[i + 1], (e->count - i - 1) * sizeof *e->list);
        e->count--;
        return true;
    }
    return false;
}

static bool has_edge(const struct edges *e, uint32_t node)
{
    for (uint32_t i = 0; i < e->count; i++)
        if (e->list[i].node == node)
            return true;
    return false;
}

bool graph_connect(uint32_t from, uint32_t to, const CUgraphEdgeData *data)
{
    struct node *first = node_at(from), *second = node_at(to);
    if (!append_edge(&second->before, from, data))
        return false;
    if (!append_edge(&first->after, to, data)) {
        second->before.count--;
        return false;
    }
    graph_at(first->graph)->edges++;
    if (!second->chain && !first->continued) {
        second->chain = first->chain;
        first->continued = true;
    }
    return true;
}

static bool append_node(struct graph *g, uint32_t number)
{
    if (g->count == g->room) {
        uint32_t room = g->room ? 2 * g->room : 16;
        uint32_t *list = realloc(g->nodes, room * sizeof *list);
        if (!list)
            return false;
        g->nodes = list;
        g->room = room;
    }
    node_at(number)->index = g->count;
    g->nodes[g->count++] = number;
    return true;
}

static void remove_node(uint32_t number)
{
    struct node *n = node_at(number);
    struct graph *g = graph_at(n->graph);
    for (uint32_t i = 0; i < n->before.count; i++)
        remove_edge(&node_at(n->before.list[i].node)->after, number);
    for (uint32_t i = 0; i < n->after.count; i++)
        remove_edge(&node_at(n->after.list[i].node)->before, number);
    g->edges -= n->before.count + n->after.count;
    memmove(&g->nodes[n->index], &g->nodes[n->index + 1], (g->count - n->index - 1) * sizeof *g->nodes);
    g->count--;
    for (uint32_t i = n->index; i < g->count; i++)
        node_at(g->nodes[i])->index = i;
    close_node(number);
}

/* Takes over what the model node owns, if it succeeds; 0: no room. */
uint32_t graph_add(uint32_t graph, const struct node *model_node, const uint32_t *before, const CUgraphEdgeData *edges, size_t count)
{
    struct graph *g = graph_at(graph);
    uint32_t number = slots_take(&nodes);
    if (!number)
        return 0;
    struct node *n = node_at(number);
    *n = *model_node;
    n->graph = graph;
    n->chain = 0;
    n->id = ++last_id;
    if (!append_node(g, number)) {
        slots_give(&nodes, number);
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (graph_connect(before[i], number, edges ? &edges[i] : NULL))
            continue;
        n->children = 0; /* the caller's still */
        n->child = NULL;
        n->told = NULL;
        n->memory = 0;
        remove_node(number);
        return 0;
    }
    if (!n->chain)
        n->chain = ++g->chains;
    g->memories += n->memory != 0;
    for (uint32_t i = 0; i < n->children; i++)
        graph_at(n->child[i])->parent = number;
    return number;
}

uint32_t graph_chain_after(const uint32_t *before, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!node_at(before[i])->continued)
            return node_at(before[i])->chain;
    return 0;
}

/* Nodes of one graph, none twice. */
CUresult graph_nodes_of(uint32_t graph, const CUgraphNode *handles, size_t count, uint32_t **numbers)
{
    *numbers = NULL;
    if (count && (!handles || count > graph_at(graph)->count))
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t *list = malloc((count + 1) * sizeof *list);
    if (!list)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        list[i] = slots_number(&nodes, handles[i]);
        bool wrong = !list[i] || node_at(list[i])->graph != graph;
        for (size_t k = 0; k < i && !wrong; k++)
            wrong = list[k] == list[i];
        if (wrong) {
            free(list);
            return model_refuse(CUDA_ERROR_INVALID_VALUE, "a node waits for %p: not a node of its graph, or twice",
                                (void *)handles[i]);
        }
    }
    *numbers = list;
    return CUDA_SUCCESS;
}

static bool copy_children(const struct node *from, struct node *to, bool hidden)
{
    to->child = from->children ? calloc(from->children, sizeof *to->child) : NULL;
    to->told = from->children ? calloc(from->children, sizeof *to->told) : NULL;
    to->children = 0;
    if (from->children && (!to->child || !to->told))
        return false;
    for (uint32_t i = 0; i < from->children; i++) {
        uint32_t copy = graph_copy(from->child[i], hidden);
        if (!copy)
            return false;
        to->child[to->children] = copy;
        to->told[to->children++] = graph_handle(copy);
    }
    return true;
}

static bool copy_node(uint32_t from, uint32_t graph, bool hidden)
{
    struct node copy = *node_at(from);
    copy.origin = copy.id;
    copy.before = copy.after = (struct edges){0};
    copy.continued = false;
    bool copied = copy_children(node_at(from), &copy, hidden);
    if (copied && graph_add(graph, &copy, NULL, NULL, 0)) {
        if (copy.memory)
            graph_memory_hold(copy.memory);
        return true;
    }
    for (uint32_t i = 0; i < copy.children; i++)
        graph_close(copy.child[i]);
    free(copy.child);
    free(copy.told);
    return false;
}

uint32_t graph_copy(uint32_t source, bool hidden)
{
    uint32_t number = graph_open();
    if (!number)
        return 0;
    struct graph *g = graph_at(number);
    const struct graph *from = graph_at(source);
    g->hidden = hidden;
    bool copied = objects_copy(from, g);
    for (uint32_t i = 0; i < from->count && copied; i++)
        copied = copy_node(from->nodes[i], number, hidden);
    for (uint32_t i = 0; i < from->count && copied; i++) {
        const struct edges *before = &node_at(from->nodes[i])->before;
        for (uint32_t k = 0; k < before->count && copied; k++)
            copied = graph_connect(g->nodes[node_at(before->list[k].node)->index], g->nodes[i], &before->list[k].data);
    }
    if (copied)
        return number;
    graph_close(number);
    return 0;
}

CUresult graph_create(CUgraph *graph, unsigned flags)
{
    if (!graph || flags)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t number = graph_open();
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *graph = graph_handle(number);
    return CUDA_SUCCESS;
}

CUresult graph_destroy(CUgraph graph)
{
    uint32_t number = graph_find(graph, "cuGraphDestroy");
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_at(number)->parent || graph_at(number)->capture)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuGraphDestroy: the graph is inside a node, or a capture grows it");
    graph_close(number);
    return CUDA_SUCCESS;
}

bool graph_has_memory(uint32_t graph)
{
    const struct graph *g = graph_at(graph);
    bool found = g->memories;
    for (uint32_t i = 0; i < g->count && !found; i++)
        for (uint32_t k = 0; k < node_at(g->nodes[i])->children && !found; k++)
            found = graph_has_memory(node_at(g->nodes[i])->child[k]);
    return found;
}

CUresult graph_clone(CUgraph *clone, CUgraph graph)
{
    uint32_t number = graph_find(graph, "cuGraphClone");
    if (!number || !clone)
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_has_memory(number))
        return model_refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphClone: the graph has nodes of memory");
    uint32_t copy = graph_copy(number, false);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *clone = graph_handle(copy);
    return CUDA_SUCCESS;
}

CUresult graph_find_in_clone(CUgraphNode *node, CUgraphNode original, CUgraph clone)
{
    uint32_t number = node_find(original, "cuGraphNodeFindInClone"), graph = graph_find(clone, "cuGraphNodeFindInClone");
    if (!number || !graph || !node)
        return CUDA_ERROR_INVALID_VALUE;
    const struct graph *g = graph_at(graph);
    for (uint32_t i = 0; i < g->count; i++) {
        if (node_at(g->nodes[i])->origin != node_at(number)->id)
            continue;
        *node = node_handle(g->nodes[i]);
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult graph_destroy_node(CUgraphNode node)
{
    uint32_t number = node_find(node, "cuGraphDestroyNode");
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    const struct graph *g = graph_at(node_at(number)->graph);
    if (g->memories || g->capture)
        return model_refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphDestroyNode: the graph has nodes of memory, or a capture grows it");
    remove_node(number);
    return CUDA_SUCCESS;
}

/* The two ends of an edge, if both are nodes of the graph. */
static bool find_ends(uint32_t graph, CUgraphNode from, CUgraphNode to, uint32_t ends[2])
{
    ends[0] = slots_number(&nodes, from);
    ends[1] = slots_number(&nodes, to);
    return ends[0] && ends[1] && ends[0] != ends[1] && node_at(ends[0])->graph == graph && node_at(ends[1])->graph == graph;
}

CUresult graph_add_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)
{
    uint32_t ends[2], number = graph_find(graph, "cuGraphAddDependencies");
    if (!number || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!find_ends(number, from[i], to[i], ends) || has_edge(&node_at(ends[1])->before, ends[0]))
            return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuGraphAddDependencies: not two nodes of the graph, or an edge that is there");
    for (size_t i = 0; i < count; i++)
        if (!find_ends(number, from[i], to[i], ends) || !graph_connect(ends[0], ends[1], data ? &data[i] : NULL))
            return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

CUresult graph_remove_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count)
{
    (void)data;
    uint32_t ends[2], number = graph_find(graph, "cuGraphRemoveDependencies");
    if (!number || (count && (!from || !to)))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_at(number)->memories)
        return model_refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphRemoveDependencies: the graph has nodes of memory");
    for (size_t i = 0; i < count; i++) {
        if (!find_ends(number, from[i], to[i], ends) || !remove_edge(&node_at(ends[1])->before, ends[0]))
            return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuGraphRemoveDependencies: no such edge");
        remove_edge(&node_at(ends[0])->after, ends[1]);
        graph_at(number)->edges--;
    }
    return CUDA_SUCCESS;
}

/* --- what a graph keeps alive */

CUresult graph_retain_object(CUgraph graph, CUuserObject object, unsigned count, unsigned flags)
{
    uint32_t number = graph_find(graph, "cuGraphRetainUserObject");
    return object_hold(number ? graph_at(number) : NULL, object, count, flags);
}

CUresult graph_release_object(CUgraph graph, CUuserObject object, unsigned count)
{
    uint32_t number = graph_find(graph, "cuGraphReleaseUserObject");
    return object_let_go(number ? graph_at(number) : NULL, object, count);
}

/* `value` is never read: see nodes.c. */
CUresult condition_create(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context, unsigned value, unsigned flags)
{
    (void)context, (void)value;
    uint32_t number = graph_find(graph, "cuGraphConditionalHandleCreate");
    if (!number || !handle || flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT)
        return CUDA_ERROR_INVALID_VALUE;
    return condition_new(graph_at(number), handle);
}
