/*
 * test_cudnn_graph.c: the graph interface of the simulated cuDNN: descriptors by attributes, heuristics, plans and their execution.
 */
#include "tests/libraries/device.h"

#include "sim/libraries/cudnn/search.h"

typedef void *handle;
typedef void *descriptor;

int cudnnCreate(handle *h);
int cudnnSetStream(handle h, CUstream stream);
int cudnnBackendCreateDescriptor(int type, descriptor *d);
int cudnnBackendDestroyDescriptor(descriptor d);
int cudnnBackendSetAttribute(descriptor d, int name, int type, int64_t count, const void *values);
int cudnnBackendGetAttribute(descriptor d, int name, int type, int64_t room, int64_t *count, void *values);
int cudnnBackendFinalize(descriptor d);
int cudnnBackendExecute(handle h, descriptor plan, descriptor pack);

static char data;

static descriptor make(int type)
{
    descriptor d = NULL;
    MUST(cudnnBackendCreateDescriptor(type, &d));
    return d;
}

#define SET(d, name, type, count, ...) cudnnBackendSetAttribute(d, ATTRIBUTE_##name, VALUE_##type, count, __VA_ARGS__)
#define GET(d, name, type, room, count, values) cudnnBackendGetAttribute(d, ATTRIBUTE_##name, VALUE_##type, room, count, values)
#define INT(value) (&(int64_t){value})
#define ENUM(value) (&(int){value})

