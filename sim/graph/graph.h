/*
 * graph.h: graphs: nodes and what they wait for, memory that belongs to them, and their replay. LOCKING: the model's lock.
 *
 *     CUgraph       a graph of the program: nodes are added to it, by hand or by a capture
 *     CUgraphExec   a copy of one for itself, and the order in which it is replayed
 */
#ifndef CENOTE_SIM_GRAPH_H
#define CENOTE_SIM_GRAPH_H

#include "sim/order/stream.h"

struct edge {
    uint32_t        node;       /* at the other end */
    CUgraphEdgeData data;
};

struct edges {
    struct edge *list;          /* owned */
    uint32_t     count, room;
};

struct node {
    CUgraphNodeType type;
    uint32_t     graph;
    uint32_t     index;         /* in the graph, in order of creation */
    uint32_t     chain;         /* number of a line of nodes, each waiting for the one before */
    uint64_t     id;            /* unique */
    uint64_t     origin;        /* id of the node it is a copy of, 0: none */
    struct edges before, after;
    bool         continued;     /* its chain goes on in another node */
    bool         disabled;      /* of an exec: skipped */
    struct work  work;          /* KERNEL, MEMCPY, MEMSET, HOST, EVENT_RECORD, WAIT_EVENT */
    uint32_t     memory;        /* MEM_ALLOC, MEM_FREE */
    uint32_t     children;      /* GRAPH, CONDITIONAL: graphs inside */
    uint32_t    *child;         /* owned, as they are */
    CUgraph     *told;          /* owned: the same as handles */
    uint64_t     condition;     /* CONDITIONAL: its handle, and kind */
    CUgraphConditionalNodeType condition_type;
};

struct holding {                /* of user objects */
    uint32_t object;
    uint32_t count;
};

struct graph {
    uint32_t *nodes;            /* owned; in order of creation */
    uint32_t  count, room;
    uint32_t  edges;
    uint32_t  chains;
    uint32_t  memories;         /* nodes of memory */
    uint32_t  arena;            /* that its memory is in, 0: none */
    uint32_t  parent;           /* node that it is inside of, 0: none */
    uint32_t  capture;          /* that grows it, 0: none */
    uint32_t  execs;            /* alive, of a graph with memory */
    bool      hidden;           /* an exec's */
    uint64_t  id;
    struct holding *holdings;   /* owned */
    uint32_t  holding_count;
};

/* --- graphs.c: graphs, their nodes and edges */
void     graphs_reset(void);
uint32_t graph_open(void);
void     graph_close(uint32_t number);
struct graph *graph_at(uint32_t number);
CUgraph  graph_handle(uint32_t number);
uint32_t graph_find(CUgraph graph, const char *call);       /* 0, and a violation: none */
uint32_t graph_find_quietly(CUgraph graph);
struct node *node_at(uint32_t number);
CUgraphNode node_handle(uint32_t number);
uint32_t node_find(CUgraphNode node, const char *call);     /* the same */
bool     graph_connect(uint32_t from, uint32_t to, const CUgraphEdgeData *data);    /* false: no host memory */
uint32_t graph_add(uint32_t graph, const struct node *model, const uint32_t *before, const CUgraphEdgeData *edges, size_t count);
CUresult graph_nodes_of(uint32_t graph, const CUgraphNode *nodes, size_t count, uint32_t **numbers);    /* checked; to be freed */
uint32_t graph_copy(uint32_t graph, bool hidden);           /* 0: no room */
bool     graph_has_memory(uint32_t graph);                  /* also in graphs inside */
uint32_t graph_chain_after(const uint32_t *nodes, size_t count);    /* that a node waiting for these would go on with; 0: a new one */
CUresult graph_create(CUgraph *graph, unsigned flags);
CUresult graph_destroy(CUgraph graph);
CUresult graph_clone(CUgraph *clone, CUgraph graph);
CUresult graph_find_in_clone(CUgraphNode *node, CUgraphNode original, CUgraph clone);
CUresult graph_destroy_node(CUgraphNode node);
CUresult graph_add_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count);
CUresult graph_remove_edges(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count);
CUresult graph_retain_object(CUgraph graph, CUuserObject object, unsigned count, unsigned flags);
CUresult graph_release_object(CUgraph graph, CUuserObject object, unsigned count);
CUresult condition_create(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context, unsigned value, unsigned flags);

