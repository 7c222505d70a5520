/*
 * ask.h: what the files of cenote-ask share.
 *
 *     main.c      reads the arguments, starts a child for each state, collects the answers, compares them with a table
 *     child.c     calls each entry point in one state, and tells the parent
 *     scene.c     what a call is given: streams, events, memory, graphs, code
 *     table.c     the table as text, and what each answer rests on (grounds.def)
 *     calls.def   the arguments of each entry point of sim/entries/entries.def
 *     states.def  the states
 *
 * The program knows the driver alone, and nothing of cenote: what it writes is what the driver did, simulated or real.
 */
#ifndef CENOTE_ASK_H
#define CENOTE_ASK_H

#define __CUDA_API_VERSION_INTERNAL /* every version of each entry point has its own name */
#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BYTES 65536u            /* of each piece of memory that a call is given */
#define ROOM 16384u             /* of each place for an answer */
#define CELL 16u                /* bytes of a cell's text, with its end */

enum state {
#define STATE(name, heading, captures, mode, by_another, relaxed) STATE_##name,
#include "tools/ask/states.def"
#undef STATE
    STATES
};

struct state_row {
    const char *heading;
    bool captures;              /* the scene's stream is captured */
    CUstreamCaptureMode mode;
    bool by_another;            /* thread, which begins and ends the capture */
    bool relaxed;               /* the thread that calls has put itself into the mode RELAXED */
};

/* What a call is given beside streams, events and memory. */
enum part { BASE, OTHER, CODE, GRAPHS, PAGES, POOLS, GREEN, REST, PARTS };

/* A stream that a call is given: the one that is captured, one that does not wait for the default stream, the default stream. */
enum on { ON_NONE, ON_CAPTURED, ON_BESIDE, ON_DEFAULT };

struct calls {
#define ALIAS(name, symbol, since)
#define PLAIN(name, symbol, since, need, capture, function, parameters, arguments) CUresult (*symbol) parameters;
#define STREAM(...) PLAIN(__VA_ARGS__)
#define DEFAULT(...) PLAIN(__VA_ARGS__)
#define INSIDE(...) PLAIN(__VA_ARGS__)
#include "sim/entries/entries.def"
#undef ALIAS
#undef PLAIN
#undef STREAM
#undef DEFAULT
#undef INSIDE
};

enum node { NODE_KERNEL, NODE_COPY, NODE_FILL, NODE_CALL, NODE_RECORD, NODE_WAIT, NODE_EMPTY, NODE_CHILD, NODES };

struct scene {
    const struct calls *d;
    void       *a, *b, *c, *e;      /* places for answers, ROOM bytes each */
    CUdevice    device;
    CUcontext   context, other;     /* the primary one; another one, which is current to no thread */
    CUstream    own, beside;        /* the captured stream, which waits for the default stream; NULL once destroyed */
    CUevent     event, inside;      /* over; recorded on `own` after its capture began */
    CUdeviceptr at, to;
    void       *host, *plain, *registered;
    /* CODE */
    CUmodule    module;
    CUfunction  function;
    CUlibrary   library;
    CUkernel    kernel;
    char        path[40];           /* of a file with the code */
    void       *parameters[4];
    CUlaunchConfig config;
    /* GRAPHS */
    CUgraph     graph, small, clone, memory;    /* `small` has two empty nodes; `memory` allocates and frees */
    CUgraphNode node[NODES], first, second, alloc, give;
    CUgraphExec exec;
    CUuserObject object;
    CUDA_KERNEL_NODE_PARAMS_v1 kernel_1;
    CUDA_KERNEL_NODE_PARAMS_v2 kernel_2;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS_v1 fill;
    CUDA_HOST_NODE_PARAMS_v1 call;
    CUDA_MEM_ALLOC_NODE_PARAMS_v1 take;
    CUgraphNodeParams any;
    CUDA_GRAPH_INSTANTIATE_PARAMS instantiate;
    /* PAGES */
    CUmemAllocationProp prop;
    CUmemAccessDesc who;
    size_t      page_bytes;
    CUmemGenericAllocationHandle page, more;    /* `page` is mapped at `range` */
    CUdeviceptr range, hole;                    /* nothing is mapped at `hole` */
    int         file;                           /* of `page` */
    /* POOLS */
    CUmemPoolProps properties;
    CUmemoryPool pool;
    CUdeviceptr drawn;                          /* from `pool` */
    CUmemPoolPtrExportData letter;
    int         pool_file;
    /* GREEN */
    CUdevResource all, some;
    CUdevResourceDesc description;
    CUgreenCtx  green;
    /* REST */
    CUlinkState link;
    CUipcMemHandle memory_handle;
    CUipcEventHandle event_handle;
    CUevent     shared_event;
    CUdeviceptr managed;
};

/* --- scene.c */
bool     calls_find(struct calls *calls);                                           /* false: there is no driver */
CUresult scene_base(struct scene *s, const struct calls *calls);                    /* the context is current afterwards */
CUresult scene_part(struct scene *s, enum part part);
CUresult scene_lose(struct scene *s);                                               /* the context, by a kernel that writes to no memory */
CUstream scene_stream(const struct scene *s, enum on on);
CUstream scene_destroyed(struct scene *s, CUstream stream);                         /* returns it, and forgets it */
const char *scene_code(void);

/* --- child.c */
struct row {                    /* a line of calls.def, with the stream that it is given */
    const char *symbol, *which; /* "it": there is one line of the symbol */
    enum part   part;
    enum on     on;
    bool        (*is_there)(const struct calls *calls);
    CUresult    (*ask)(struct scene *s, CUstream stream);
};

enum fate { FATE_NONE, FATE_GOES_ON, FATE_INVALID, FATE_ENDED };

struct answer {                 /* of one row in one state; the child writes one for each row, in their order */
    enum { NOT_ASKED, ABSENT, ANSWERED, DIED } kind;
    CUresult  result;
    enum fate fate;             /* of the capture */
};

extern const struct row rows[];
extern const struct state_row states[STATES];
size_t row_count(void);
void   child_run(enum state state, size_t first, int pipe);

/* --- table.c */
void   table_name(const struct row *row, char name[96]);
size_t table_contradictions(const struct answer *answers);              /* of what a card was seen to answer; says which */
void   table_print(const struct answer *answers);                       /* answers[row * STATES + state] */
size_t table_compare(const struct answer *answers, const char *path);   /* how many cells or rows differ; says which */

#endif
