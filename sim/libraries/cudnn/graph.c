/*
 * graph.c: what the descriptors of the graph interface mean: which are complete and fit together, the ways to run a graph, and the run.
 *
 *     tensors, operations ---> graph ---> heuristics ---> engine configurations, the preferred first ---> plan ---> execution
 *                                   \---> engine, by number ---> engine configuration ------------------/
 *
 * A graph with a convolution has the engines of engines.def that suit the convolution; what is fused with it costs nothing more. Every
 * other graph has one engine, compiled for it. Answers (the results of heuristics, notes of an engine, the scratch memory of a plan) are
 * computed when the descriptor is finalised and stored like any other attribute, so that asking changes nothing.
 *
 * LOCKING: none; see backend.c.
 */
#include "sim/libraries/cudnn/graph.h"

#include <stdio.h>
#include <string.h>

#include "sim/libraries/cudnn/convolution.h"
#include "sim/libraries/cudnn/search.h"
#include "sim/libraries/cudnn/told.h"

#define ELEMENTS_MAX (1ll << 48)

#define HEURISTICS_FALLBACK 2
#define NUMERICAL_NOTES 10
#define NOTE_COMPILED_AT_RUNTIME 0 /* of a behaviour */

#define INTEGER(body, name) body_integer(body, ATTRIBUTE_##name)
#define AT(body, name) body_at(body, ATTRIBUTE_##name, 0)
#define PUT_INTEGER(body, name, value) body_put(body, ATTRIBUTE_##name, VALUE_INT64, 1, &(int64_t){(int64_t)(value)})

