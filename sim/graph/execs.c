/*
 * execs.c: what is instantiated from graphs, and its replay.
 *
 * An exec has a copy of the graph for itself, graphs inside nodes included, and a list of its nodes in an order that respects every edge: a replay
 * puts them on the stream one after the other, parallel branches too. Nothing is looked up before a replay runs: what was unmapped or given away
 * since shows then.
 *
 *     alive ---destroyed, replays under way---> closing ---the last of them is done---> gone
 */
#include <stdlib.h>
#include <string.h>

#include "sim/graph/graph.h"
#include "sim/memory/memory.h"

#define EXECS_MAX 65536
#define FLAGS (CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

struct exec {
    uint32_t  graph;        /* the copy; owned */
    uint32_t *steps;        /* nodes of the copy; owned */
    uint32_t  count, room;
    uint32_t  flights;      /* replays not done */
    bool      closing;
    unsigned long long flags;
    CUgraph   original;     /* of a graph with memory: its one exec */
    uint64_t  original_id;
};

static struct slots execs;

static struct exec *exec_at(uint32_t number)
{
    return slots_at(&execs, number);
}

void execs_reset(void)
{
    if (!execs.items)
        slots_open(&execs, sizeof(struct exec), EXECS_MAX, SLOTS_OLDEST_FIRST);
    for (uint32_t i = 1; i < execs.used; i++)
        if (slots_is_live(&execs, i))
            free(exec_at(i)->steps);
    slots_clear(&execs);
}

uint32_t exec_find(CUgraphExec exec, const char *call)
{
    uint32_t number = slots_number(&execs, exec);
    if (number && !exec_at(number)->closing)
        return number;
    model_violation("%s: %p was destroyed or never instantiated", call, (void *)exec);
    return 0;
}

uint32_t exec_graph(uint32_t number)
{
    return exec_at(number)->graph;
}

static bool add_step(struct exec *e, uint32_t node)
{
    if (e->count == e->room) {
        uint32_t room = e->room ? 2 * e->room : 64;
        uint32_t *steps = realloc(e->steps, room * sizeof *steps);
        if (!steps)
            return false;
        e->steps = steps;
        e->room = room;
    }
    e->steps[e->count++] = node;
    return true;
}

/* The nodes of a graph and of those inside, in order; of the bodies of a condition the first. */
static bool add_steps(struct exec *e, uint32_t graph)
{
    uint32_t count = graph_at(graph)->count;
    uint32_t *order = graph_order(graph);
    bool added = order;
    for (uint32_t i = 0; i < count && added; i++) {
        const struct node *n = node_at(order[i]);
        added = n->children ? add_steps(e, n->child[0]) : n->type == CU_GRAPH_NODE_TYPE_EMPTY || add_step(e, order[i]);
    }
    free(order);
    return added;
}

static void close_exec(uint32_t number)
{
    struct exec *e = exec_at(number);
    uint32_t original = e->original ? graph_find_quietly(e->original) : 0;
    if (original && graph_at(original)->id == e->original_id)
        graph_at(original)->execs--;
    graph_close(e->graph);
    free(e->steps);
    e->steps = NULL;
    slots_give(&execs, number);
}

static CUresult instantiate(uint32_t graph, unsigned long long flags, uint32_t *number, CUgraphInstantiateResult *why)
{
    bool memory = graph_has_memory(graph);
    *why = CUDA_GRAPH_INSTANTIATE_ERROR;
    if (graph_at(graph)->capture)
        return model_refuse(CUDA_ERROR_ILLEGAL_STATE, "cuGraphInstantiate: a capture grows the graph");
    if (memory && graph_at(graph)->execs)
        return model_refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphInstantiate: a graph with nodes of memory is instantiated already");
    *number = slots_take(&execs);
    uint32_t copy = *number ? graph_copy(graph, true) : 0;
    if (!copy) {
        if (*number)
            slots_give(&execs, *number);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct exec *e = exec_at(*number);
    *e = (struct exec){.graph = copy, .flags = flags};
    if (!add_steps(e, copy)) {
        close_exec(*number);
        *why = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuGraphInstantiate: the graph has a cycle");
    }
    if (memory) {
        e->original = graph_handle(graph);
        e->original_id = graph_at(graph)->id;
        graph_at(graph)->execs++;
    }
    *why = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return CUDA_SUCCESS;
}

CUresult exec_create(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CUgraphInstantiateResult why;
    uint32_t created, number = graph_find(graph, "cuGraphInstantiate");
    if (!number || !exec)
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & ~(unsigned long long)FLAGS)
        return model_refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphInstantiate: flags 0x%llx: the device does not launch graphs here", flags);
    CUresult result = instantiate(number, flags, &created, &why);
    if (!result)
        *exec = slots_handle(&execs, created);
    return result;
}