static descriptor tensor(char name, int type, const int64_t *dims)
{
    int64_t strides[4] = {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
    descriptor t = make(DESCRIPTOR_TENSOR);
    MUST(SET(t, TENSOR_DATA_TYPE, DATA_TYPE, 1, ENUM(type)));
    MUST(SET(t, TENSOR_DIMENSIONS, INT64, 4, dims));
    MUST(SET(t, TENSOR_STRIDES, INT64, 4, strides));
    MUST(SET(t, TENSOR_UNIQUE_ID, INT64, 1, INT(name)));
    MUST(SET(t, TENSOR_BYTE_ALIGNMENT, INT64, 1, INT(16)));
    MUST(cudnnBackendFinalize(t));
    return t;
}

static descriptor window(int64_t pad)
{
    int64_t pads[] = {pad, pad}, ones[] = {1, 1};
    descriptor w = make(DESCRIPTOR_CONVOLUTION);
    MUST(SET(w, CONVOLUTION_SPATIAL_DIMS, INT64, 1, INT(2)));
    MUST(SET(w, CONVOLUTION_COMP_TYPE, DATA_TYPE, 1, ENUM(DATA_FLOAT)));
    MUST(SET(w, CONVOLUTION_CONV_MODE, CONVOLUTION_MODE, 1, ENUM(1)));
    MUST(SET(w, CONVOLUTION_PRE_PADDINGS, INT64, 2, pads));
    MUST(SET(w, CONVOLUTION_POST_PADDINGS, INT64, 2, pads));
    MUST(SET(w, CONVOLUTION_FILTER_STRIDES, INT64, 2, ones));
    MUST(SET(w, CONVOLUTION_DILATIONS, INT64, 2, ones));
    MUST(cudnnBackendFinalize(w));
    return w;
}

/* Not finalised: the tensors fit if the window pads by 1. The parts are destroyed: the operation holds what it needs of them. */
static descriptor operation_of(int64_t pad, int64_t side)
{
    int64_t x[] = {8, 16, 28, 28}, w[] = {32, 16, side, side}, y[] = {8, 32, 28, 28};
    descriptor op = make(DESCRIPTOR_CONVOLUTION_FORWARD);
    descriptor parts[] = {tensor('x', DATA_FLOAT, x), tensor('w', DATA_FLOAT, w), tensor('y', DATA_FLOAT, y), window(pad)};
    MUST(SET(op, CONVOLUTION_FORWARD_X, BACKEND_DESCRIPTOR, 1, &parts[0]));
    MUST(SET(op, CONVOLUTION_FORWARD_W, BACKEND_DESCRIPTOR, 1, &parts[1]));
    MUST(SET(op, CONVOLUTION_FORWARD_Y, BACKEND_DESCRIPTOR, 1, &parts[2]));
    MUST(SET(op, CONVOLUTION_FORWARD_CONV_DESC, BACKEND_DESCRIPTOR, 1, &parts[3]));
    for (int i = 0; i < 4; i++)
        MUST(cudnnBackendDestroyDescriptor(parts[i]));
    return op;
}

static descriptor operation(int64_t pad)
{
    return operation_of(pad, 3);
}

static descriptor graph_of(descriptor op)
{
    descriptor graph = make(DESCRIPTOR_OPERATIONGRAPH);
    MUST(cudnnBackendFinalize(op));
    MUST(SET(graph, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, 1, &op));
    MUST(cudnnBackendFinalize(graph));
    MUST(cudnnBackendDestroyDescriptor(op));
    return graph;
}

static descriptor heuristics(descriptor graph, int mode)
{
    descriptor d = make(DESCRIPTOR_ENGINEHEUR);
    MUST(SET(d, ENGINEHEUR_OPERATION_GRAPH, BACKEND_DESCRIPTOR, 1, &graph));
    MUST(SET(d, ENGINEHEUR_MODE, HEUR_MODE, 1, ENUM(mode)));
    MUST(cudnnBackendFinalize(d));
    return d;
}

/* The configurations that heuristics give, all of one graph. */
static int configurations_of(descriptor op, int mode, descriptor list[8])
{
    descriptor graph = graph_of(op), h = heuristics(graph, mode);
    int64_t count = 0, given = 0;
    MUST(GET(h, ENGINEHEUR_RESULTS, BACKEND_DESCRIPTOR, 0, &count, NULL));
    REQUIRE(count >= 1 && count <= 8);
    for (int i = 0; i < count; i++)
        list[i] = make(DESCRIPTOR_ENGINECFG);
    MUST(GET(h, ENGINEHEUR_RESULTS, BACKEND_DESCRIPTOR, count, &given, list));
    REQUIRE_EQ(given, count);
    MUST(cudnnBackendDestroyDescriptor(h));
    MUST(cudnnBackendDestroyDescriptor(graph));
    return (int)count;
}

static int configurations(int mode, descriptor list[8])
{
    return configurations_of(operation(1), mode, list);
}

static descriptor plan_of(descriptor configuration)
{
    descriptor plan = make(DESCRIPTOR_EXECUTION_PLAN);
    MUST(SET(plan, EXECUTION_PLAN_ENGINE_CONFIG, BACKEND_DESCRIPTOR, 1, &configuration));
    MUST(cudnnBackendFinalize(plan));
    return plan;
}

static int64_t workspace_of(descriptor plan)
{
    int64_t bytes = -1;
    MUST(GET(plan, EXECUTION_PLAN_WORKSPACE_SIZE, INT64, 1, NULL, &bytes));
    return bytes;
}

static descriptor pack_of(int count, const int64_t *names, void *workspace)
{
    void *pointers[] = {&data, &data, &data, &data};
    descriptor pack = make(DESCRIPTOR_VARIANT_PACK);
    MUST(SET(pack, VARIANT_PACK_UNIQUE_IDS, INT64, count, names));
    MUST(SET(pack, VARIANT_PACK_DATA_POINTERS, VOID_PTR, count, pointers));
    MUST(SET(pack, VARIANT_PACK_WORKSPACE, VOID_PTR, 1, &workspace));
    MUST(cudnnBackendFinalize(pack));
    return pack;
}

static const int64_t xwy[] = {'x', 'w', 'y'};

CASE(a_convolution_goes_from_tensors_to_execution)
{
    handle h = NULL;
    descriptor list[8];
    begin();
    MUST(cudnnCreate(&h));
    MUST(cudnnSetStream(h, stream));
    int count = configurations(0, list);
    EXPECT(count >= 3);
    descriptor plan = plan_of(list[0]);
    EXPECT(workspace_of(plan) > 0);
    EXPECT_EQ(workspace_of(plan_of(list[count - 1])), 0);
    for (int i = 0; i < count; i++)
        MUST(cudnnBackendDestroyDescriptor(list[i])); /* the plan outlives all it was made of */
    uint64_t before = kernels();
    EXPECT_EQ(cudnnBackendExecute(h, plan, pack_of(3, xwy, NULL)), CUDNN_BAD_PARAM_NULL_POINTER);
    EXPECT_EQ(cudnnBackendExecute(h, plan, pack_of(2, xwy, &data)), CUDNN_BAD_PARAM_NULL_POINTER);
    EXPECT_EQ(kernels(), before);
    OK(cudnnBackendExecute(h, plan, pack_of(3, xwy, &data)));
    EXPECT_EQ(kernels() - before, 1);
    EXPECT_EQ(cudnnBackendExecute(NULL, plan, pack_of(3, xwy, &data)), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnBackendExecute(h, plan, plan), CUDNN_BAD_PARAM_DESCRIPTOR_TYPE);
    EXPECT_EQ(cudnnBackendExecute(h, plan, make(DESCRIPTOR_VARIANT_PACK)), CUDNN_BAD_PARAM_NOT_FINALIZED);
    EXPECT_EQ(cudnnBackendExecute(h, NULL, plan), CUDNN_BAD_PARAM_NULL_POINTER);
}

CASE(the_fallback_needs_nothing_and_suits_everything)
{
    descriptor list[8], engine = make(DESCRIPTOR_ENGINE);
    int64_t index = -1, count = -1;
    int notes[10];
    begin();
    EXPECT_EQ(configurations(2, list), 1);
    EXPECT_EQ(workspace_of(plan_of(list[0])), 0);
    OK(GET(list[0], ENGINECFG_ENGINE, BACKEND_DESCRIPTOR, 1, NULL, &engine));
    OK(GET(engine, ENGINE_GLOBAL_INDEX, INT64, 1, &count, &index));
    EXPECT_EQ(index, 0);
    EXPECT_EQ(count, 1);
    OK(GET(engine, ENGINE_NUMERICAL_NOTE, NUMERICAL_NOTE, 10, &count, notes));
    EXPECT_EQ(count, 0);
    configurations(0, list);
    OK(GET(list[0], ENGINECFG_ENGINE, BACKEND_DESCRIPTOR, 1, NULL, &engine));
    OK(GET(engine, ENGINE_NUMERICAL_NOTE, NUMERICAL_NOTE, 10, &count, notes));
    EXPECT_EQ(count, 1);
    EXPECT_EQ(notes[0], 0); /* tensor cores: what callers that want none look for */
}

static bool has_note(descriptor configuration, int note)
{
    descriptor engine = make(DESCRIPTOR_ENGINE);
    int notes[10] = {0};
    int64_t count = 0;
    MUST(GET(configuration, ENGINECFG_ENGINE, BACKEND_DESCRIPTOR, 1, NULL, &engine));
    MUST(GET(engine, ENGINE_NUMERICAL_NOTE, NUMERICAL_NOTE, 10, &count, notes));
    bool found = false;
    for (int i = 0; i < count; i++)
        found |= notes[i] == note;
    MUST(cudnnBackendDestroyDescriptor(engine));
    return found;
}

CASE(a_filter_of_one_tap_has_no_plan_in_frequencies)
{
    enum { FFT = 3 };
    descriptor list[8];
    begin();
    for (int64_t side = 1; side <= 3; side += 2) {
        int count = configurations_of(operation_of(side / 2, side), 0, list), found = 0;
        for (int i = 0; i < count; i++)
            found += has_note(list[i], FFT);
        EXPECT_EQ(found, side > 1);
    }
}

/* What the device's clock says of one execution, in ms. The host's does not count here: `begin` sets manual_clock. */
static float time_of(handle h, descriptor plan)
{
    CUevent from, to;
    float ms = -1;
    MUST(cuEventCreate(&from, 0));
    MUST(cuEventCreate(&to, 0));
    MUST(cuEventRecord(from, stream));
    MUST(cudnnBackendExecute(h, plan, pack_of(3, xwy, &data)));
    MUST(cuEventRecord(to, stream));
    MUST(cuEventSynchronize(to));
    MUST(cuEventElapsedTime(&ms, from, to));
    MUST(cuEventDestroy(from));
    MUST(cuEventDestroy(to));
    return ms;
}

CASE(a_search_finds_the_preferred_plan_the_fastest)
{
    handle h = NULL;
    descriptor list[8], later;
    begin();
    MUST(cudnnCreate(&h));
    MUST(cudnnSetStream(h, stream));
    int count = configurations(0, list);
    for (int i = 0; i < count; i++)
        EXPECT(time_of(h, plan_of(list[i])) == 1000.0f * (float)i);
    configurations(0, list);
    later = plan_of(list[count - 1]); /* the only one of its graph: that program does not search */
    EXPECT(time_of(h, later) == 0);
}

static int plan_error(descriptor configuration)
{
    descriptor plan = make(DESCRIPTOR_EXECUTION_PLAN);
    MUST(SET(plan, EXECUTION_PLAN_ENGINE_CONFIG, BACKEND_DESCRIPTOR, 1, &configuration));
    int error = cudnnBackendFinalize(plan);
    MUST(cudnnBackendDestroyDescriptor(plan));
    return error;
}

/* Makes a plan of each; those that want more than an earlier one are refused. The most that such a one wants and that is free. */
static uint64_t search_apart(int count, descriptor list[8])
{
    uint64_t most = 0, left = 1024 * MIB;
    int64_t bytes, least = INT64_MAX;
    size_t total;
    MUST(cuMemGetInfo(&left, &total));
    for (int i = 0; i < count; i++) {
        MUST(GET(list[i], ENGINECFG_WORKSPACE_SIZE, INT64, 1, NULL, &bytes));
        EXPECT_EQ(plan_error(list[i]), bytes > least ? CUDNN_NOT_SUPPORTED : 0);
        if (bytes > least && (uint64_t)bytes > most && (uint64_t)bytes <= left)
            most = (uint64_t)bytes;
        least = bytes < least ? bytes : least;
    }
    EXPECT_EQ(least, 0);
    return most;
}

/* The books of a process are of all its searches: so the smaller card comes first. */
CASE(what_a_search_takes_is_told_apart)
{
    static const uint64_t capacities[] = {1 * MIB, 1024 * MIB};
    descriptor list[8];
    uint64_t most[2];
    for (int i = 0; i < 2; i++) {
        begin_with(capacities[i]);
        cenote_sim_search_apart(true);
        EXPECT(cenote_sim_searched(0) == (i ? in_use() + most[0] : 0));
        int count = configurations(0, list);
        most[i] = search_apart(count, list);
        EXPECT(most[i] > 0);
        EXPECT_EQ(cenote_sim_searched(0), in_use() + most[i]);
        cenote_sim_search_apart(false);
        for (int j = 0; j < count; j++)
            EXPECT_EQ(plan_error(list[j]), 0);
    }
    EXPECT(most[1] > most[0]);
    EXPECT_EQ(cenote_sim_searched(1), 0);
    EXPECT_EQ(cenote_sim_searched(-1), 0);
}

CASE(engines_can_be_taken_by_number)
{
    descriptor graph = graph_of(operation(1));
    int64_t engines = 0;
    begin();
    OK(GET(graph, OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, INT64, 1, NULL, &engines));
    REQUIRE(engines > 1);
    for (int64_t i = -1; i <= engines; i++) {
        descriptor engine = make(DESCRIPTOR_ENGINE);
        MUST(SET(engine, ENGINE_OPERATION_GRAPH, BACKEND_DESCRIPTOR, 1, &graph));
        MUST(SET(engine, ENGINE_GLOBAL_INDEX, INT64, 1, &i));
        EXPECT_EQ(cudnnBackendFinalize(engine), i < 0 || i == engines ? CUDNN_BAD_PARAM : 0);
    }
}

CASE(attributes_are_checked)
{
    descriptor t = make(DESCRIPTOR_TENSOR), open = make(DESCRIPTOR_TENSOR), op = make(DESCRIPTOR_CONVOLUTION_FORWARD);
    int64_t dims[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    begin();
    EXPECT_EQ(SET(t, TENSOR_DIMENSIONS, INT32, 1, dims), CUDNN_BAD_PARAM_ATTRIBUTE_TYPE);
    EXPECT_EQ(cudnnBackendSetAttribute(t, ATTRIBUTE_TENSOR_DIMENSIONS, 77, 1, dims), CUDNN_BAD_PARAM_ATTRIBUTE_TYPE);
    EXPECT_EQ(SET(t, TENSOR_DIMENSIONS, INT64, 9, dims), CUDNN_BAD_PARAM_OUT_OF_BOUND);
    EXPECT_EQ(SET(t, TENSOR_DIMENSIONS, INT64, -1, dims), CUDNN_BAD_PARAM_OUT_OF_BOUND);
    EXPECT_EQ(SET(t, TENSOR_DIMENSIONS, INT64, 1, NULL), CUDNN_BAD_PARAM_NULL_POINTER);
    EXPECT_EQ(SET(t, TENSOR_DATA_TYPE, DATA_TYPE, 1, ENUM(99)), CUDNN_BAD_PARAM);
    EXPECT_EQ(SET(t, CONVOLUTION_SPATIAL_DIMS, INT64, 1, dims), CUDNN_NOT_SUPPORTED); /* not a tensor's */
    EXPECT_EQ(cudnnBackendSetAttribute(t, 4711, VALUE_INT64, 1, dims), CUDNN_NOT_SUPPORTED);
    EXPECT_EQ(SET(op, CONVOLUTION_FORWARD_X, BACKEND_DESCRIPTOR, 1, &open), CUDNN_BAD_PARAM_NOT_FINALIZED);
    EXPECT_EQ(SET(op, CONVOLUTION_FORWARD_X, BACKEND_DESCRIPTOR, 1, &op), CUDNN_BAD_PARAM_DESCRIPTOR_TYPE);
    EXPECT_EQ(SET(op, CONVOLUTION_FORWARD_X, BACKEND_DESCRIPTOR, 1, &(descriptor){NULL}), CUDNN_BAD_PARAM_NULL_POINTER);
    EXPECT_EQ(SET(NULL, TENSOR_DIMENSIONS, INT64, 1, dims), CUDNN_BAD_PARAM_NULL_POINTER);
    EXPECT_EQ(GET(t, TENSOR_DIMENSIONS, INT64, 1, NULL, dims), CUDNN_BAD_PARAM_NOT_FINALIZED);
    EXPECT_EQ(cudnnBackendFinalize(t), CUDNN_BAD_PARAM); /* incomplete */
    EXPECT_EQ(cudnnBackendFinalize(NULL), CUDNN_BAD_PARAM_NULL_POINTER);
    OK(cudnnBackendDestroyDescriptor(t));
    EXPECT_EQ(SET(t, TENSOR_DIMENSIONS, INT64, 1, dims), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnBackendFinalize(t), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnBackendDestroyDescriptor(t), CUDNN_BAD_PARAM);
    EXPECT_EQ(cudnnBackendCreateDescriptor(999, &t), CUDNN_NOT_SUPPORTED);
    EXPECT(!t);
    EXPECT_EQ(cudnnBackendCreateDescriptor(DESCRIPTOR_TENSOR, NULL), CUDNN_BAD_PARAM_NULL_POINTER);
}

CASE(what_is_finalised_does_not_change)
{
    int64_t dims[] = {8, 16, 28, 28}, got[8] = {0}, count = 0;
    descriptor t = tensor('x', DATA_FLOAT, dims);
    begin();
    EXPECT_EQ(SET(t, TENSOR_UNIQUE_ID, INT64, 1, INT('z')), CUDNN_NOT_INITIALIZED);
    OK(GET(t, TENSOR_DIMENSIONS, INT64, 8, &count, got));
    EXPECT_EQ(count, 4);
    EXPECT(!memcmp(got, dims, sizeof dims));
    OK(GET(t, TENSOR_DIMENSIONS, INT64, 2, &count, got + 4));
    EXPECT_EQ(count, 2);
    EXPECT(got[4] == 8 && got[5] == 16 && got[6] == 0);
    OK(GET(t, TENSOR_RAGGED_OFFSET_DESC, BACKEND_DESCRIPTOR, 1, &count, got));
    EXPECT_EQ(count, 0); /* was not set */
    EXPECT_EQ(GET(t, TENSOR_DIMENSIONS, FLOAT, 8, &count, got), CUDNN_BAD_PARAM_ATTRIBUTE_TYPE);
    EXPECT_EQ(GET(t, TENSOR_VECTOR_COUNT, INT64, 1, NULL, got), CUDNN_BAD_PARAM);
}

CASE(shapes_must_fit)
{
    int64_t huge[] = {1 << 20, 1 << 20, 1 << 20, 1}, wider[] = {1ll << 40, 1ll << 40, 1ll << 40, 1};
    begin();
    EXPECT_EQ(cudnnBackendFinalize(operation(0)), CUDNN_BAD_PARAM_SHAPE_MISMATCH);
    EXPECT_EQ(cudnnBackendFinalize(operation(-1)), CUDNN_BAD_PARAM);
    OK(cudnnBackendFinalize(operation(1)));
    descriptor t = make(DESCRIPTOR_TENSOR);
    MUST(SET(t, TENSOR_DATA_TYPE, DATA_TYPE, 1, ENUM(DATA_FLOAT)));
    MUST(SET(t, TENSOR_DIMENSIONS, INT64, 4, huge));
    MUST(SET(t, TENSOR_STRIDES, INT64, 3, huge));
    MUST(SET(t, TENSOR_UNIQUE_ID, INT64, 1, INT('x')));
    MUST(SET(t, TENSOR_BYTE_ALIGNMENT, INT64, 1, INT(16)));
    EXPECT_EQ(cudnnBackendFinalize(t), CUDNN_BAD_PARAM); /* one stride is missing */
    MUST(SET(t, TENSOR_STRIDES, INT64, 4, huge));
    EXPECT_EQ(cudnnBackendFinalize(t), CUDNN_NOT_SUPPORTED_SHAPE);
    MUST(SET(t, TENSOR_DIMENSIONS, INT64, 4, wider)); /* their product is no number of 64 bits */
    EXPECT_EQ(cudnnBackendFinalize(t), CUDNN_NOT_SUPPORTED_SHAPE);
    MUST(SET(t, TENSOR_DIMENSIONS, INT64, 4, (int64_t[]){1, 1, 1, 1}));
    MUST(SET(t, TENSOR_BYTE_ALIGNMENT, INT64, 1, INT(12)));
    EXPECT_EQ(cudnnBackendFinalize(t), CUDNN_BAD_PARAM);
    MUST(SET(t, TENSOR_BYTE_ALIGNMENT, INT64, 1, INT(4)));
    OK(cudnnBackendFinalize(t));
}

CASE(names_and_pointers_come_in_pairs)
{
    void *pointers[] = {&data, &data};
    descriptor pack = make(DESCRIPTOR_VARIANT_PACK), graph = make(DESCRIPTOR_OPERATIONGRAPH);
    begin();
    MUST(SET(pack, VARIANT_PACK_UNIQUE_IDS, INT64, 3, xwy));
    MUST(SET(pack, VARIANT_PACK_DATA_POINTERS, VOID_PTR, 2, pointers));
    EXPECT_EQ(cudnnBackendFinalize(pack), CUDNN_BAD_PARAM);
    MUST(SET(pack, VARIANT_PACK_UNIQUE_IDS, INT64, 2, xwy));
    OK(cudnnBackendFinalize(pack));
    MUST(SET(graph, OPERATIONGRAPH_OPS, BACKEND_DESCRIPTOR, 0, NULL));
    EXPECT_EQ(cudnnBackendFinalize(graph), CUDNN_BAD_PARAM); /* without operations */
}

/* A tensor whose offsets are a tensor whose offsets are ...: an end to it is set before releasing it could exhaust the stack. */
CASE(descriptors_within_descriptors_come_to_an_end)
{
    int64_t ones[] = {1, 1, 1, 1};
    begin();
    descriptor inner = tensor('a', DATA_INT32, ones);
    int depth = 0, error = 0;
    while (!error && depth < 100000) {
        descriptor t = make(DESCRIPTOR_TENSOR);
        MUST(SET(t, TENSOR_DATA_TYPE, DATA_TYPE, 1, ENUM(DATA_INT32)));
        MUST(SET(t, TENSOR_DIMENSIONS, INT64, 4, ones));
        MUST(SET(t, TENSOR_STRIDES, INT64, 4, ones));
        MUST(SET(t, TENSOR_UNIQUE_ID, INT64, 1, INT('b')));
        MUST(SET(t, TENSOR_BYTE_ALIGNMENT, INT64, 1, INT(4)));
        error = SET(t, TENSOR_RAGGED_OFFSET_DESC, BACKEND_DESCRIPTOR, 1, &inner);
        MUST(cudnnBackendFinalize(t));
        MUST(cudnnBackendDestroyDescriptor(inner));
        inner = t;
        depth++;
    }
    EXPECT_EQ(error, CUDNN_NOT_SUPPORTED);
    EXPECT(depth < 1000);
    OK(cudnnBackendDestroyDescriptor(inner));
}

SUITE_MAIN("cudnn graph")