/* --- topology.c: questions about graphs */
CUresult graph_list(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult graph_roots(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult graph_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count);
CUresult node_before(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count);
CUresult node_after(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count);
CUresult node_type(CUgraphNode node, CUgraphNodeType *type);
uint32_t *graph_order(uint32_t graph);  /* its nodes, each after what it waits for; to be freed; NULL: a cycle, or no host memory */
bool     graph_reaches(uint32_t graph, const uint32_t *last, uint32_t count, const uint32_t *wanted, uint32_t wanted_count);
CUresult graph_print(CUgraph graph, const char *path, unsigned flags);

/* --- nodes.c: what nodes do */
CUresult node_read(const CUgraphNodeParams *params, struct node *node);     /* what can be changed later */
CUresult node_add(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, const CUgraphEdgeData *edges, size_t count,
                  CUgraphNodeParams *params);
CUresult node_set(CUgraphNode node, const CUgraphNodeParams *params);
/* node_enter takes over what the node owns, also if there is no room: 0 */
void     node_abandon(struct node *node);                /* it never becomes one of a graph */
uint32_t node_enter(uint32_t graph, struct node *node, const uint32_t *before, const CUgraphEdgeData *edges, size_t count);
CUresult node_add_child(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraph child);
CUresult node_add_empty(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count);
CUresult node_add_alloc(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS_v1 *params);
CUresult node_add_free(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUdeviceptr at);

/* --- kinds.c: calls of one kind of node */
#define KIND(kind, type)                                                                                                        \
    CUresult node_add_##kind(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, const type *params);   \
    CUresult node_set_##kind(CUgraphNode node, const type *params);                                                            \
    CUresult node_get_##kind(CUgraphNode node, type *params);                                                                  \
    CUresult exec_set_##kind(CUgraphExec exec, CUgraphNode node, const type *params);
#include "sim/graph/kinds.def"
#undef KIND
CUresult node_add_event(CUgraphNode *node, CUgraph graph, const CUgraphNode *before, size_t count, CUgraphNodeType type, CUevent event);
CUresult node_set_event(CUgraphNode node, CUgraphNodeType type, CUevent event);
CUresult node_get_event(CUgraphNode node, CUgraphNodeType type, CUevent *event);
CUresult exec_set_event(CUgraphExec exec, CUgraphNode node, CUgraphNodeType type, CUevent event);
CUresult node_get_child(CUgraphNode node, CUgraph *child);
CUresult node_get_alloc(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS_v1 *params);
CUresult node_get_free(CUgraphNode node, CUdeviceptr *at);

/* --- recording.c: captures of streams */
CUresult capture_add_node(struct stream *s, struct node *model, uint32_t *node);    /* takes over what it owns */
uint32_t capture_graph(const struct stream *s, const uint32_t **tails, uint32_t *count);   /* it grows, and what comes last; 0: spoiled */
CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode);
CUresult capture_begin_default(CUstream stream);
CUresult capture_begin_to(CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
                          CUstreamCaptureMode mode);
CUresult capture_update(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count, unsigned flags);
CUresult capture_end(CUstream stream, CUgraph *graph);
CUresult capture_info(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **nodes,
                      const CUgraphEdgeData **edges, size_t *count);

/* --- objects.c: what graphs keep alive for the program, and handles of conditions */
void     objects_reset(void);
bool     objects_copy(const struct graph *from, struct graph *to);
void     objects_release_all(struct graph *graph);
CUresult object_create(CUuserObject *object, void *pointer, CUhostFn destroy, unsigned count, unsigned flags);
CUresult object_retain(CUuserObject object, unsigned count);
CUresult object_release(CUuserObject object, unsigned count);
CUresult object_hold(struct graph *graph, CUuserObject object, unsigned count, unsigned flags);     /* `graph` NULL: refused, as below */
CUresult object_let_go(struct graph *graph, CUuserObject object, unsigned count);
CUresult condition_new(const struct graph *graph, CUgraphConditionalHandle *handle);
bool     condition_take(CUgraphConditionalHandle handle, const struct graph *graph);    /* for a node; false: not of this graph, or taken */

/* --- graph_memory.c: memory of graphs */
void     graph_memory_reset(void);
void     graph_memory_close_all(uint32_t context);
CUresult graph_memory_new(struct graph *graph, int device, uint64_t size, uint32_t chain, uint32_t *memory);    /* addresses alone */
uint32_t graph_memory_at(uint64_t at);                      /* made in some graph and not freed there; 0: none */
void     graph_memory_freed_in(const struct graph *graph, uint32_t memory, uint32_t chain);    /* a free node was added */
void     graph_memory_hold(uint32_t memory);                /* by a node */
void     graph_memory_drop(uint32_t memory);
uint64_t graph_memory_address(uint32_t memory);
uint64_t graph_memory_bytes(uint32_t memory);
int      graph_memory_device(uint32_t memory);
CUresult graph_memory_begin(uint32_t memory, bool again);   /* `again`: ends it first if it is still there */
CUresult graph_memory_end(uint32_t memory, struct stream *s);
CUresult graph_memory_trim(CUdevice device);
CUresult graph_memory_get(CUdevice device, CUgraphMem_attribute attribute, void *value);
CUresult graph_memory_set(CUdevice device, CUgraphMem_attribute attribute, void *value);

/* --- async.c: memory of pools, or of graphs */
CUresult async_alloc(CUdeviceptr *at, size_t size, CUstream stream);
CUresult async_alloc_from(CUdeviceptr *at, size_t size, CUmemoryPool pool, CUstream stream);
CUresult async_free(CUdeviceptr at, CUstream stream);

/* --- execs.c: replay */
void     execs_reset(void);
CUresult exec_create(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult exec_create_logged(CUgraphExec *exec, CUgraph graph, CUgraphNode *culprit, char *log, size_t room);
CUresult exec_create_with(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params, CUstream stream);
CUresult exec_destroy(CUgraphExec exec);
CUresult exec_flags(CUgraphExec exec, cuuint64_t *flags);
CUresult exec_upload(CUgraphExec exec, CUstream stream);
CUresult exec_launch(CUgraphExec exec, CUstream stream);

/* --- updates.c: changes of what an exec replays */
uint32_t exec_find(CUgraphExec exec, const char *call);     /* 0, and a violation: none */
uint32_t exec_graph(uint32_t exec);                         /* its copy */
uint32_t exec_node(CUgraphExec exec, CUgraphNode original, const char *call);   /* its copy of a node; 0: has none */
CUresult exec_update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info);
CUresult exec_update_1(CUgraphExec exec, CUgraph graph, CUgraphNode *culprit, CUgraphExecUpdateResult *result);
CUresult exec_set(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params);
CUresult exec_set_child(CUgraphExec exec, CUgraphNode node, CUgraph child);
CUresult exec_enable(CUgraphExec exec, CUgraphNode node, unsigned enabled);
CUresult exec_is_enabled(CUgraphExec exec, CUgraphNode node, unsigned *enabled);

#endif