/* The first form of the call: with a log, which stays empty. */
CUresult exec_create_logged(CUgraphExec *exec, CUgraph graph, CUgraphNode *culprit, char *log, size_t room)
{
    if (culprit)
        *culprit = NULL;
    if (log && room)
        *log = 0;
    return exec_create(exec, graph, 0);
}

CUresult exec_create_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p, CUstream stream)
{
    uint32_t created, number = graph_find(graph, "cuGraphInstantiateWithParams");
    if (!number || !exec || !p)
        return CUDA_ERROR_INVALID_VALUE;
    p->hErrNode_out = NULL;
    p->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    if (p->flags & ~(cuuint64_t)(FLAGS | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD))
        return model_refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGraphInstantiateWithParams: launches from the device are not simulated");
    CUresult result = instantiate(number, p->flags, &created, &p->result_out);
    if (result)
        return result;
    *exec = slots_handle(&execs, created);
    return p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD ? exec_upload(*exec, p->hUploadStream ? p->hUploadStream : stream) : CUDA_SUCCESS;
}

CUresult exec_destroy(CUgraphExec exec)
{
    uint32_t number = exec_find(exec, "cuGraphExecDestroy");
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    if (exec_at(number)->flights)
        exec_at(number)->closing = true;
    else
        close_exec(number);
    return CUDA_SUCCESS;
}

CUresult exec_flags(CUgraphExec exec, cuuint64_t *flags)
{
    uint32_t number = exec_find(exec, "cuGraphExecGetFlags");
    if (!number || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec_at(number)->flags & FLAGS;
    return CUDA_SUCCESS;
}

CUresult exec_upload(CUgraphExec exec, CUstream stream)
{
    struct stream *s;
    uint32_t number = exec_find(exec, "cuGraphUpload");
    return number ? stream_find(stream, &s) : CUDA_ERROR_INVALID_VALUE;
}

static void replayed(const struct work *w)
{
    struct exec *e = exec_at((uint32_t)w->number);
    e->flights--;
    if (e->closing && !e->flights)
        close_exec((uint32_t)w->number);
}

static const struct work_kind work_replayed = {.node = CU_GRAPH_NODE_TYPE_EMPTY, .even_if_lost = true, .run = replayed};

/* A launch on a capturing stream: a copy of the graph becomes a child of the captured one. */
static CUresult capture_launch(uint32_t number, struct stream *s)
{
    struct node n = {.type = CU_GRAPH_NODE_TYPE_GRAPH, .work = {.kind = &work_wait, .name = "cuGraphLaunch"}};
    uint32_t added;
    if (graph_has_memory(exec_at(number)->graph))
        return capture_spoil(s, CUDA_ERROR_NOT_SUPPORTED, "cuGraphLaunch of a graph with nodes of memory");
    uint32_t child = graph_copy(exec_at(number)->graph, false);
    n.child = malloc(sizeof *n.child);
    n.told = malloc(sizeof *n.told);
    if (!child || !n.child || !n.told) {
        if (child)
            graph_close(child);
        free(n.child);
        free(n.told);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    n.child[0] = child;
    n.told[0] = graph_handle(child);
    n.children = 1;
    return capture_add_node(s, &n, &added);
}

static CUresult replay_step(const struct exec *e, struct node *n, struct stream *s)
{
    switch (n->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return graph_memory_begin(n->memory, e->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return graph_memory_end(n->memory, s);
    default:
        break;
    }
    if (n->work.kind == &work_kernel) { /* the step after it, or the end of the replay, tells the stream */
        model.books.kernels++;
        return CUDA_SUCCESS;
    }
    return n->work.bytes || n->work.kind != &work_copy ? work_submit(s, &n->work) : CUDA_SUCCESS;
}

/* For a record of another process: all such waits before the launch, not each in its place. */
static bool waits_for_others(const struct exec *e)
{
    for (uint32_t i = 0; i < e->count; i++) {
        const struct node *n = node_at(e->steps[i]);
        if (!n->disabled && n->work.kind == &work_await && event_is_awaited(n->work.number))
            return true;
    }
    return false;
}

CUresult exec_launch(CUgraphExec exec, CUstream stream)
{
    struct stream *s;
    uint32_t number = exec_find(exec, "cuGraphLaunch");
    if (!number)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_find(stream, &s);
    if (!result)
        result = capture_legacy_conflict(s, "cuGraphLaunch");
    if (result)
        return result;
    if (s->capture)
        return capture_launch(number, s);
    struct exec *e = exec_at(number);
    if (waits_for_others(e))
        return MODEL_AGAIN;
    e->flights++;
    unexplained_kernel();
    for (uint32_t i = 0; i < e->count && !result; i++)
        if (!node_at(e->steps[i])->disabled)
            result = replay_step(e, node_at(e->steps[i]), s);
    struct work end = {.kind = &work_replayed, .name = "cuGraphLaunch", .number = number};
    CUresult ended = work_submit(s, &end);
    return result ? result : ended;
}