static int no_memory(void)
{
    return cudnn_fail(CUDNN_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory for a descriptor");
}

bool graph_is_operation(int type)
{
    enum { PART, OPERATION };
    switch (type) {
#define DESCRIPTOR(number, name, what) case number: return what == OPERATION;
#include "sim/libraries/cudnn/descriptors.def"
#undef DESCRIPTOR
    default: return false;
    }
}

/* --- tensors */

static struct view view_of(const struct body *tensor)
{
    struct view v = {.type = (int)INTEGER(tensor, TENSOR_DATA_TYPE)};
    v.count = (int)body_integers(tensor, ATTRIBUTE_TENSOR_DIMENSIONS, v.dims, CUDNN_DIMS_MAX);
    body_integers(tensor, ATTRIBUTE_TENSOR_STRIDES, v.strides, CUDNN_DIMS_MAX);
    return v;
}

static int finalize_tensor(const struct body *tensor)
{
    struct view v = view_of(tensor);
    int64_t alignment = INTEGER(tensor, TENSOR_BYTE_ALIGNMENT), elements = 1, strides[CUDNN_DIMS_MAX];
    if (v.count < 1 || body_integers(tensor, ATTRIBUTE_TENSOR_STRIDES, strides, CUDNN_DIMS_MAX) != v.count)
        return cudnn_fail(CUDNN_BAD_PARAM, "tensor: %d dimensions, and another number of strides", v.count);
    for (int i = 0; i < v.count; i++) {
        if (v.dims[i] < 1 || v.strides[i] < 0)
            return cudnn_fail(CUDNN_BAD_PARAM, "tensor: dimension %d is %lld", i, (long long)v.dims[i]);
        if (__builtin_mul_overflow(elements, v.dims[i], &elements) || elements > ELEMENTS_MAX)
            return cudnn_fail(CUDNN_NOT_SUPPORTED_SHAPE, "tensor: too many elements");
    }
    if (alignment < 1 || alignment & (alignment - 1))
        return cudnn_fail(CUDNN_BAD_PARAM, "tensor: an alignment of %lld", (long long)alignment);
    return 0;
}

/* --- convolutions */

static const struct { enum descriptor_type type; enum convolution_kind kind; int window, x, w, y; } convolutions[] = {
    {DESCRIPTOR_CONVOLUTION_FORWARD, FORWARD, ATTRIBUTE_CONVOLUTION_FORWARD_CONV_DESC, ATTRIBUTE_CONVOLUTION_FORWARD_X,
        ATTRIBUTE_CONVOLUTION_FORWARD_W, ATTRIBUTE_CONVOLUTION_FORWARD_Y},
    {DESCRIPTOR_CONVOLUTION_DATA, BACKWARD_DATA, ATTRIBUTE_CONVOLUTION_DATA_CONV_DESC, ATTRIBUTE_CONVOLUTION_DATA_DX,
        ATTRIBUTE_CONVOLUTION_DATA_W, ATTRIBUTE_CONVOLUTION_DATA_DY},
    {DESCRIPTOR_CONVOLUTION_FILTER, BACKWARD_FILTER, ATTRIBUTE_CONVOLUTION_FILTER_CONV_DESC, ATTRIBUTE_CONVOLUTION_FILTER_X,
        ATTRIBUTE_CONVOLUTION_FILTER_DW, ATTRIBUTE_CONVOLUTION_FILTER_DY},
};

static int finalize_window(const struct body *window)
{
    static const int lists[] = {ATTRIBUTE_CONVOLUTION_DILATIONS, ATTRIBUTE_CONVOLUTION_FILTER_STRIDES, ATTRIBUTE_CONVOLUTION_POST_PADDINGS,
        ATTRIBUTE_CONVOLUTION_PRE_PADDINGS};
    int64_t spatial = INTEGER(window, CONVOLUTION_SPATIAL_DIMS);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (body_integers(window, lists[i], NULL, 0) != spatial)
            return cudnn_fail(CUDNN_BAD_PARAM, "convolution: attribute %d has not %lld elements", lists[i], (long long)spatial);
    return 0;
}

/* False: the operation is no convolution. Its error, if it is one whose parts do not fit. */
static bool describe(const struct body *operation, struct convolution *c, int *error)
{
    for (size_t i = 0; i < sizeof convolutions / sizeof *convolutions; i++) {
        if (operation->type != convolutions[i].type)
            continue;
        const struct body *d = body_at(operation, convolutions[i].window, 0);
        struct window w = {.spatial = (int)INTEGER(d, CONVOLUTION_SPATIAL_DIMS)};
        body_integers(d, ATTRIBUTE_CONVOLUTION_PRE_PADDINGS, w.before, CUDNN_DIMS_MAX);
        body_integers(d, ATTRIBUTE_CONVOLUTION_POST_PADDINGS, w.after, CUDNN_DIMS_MAX);
        body_integers(d, ATTRIBUTE_CONVOLUTION_FILTER_STRIDES, w.stride, CUDNN_DIMS_MAX);
        body_integers(d, ATTRIBUTE_CONVOLUTION_DILATIONS, w.dilation, CUDNN_DIMS_MAX);
        struct view x = view_of(body_at(operation, convolutions[i].x, 0)), y = view_of(body_at(operation, convolutions[i].y, 0));
        struct view filter = view_of(body_at(operation, convolutions[i].w, 0));
        *error = convolution_describe(c, convolutions[i].kind, &x, &filter, &y, &w);
        c->tensor_cores = true; /* the caller chooses by the engines' notes */
        return true;
    }
    return false;
}

/* The first of a graph's convolutions; false: it has none. */
static bool convolution_of(const struct body *graph, struct convolution *c)
{
    const struct body *operation;
    int error;
    for (int64_t i = 0; (operation = body_at(graph, ATTRIBUTE_OPERATIONGRAPH_OPS, i)); i++)
        if (describe(operation, c, &error))
            return true;
    return false;
}

/* --- engines: of a convolution's table, or the one of every other graph, number 0 */

static int finalize_graph(struct body *graph)
{
    struct convolution c;
    if (!body_at(graph, ATTRIBUTE_OPERATIONGRAPH_OPS, 0))
        return cudnn_fail(CUDNN_BAD_PARAM, "a graph without operations");
    int64_t count = convolution_of(graph, &c) ? engines_count(c.kind) : 1;
    return PUT_INTEGER(graph, OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, count) ? 0 : no_memory();
}

/* The row of engines.def; NULL: it does not suit. */
static const struct engine *engine_of(const struct convolution *c, int64_t index)
{
    const struct engine *list[ENGINES_MAX];
    int count = engines_of(c, list);
    for (int i = 0; i < count; i++)
        if (engine_index(list[i]) == index)
            return list[i];
    return NULL;
}

static int finalize_engine(struct body *engine)
{
    const struct body *graph = AT(engine, ENGINE_OPERATION_GRAPH);
    int64_t index = INTEGER(engine, ENGINE_GLOBAL_INDEX);
    if (index < 0 || index >= INTEGER(graph, OPERATIONGRAPH_ENGINE_GLOBAL_COUNT))
        return cudnn_fail(CUDNN_BAD_PARAM, "engine: there is no number %lld", (long long)index);
    struct convolution c;
    int notes[NUMERICAL_NOTES], behaviours[] = {NOTE_COMPILED_AT_RUNTIME}, count = 0, behaviour_count = 0;
    unsigned bits = NOTE_TENSOR_CORE;
    if (convolution_of(graph, &c)) {
        const struct engine *e = engine_of(&c, index);
        if (!e)
            return cudnn_fail(CUDNN_NOT_SUPPORTED, "engine %lld does not suit this convolution", (long long)index);
        bits = e->notes;
    } else {
        behaviour_count = 1;
    }
    for (int i = 0; i < NUMERICAL_NOTES; i++)
        if (bits & 1u << i)
            notes[count++] = i;
    bool stored = body_put(engine, ATTRIBUTE_ENGINE_NUMERICAL_NOTE, VALUE_NUMERICAL_NOTE, count, notes) &&
        body_put(engine, ATTRIBUTE_ENGINE_BEHAVIOR_NOTE, VALUE_BEHAVIOR_NOTE, behaviour_count, behaviours);
    return stored ? 0 : no_memory();
}

/* --- scratch memory */

/* What attention takes backwards: its own operation says so by the shape of dq. */
static uint64_t operation_workspace(const struct body *operation)
{
    if (operation->type != DESCRIPTOR_SDPA_BWD)
        return 0;
    struct view q = view_of(AT(operation, SDPA_BWD_QDESC)), k = view_of(AT(operation, SDPA_BWD_KDESC));
    if (q.count != 4 || k.count != 4)
        return 0;
    return attention_backward_workspace(&(struct attention){q.dims[0], q.dims[1], q.dims[2], k.dims[2], q.dims[3]});
}

static uint64_t workspace_of(const struct body *engine)
{
    const struct body *graph = AT(engine, ENGINE_OPERATION_GRAPH), *operation;
    struct convolution c;
    if (convolution_of(graph, &c))
        return engine_of(&c, INTEGER(engine, ENGINE_GLOBAL_INDEX))->workspace(&c);
    uint64_t bytes = 0;
    for (int64_t i = 0; (operation = body_at(graph, ATTRIBUTE_OPERATIONGRAPH_OPS, i)); i++)
        bytes += operation_workspace(operation);
    return bytes;
}

static int finalize_configuration(struct body *configuration)
{
    uint64_t bytes = workspace_of(AT(configuration, ENGINECFG_ENGINE));
    bool stored = PUT_INTEGER(configuration, ENGINECFG_WORKSPACE_SIZE, bytes) &&
        body_put(configuration, ATTRIBUTE_ENGINECFG_SHARED_MEMORY_USED, VALUE_INT32, 1, &(int32_t){0});
    return stored ? 0 : no_memory();
}

/* Where heuristics list this engine, counted from 0. */
static int place_of(const struct body *engine)
{
    struct convolution c;
    const struct engine *list[ENGINES_MAX];
    int place = 0, count = convolution_of(AT(engine, ENGINE_OPERATION_GRAPH), &c) ? engines_of(&c, list) : 0;
    while (place < count && engine_index(list[place]) != INTEGER(engine, ENGINE_GLOBAL_INDEX))
        place++;
    return place;
}

/* The words of a plan are for people to read: it cannot be made from them again. */
static int finalize_plan(struct body *plan)
{
    const struct body *configuration = AT(plan, EXECUTION_PLAN_ENGINE_CONFIG), *engine = AT(configuration, ENGINECFG_ENGINE);
    int64_t bytes = INTEGER(configuration, ENGINECFG_WORKSPACE_SIZE);
    char words[96];
    if (!search_admits(AT(engine, ENGINE_OPERATION_GRAPH), place_of(engine), (uint64_t)bytes))
        return cudnn_fail(CUDNN_NOT_SUPPORTED, "a plan that a search would only try: %lld bytes", (long long)bytes);
    told_note((uint64_t)bytes);
    int length = snprintf(words, sizeof words, "{\"simulated\": true, \"engine\": %lld, \"workspace\": %lld}",
        (long long)INTEGER(engine, ENGINE_GLOBAL_INDEX), (long long)bytes);
    bool stored = PUT_INTEGER(plan, EXECUTION_PLAN_WORKSPACE_SIZE, bytes) &&
        body_put(plan, ATTRIBUTE_EXECUTION_PLAN_JSON_REPRESENTATION, VALUE_CHAR, length, words);
    return stored ? 0 : no_memory();
}

/* --- heuristics */

/* An engine and a configuration of it, both final. NULL: no memory, or the engine does not suit. */
static struct body *configure(struct body *graph, int index)
{
    struct body *engine = body_open(DESCRIPTOR_ENGINE), *configuration = body_open(DESCRIPTOR_ENGINECFG);
    bool done = engine && configuration && body_put_bodies(engine, ATTRIBUTE_ENGINE_OPERATION_GRAPH, 1, &graph) &&
        PUT_INTEGER(engine, ENGINE_GLOBAL_INDEX, index) && !finalize_engine(engine);
    if (done)
        engine->is_final = true;
    done = done && body_put_bodies(configuration, ATTRIBUTE_ENGINECFG_ENGINE, 1, &engine) && !finalize_configuration(configuration);
    body_release(engine);
    if (!done) {
        body_release(configuration);
        return NULL;
    }
    configuration->is_final = true;
    return configuration;
}

/* The fallback is what suits everything; the other modes list all that suits. */
static int finalize_heuristics(struct body *heuristics)
{
    struct body *graph = AT(heuristics, ENGINEHEUR_OPERATION_GRAPH), *results[ENGINES_MAX];
    struct convolution c;
    int indices[ENGINES_MAX] = {0}, count = 1, made = 0;
    if (INTEGER(heuristics, ENGINEHEUR_MODE) != HEURISTICS_FALLBACK && convolution_of(graph, &c)) {
        const struct engine *list[ENGINES_MAX];
        count = engines_of(&c, list);
        for (int i = 0; i < count; i++)
            indices[i] = engine_index(list[i]);
    }
    while (made < count && (results[made] = configure(graph, indices[made])))
        made++;
    bool stored = made == count && body_put_bodies(heuristics, ATTRIBUTE_ENGINEHEUR_RESULTS, count, results);
    for (int i = 0; i < made; i++)
        body_release(results[i]);
    return stored ? 0 : no_memory();
}

/* --- finalisation */

static int finalize_pack(const struct body *pack)
{
    int64_t names = body_integers(pack, ATTRIBUTE_VARIANT_PACK_UNIQUE_IDS, NULL, 0);
    int64_t pointers = body_integers(pack, ATTRIBUTE_VARIANT_PACK_DATA_POINTERS, NULL, 0);
    return names == pointers ? 0 : cudnn_fail(CUDNN_BAD_PARAM, "%lld tensors and %lld pointers", (long long)names, (long long)pointers);
}

int graph_finalize(struct body *body)
{
    struct convolution c;
    int error = 0;
    switch (body->type) {
    case DESCRIPTOR_TENSOR: return finalize_tensor(body);
    case DESCRIPTOR_CONVOLUTION: return finalize_window(body);
    case DESCRIPTOR_OPERATIONGRAPH: return finalize_graph(body);
    case DESCRIPTOR_ENGINE: return finalize_engine(body);
    case DESCRIPTOR_ENGINECFG: return finalize_configuration(body);
    case DESCRIPTOR_ENGINEHEUR: return finalize_heuristics(body);
    case DESCRIPTOR_EXECUTION_PLAN: return finalize_plan(body);
    case DESCRIPTOR_VARIANT_PACK: return finalize_pack(body);
    case DESCRIPTOR_INTERMEDIATE_INFO: case DESCRIPTOR_KNOB_INFO: case DESCRIPTOR_LAYOUT_INFO:
        return cudnn_fail(CUDNN_NOT_SUPPORTED, "descriptors of type %d are filled by the library", body->type);
    default:
        describe(body, &c, &error);
        return error;
    }
}

/* --- execution */

static bool has_pointer(const struct body *pack, int64_t name)
{
    const struct attribute *names = body_find(pack, ATTRIBUTE_VARIANT_PACK_UNIQUE_IDS);
    const struct attribute *pointers = body_find(pack, ATTRIBUTE_VARIANT_PACK_DATA_POINTERS);
    for (int64_t i = 0; i < names->count; i++)
        if (((const int64_t *)names->values)[i] == name)
            return ((void *const *)pointers->values)[i];
    return false;
}

/* Tensors in memory need an address; virtual ones, and values, need none. */
static int check_tensors(const struct body *operation, const struct body *pack)
{
    for (unsigned i = 0; i < operation->count; i++) {
        struct body *tensor;
        for (int64_t j = 0; (tensor = body_at(operation, operation->attributes[i].number, j)); j++) {
            if (tensor->type != DESCRIPTOR_TENSOR || INTEGER(tensor, TENSOR_IS_VIRTUAL) || INTEGER(tensor, TENSOR_IS_BY_VALUE))
                continue;
            int64_t name = INTEGER(tensor, TENSOR_UNIQUE_ID);
            if (!has_pointer(pack, name))
                return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "execution: no data for tensor %lld", (long long)name);
        }
    }
    return 0;
}

static bool has_workspace(const struct body *pack)
{
    const struct attribute *a = body_find(pack, ATTRIBUTE_VARIANT_PACK_WORKSPACE);
    return a && a->count && *(void *const *)a->values;
}

int graph_execute(const void *handle, const struct body *plan, const struct body *pack)
{
    const struct body *engine = AT(AT(plan, EXECUTION_PLAN_ENGINE_CONFIG), ENGINECFG_ENGINE);
    const struct body *graph = AT(engine, ENGINE_OPERATION_GRAPH), *operation;
    if (INTEGER(plan, EXECUTION_PLAN_WORKSPACE_SIZE) && !has_workspace(pack))
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "execution: the plan needs a workspace");
    for (int64_t i = 0; (operation = body_at(graph, ATTRIBUTE_OPERATIONGRAPH_OPS, i)); i++) {
        int error = check_tensors(operation, pack);
        if (error)
            return error;
    }
    int error = cudnn_occupy(handle, search_time(graph, place_of(engine)));
    return error ? error : cudnn_launch(handle, "cudnn graph");
}
