/*
 * objects.c: user objects, which graphs keep alive for the program, and handles of conditions.
 *
 * A user object is a pointer of the program and the function that ends it, called when the last reference is gone: references of the
 * program, of graphs, and of what was instantiated from them. Like a host function it must not call CUDA.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/graph/graph.h"

#define OBJECTS_MAX (1u << 20)
#define CONDITIONS_MAX 65536

struct object {
    void    *pointer;
    CUhostFn destroy;
    uint64_t references;
};

struct condition {
    uint64_t graph;     /* id */
    bool     taken;     /* by a node */
};

static struct slots objects;
static struct slots conditions;

/* What graphs held is forgotten: nothing of the program is called at a reset. */
void objects_reset(void)
{
    if (!objects.items) {
        slots_open(&objects, sizeof(struct object), OBJECTS_MAX, SLOTS_OLDEST_FIRST);
        slots_open(&conditions, sizeof(struct condition), CONDITIONS_MAX, SLOTS_OLDEST_FIRST);
    }
    slots_clear(&objects);
    slots_clear(&conditions);
}

static struct object *object_at(uint32_t number)
{
    return slots_at(&objects, number);
}

static uint32_t find(CUuserObject object, const char *call)
{
    uint32_t number = slots_number(&objects, object);
    if (!number)
        model_violation("%s: %p was destroyed or never created", call, (void *)object);
    return number;
}

static void drop(uint32_t number, uint64_t count)
{
    const struct object o = *object_at(number);
    object_at(number)->references -= count;
    if (o.references != count)
        return;
    slots_give(&objects, number);
    calls_put(o.destroy, o.pointer, false);
}

CUresult object_create(CUuserObject *object, void *pointer, CUhostFn destroy, unsigned count, unsigned flags)
{
    if (!object || !destroy || !count || count > INT32_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t number = slots_take(&objects);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *object_at(number) = (struct object){pointer, destroy, count};
    *object = slots_handle(&objects, number);
    return CUDA_SUCCESS;
}

CUresult object_retain(CUuserObject object, unsigned count)
{
    uint32_t number = find(object, "cuUserObjectRetain");
    if (!number || !count || count > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    object_at(number)->references += count;
    return CUDA_SUCCESS;
}

CUresult object_release(CUuserObject object, unsigned count)
{
    uint32_t number = find(object, "cuUserObjectRelease");
    if (!number || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (count > object_at(number)->references)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuUserObjectRelease: released more often than retained");
    drop(number, count);
    return CUDA_SUCCESS;
}

static struct holding *holding_of(const struct graph *g, uint32_t object)
{
    for (uint32_t i = 0; i < g->holding_count; i++)
        if (g->holdings[i].object == object)
            return &g->holdings[i];
    return NULL;
}

static bool hold(struct graph *g, uint32_t object, uint32_t count)
{
    struct holding *h = holding_of(g, object);
    if (h) {
        h->count += count;
        return true;
    }
    struct holding *list = realloc(g->holdings, (g->holding_count + 1) * sizeof *list);
    if (!list)
        return false;
    g->holdings = list;
    list[g->holding_count++] = (struct holding){object, count};
    return true;
}

CUresult object_hold(struct graph *g, CUuserObject object, unsigned count, unsigned flags)
{
    uint32_t o = find(object, "cuGraphRetainUserObject");
    bool move = flags & CU_GRAPH_USER_OBJECT_MOVE;
    if (!g || !o || !count || count > INT32_MAX || flags & ~(unsigned)CU_GRAPH_USER_OBJECT_MOVE)
        return CUDA_ERROR_INVALID_VALUE;
    if (move && count > object_at(o)->references)
        return CUDA_ERROR_INVALID_VALUE;
    if (!hold(g, o, count))
        return CUDA_ERROR_OUT_OF_MEMORY;
    object_at(o)->references += move ? 0 : count;
    return CUDA_SUCCESS;
}

CUresult object_let_go(struct graph *g, CUuserObject object, unsigned count)
{
    uint32_t o = find(object, "cuGraphReleaseUserObject");
    struct holding *h = g && o ? holding_of(g, o) : NULL;
    if (!h || !count || count > h->count)
        return CUDA_ERROR_INVALID_VALUE;
    h->count -= count;
    if (!h->count)
        *h = g->holdings[--g->holding_count];
    drop(o, count);
    return CUDA_SUCCESS;
}

bool objects_copy(const struct graph *from, struct graph *to)
{
    for (uint32_t i = 0; i < from->holding_count; i++) {
        if (!hold(to, from->holdings[i].object, from->holdings[i].count))
            return false;
        object_at(from->holdings[i].object)->references += from->holdings[i].count;
    }
    return true;
}

/* And its handles of conditions. */
void objects_release_all(struct graph *g)
{
    for (uint32_t i = 0; i < g->holding_count; i++)
        drop(g->holdings[i].object, g->holdings[i].count);
    free(g->holdings);
    g->holdings = NULL;
    g->holding_count = 0;
    for (uint32_t i = 1; conditions.live_count && i < conditions.used; i++)
        if (slots_is_live(&conditions, i) && ((struct condition *)slots_at(&conditions, i))->graph == g->id)
            slots_give(&conditions, i);
}

CUresult condition_new(const struct graph *g, CUgraphConditionalHandle *handle)
{
    uint32_t taken = slots_take(&conditions);
    if (!taken)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(struct condition *)slots_at(&conditions, taken) = (struct condition){.graph = g->id};
    *handle = (uintptr_t)slots_handle(&conditions, taken);
    return CUDA_SUCCESS;
}

bool condition_take(CUgraphConditionalHandle handle, const struct graph *g)
{
    uint32_t number = slots_number(&conditions, (void *)(uintptr_t)handle);
    struct condition *c = number ? slots_at(&conditions, number) : NULL;
    if (!c || c->taken || c->graph != g->id)
        return false;
    c->taken = true;
    return true;
}
