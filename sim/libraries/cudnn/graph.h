/*
 * graph.h: descriptors of the graph interface from inside. backend.c keeps what they hold, graph.c knows what it means.
 */
#ifndef CENOTE_SIM_CUDNN_GRAPH_H
#define CENOTE_SIM_CUDNN_GRAPH_H

#include "sim/libraries/cudnn/cudnn.h"

enum descriptor_type {
#define DESCRIPTOR(number, name, what) DESCRIPTOR_##name = number,
#include "sim/libraries/cudnn/descriptors.def"
#undef DESCRIPTOR
};

enum attribute_number {
#define ATTRIBUTE(number, descriptor, name, type, most, use) ATTRIBUTE_##descriptor##_##name = number,
#include "sim/libraries/cudnn/attributes.def"
#undef ATTRIBUTE
};

/* What a descriptor holds. Once finalised it never changes and may be held by many: descriptors, and bodies made of it. */
struct body {
    _Atomic unsigned     holders;
    enum descriptor_type type;
    bool                 is_final;
    int                  depth;     /* of bodies within bodies */
    struct {                        /* of a graph: the plans that were made of it. search.c's; nothing that the descriptor holds */
        uint64_t least;             /* scratch memory; UINT64_MAX: there are none */
        int      first;             /* place of the first one's engine; -1: there is none */
    } plans;
    unsigned             count;
    struct attribute    *attributes;
};

struct attribute {
    int     number;
    int     type;       /* VALUE_... */
    int64_t count;
    void   *values;     /* owned; of descriptors: an array of bodies, each held */
};

struct body *body_open(enum descriptor_type type);  /* held once; NULL: no memory */
void         body_hold(struct body *body);
void         body_release(struct body *body);

/* Replaces what was there; copies values, holds bodies. False: no memory. */
bool body_put(struct body *body, int number, int type, int64_t count, const void *values);
bool body_put_bodies(struct body *body, int number, int64_t count, struct body *const *bodies);

const struct attribute *body_find(const struct body *body, int number);     /* NULL: was never set */
int64_t      body_integer(const struct body *body, int number);             /* the first value; 0 if there is none */
int64_t      body_integers(const struct body *body, int number, int64_t *list, int64_t most); /* how many there are */
struct body *body_at(const struct body *body, int number, int64_t i);       /* NULL: there is none */

/* --- graph.c */
bool graph_is_operation(int type);
int  graph_finalize(struct body *body);     /* checks it, and computes its answers */
int  graph_execute(const void *handle, const struct body *plan, const struct body *pack);

#endif
