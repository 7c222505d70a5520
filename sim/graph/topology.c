/*
 * topology.c: questions about a graph's nodes and edges, the order in which it can be replayed, and its picture.
 *
 * All lists are answered as CUDA does: without an array their length is told; with one, as much as fits, and what is left of it is nulled.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/code/kernel.h"
#include "sim/graph/graph.h"

/* One entry of an answer, if there is room; counts it. */
struct answer {
    CUgraphNode     *from, *to;
    CUgraphEdgeData *data;
    size_t           room, found;
    bool             lossy;     /* there was data, and no place for it */
};

static void tell(struct answer *a, uint32_t from, uint32_t to, const CUgraphEdgeData *data)
{
    static const CUgraphEdgeData plain;
    size_t i = a->found++;
    if (i >= a->room)
        return;
    if (a->from)
        a->from[i] = from ? node_handle(from) : NULL;
    if (a->to)
        a->to[i] = to ? node_handle(to) : NULL;
    if (a->data)
        a->data[i] = data ? *data : plain;
    else
        a->lossy |= data && memcmp(data, &plain, sizeof plain) && (a->from || a->to);
}

/* Without arrays only the count is wanted. */
static CUresult finish(struct answer *a, size_t *count)
{
    bool counting = !a->from && !a->to;
    size_t found = a->found, room = a->room;
    for (a->found = found; !counting && a->found < room;)
        tell(a, 0, 0, NULL);
    if (counting || found < room)
        *count = found;
    return a->lossy ? CUDA_ERROR_LOSSY_QUERY : CUDA_SUCCESS;
}

CUresult graph_list(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    uint32_t number = graph_find(graph, "cuGraphGetNodes");
    if (!number || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct answer a = {.from = nodes, .room = *count};
    const struct graph *g = graph_at(number);
    for (uint32_t i = 0; i < g->count; i++)
        tell(&a, g->nodes[i], 0, NULL);
    return finish(&a, count);
}

CUresult graph_roots(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    uint32_t number = graph_find(graph, "cuGraphGetRootNodes");
    if (!number || !count)
        return CUDA_ERROR_INVALID_VALUE;
    struct answer a = {.from = nodes, .room = *count};
    const struct graph *g = graph_at(number);
    for (uint32_t i = 0; i < g->count; i++)
        if (!node_at(g->nodes[i])->before.count)
            tell(&a, g->nodes[i], 0, NULL);
    return finish(&a, count);
}

CUresult graph_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    uint32_t number = graph_find(graph, "cuGraphGetEdges");
    if (!number || !count || !from != !to || (data && !from))
        return CUDA_ERROR_INVALID_VALUE;
    struct answer a = {.from = from, .to = to, .data = data, .room = *count};
    const struct graph *g = graph_at(number);
    for (uint32_t i = 0; i < g->count; i++) {
        const struct edges *e = &node_at(g->nodes[i])->after;
        for (uint32_t k = 0; k < e->count; k++)
            tell(&a, g->nodes[i], e->list[k].node, &e->list[k].data);
    }
    return finish(&a, count);
}

static CUresult neighbours(const struct edges *e, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    if (!count || (data && !nodes))
        return CUDA_ERROR_INVALID_VALUE;
    struct answer a = {.from = nodes, .data = data, .room = *count};
    for (uint32_t i = 0; i < e->count; i++)
        tell(&a, e->list[i].node, 0, &e->list[i].data);
    return finish(&a, count);
}

CUresult node_before(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    uint32_t number = node_find(node, "cuGraphNodeGetDependencies");
    return number ? neighbours(&node_at(number)->before, nodes, data, count) : CUDA_ERROR_INVALID_VALUE;
}

CUresult node_after(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    uint32_t number = node_find(node, "cuGraphNodeGetDependentNodes");
    return number ? neighbours(&node_at(number)->after, nodes, data, count) : CUDA_ERROR_INVALID_VALUE;
}

CUresult node_type(CUgraphNode node, CUgraphNodeType *type)
{
    uint32_t number = node_find(node, "cuGraphNodeGetType");
    if (!number || !type)
        return CUDA_ERROR_INVALID_VALUE;
    *type = node_at(number)->type;
    return CUDA_SUCCESS;
}

/* In order of creation as far as that respects the edges: ready nodes are taken in it. */
uint32_t *graph_order(uint32_t number)
{
    const struct graph *g = graph_at(number);
    uint32_t *order = malloc((g->count + 1) * sizeof *order), *waiting = calloc(g->count + 1, sizeof *waiting);
    uint32_t taken = 0, done = 0;
    for (uint32_t i = 0; order && waiting && i < g->count; i++) {
        waiting[i] = node_at(g->nodes[i])->before.count;
        if (!waiting[i])
            order[taken++] = g->nodes[i];
    }
    for (; order && waiting && done < taken; done++) {
        const struct edges *e = &node_at(order[done])->after;
        for (uint32_t i = 0; i < e->count; i++)
            if (!--waiting[node_at(e->list[i].node)->index])
                order[taken++] = e->list[i].node;
    }
    free(waiting);
    if (order && taken == g->count)
        return order;
    free(order);
    return NULL;
}

/* Do all wanted nodes come before, or among, the last ones? */
bool graph_reaches(uint32_t number, const uint32_t *last, uint32_t count, const uint32_t *wanted, uint32_t wanted_count)
{
    const struct graph *g = graph_at(number);
    uint32_t *stack = malloc((g->count + 1) * sizeof *stack), depth = 0;
    bool *seen = calloc(g->count + 1, sizeof *seen), all = stack && seen;
    for (uint32_t i = 0; all && i < count; i++) {
        if (!seen[node_at(last[i])->index])
            stack[depth++] = last[i];
        seen[node_at(last[i])->index] = true;
    }
    while (all && depth) {
        const struct edges *e = &node_at(stack[--depth])->before;
        for (uint32_t i = 0; i < e->count; i++) {
            uint32_t index = node_at(e->list[i].node)->index;
            if (!seen[index])
                stack[depth++] = e->list[i].node;
            seen[index] = true;
        }
    }
    for (uint32_t i = 0; all && i < wanted_count; i++)
        all = seen[node_at(wanted[i])->index];
    free(stack);
    free(seen);
    return all;
}

static const char *name_of(const struct node *n)
{
    static const char *const names[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "EVENT_WAIT", "EVENT_RECORD", "SIGNAL",
                                        "WAIT", "MEM_ALLOC", "MEM_FREE", "MEM_OP", "CONDITIONAL"};
    const struct function *f = n->type == CU_GRAPH_NODE_TYPE_KERNEL ? function_at((uint32_t)n->work.number) : NULL;
    return f ? f->name : (unsigned)n->type < sizeof names / sizeof names[0] ? names[n->type] : "?";
}

/* Between quotation marks: names of kernels are the program's. */
static void print_quoted(FILE *file, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', file);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, file);
    }
}

static void print_node(FILE *file, const struct graph *g, const struct node *n, unsigned flags)
{
    fprintf(file, "\"graph_%llu_node_%u\"[label=\"%u\\n", (unsigned long long)g->id, n->index, n->index);
    print_quoted(file, name_of(n));
    const struct work *w = &n->work;
    if (flags & (CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES))
        fprintf(file, "\\nnode %p", (void *)node_handle(g->nodes[n->index]));
    if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE && n->type == CU_GRAPH_NODE_TYPE_KERNEL)
        fprintf(file, "\\n<<<(%u,%u,%u), (%u,%u,%u), %u>>>", w->grid[0], w->grid[1], w->grid[2], w->block[0], w->block[1],
                w->block[2], w->shared);
    if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE && (n->type == CU_GRAPH_NODE_TYPE_MEMCPY || n->type == CU_GRAPH_NODE_TYPE_MEMSET))
        fprintf(file, "\\n0x%llx <- 0x%llx, %llu bytes", (unsigned long long)w->to, (unsigned long long)w->from,
                (unsigned long long)w->bytes);
    if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE && n->memory)
        fprintf(file, "\\n0x%llx", (unsigned long long)graph_memory_address(n->memory));
    fprintf(file, "\"];\n");
}

static void print_graph(FILE *file, uint32_t number, unsigned flags)
{
    const struct graph *g = graph_at(number);
    unsigned long long id = g->id;
    fprintf(file, "subgraph cluster_%llu {\nlabel=\"graph_%llu\" graph[style=\"dashed\"];\n", id, id);
    for (uint32_t i = 0; i < g->count; i++)
        print_node(file, g, node_at(g->nodes[i]), flags);
    for (uint32_t i = 0; i < g->count; i++) {
        const struct edges *e = &node_at(g->nodes[i])->after;
        for (uint32_t k = 0; k < e->count; k++)
            fprintf(file, "\"graph_%llu_node_%u\" -> \"graph_%llu_node_%u\";\n", id, i, id, node_at(e->list[k].node)->index);
    }
    for (uint32_t i = 0; i < g->count; i++)
        for (uint32_t k = 0; k < node_at(g->nodes[i])->children; k++)
            print_graph(file, node_at(g->nodes[i])->child[k], flags);
    fprintf(file, "}\n");
}

CUresult graph_print(CUgraph graph, const char *path, unsigned flags)
{
    uint32_t number = graph_find(graph, "cuGraphDebugDotPrint");
    if (!number || !path)
        return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "w");
    if (!file)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph dot {\n");
    print_graph(file, number, flags);
    fprintf(file, "}\n");
    return fclose(file) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
