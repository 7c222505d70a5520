/* test_arrays.c: arrays, mipmapped arrays, copies from and to them, textures and surfaces. CUDA driver API only. */
#include "tests/sim/simulated.h"

#define SIDE 5
#define CELLS (SIDE * SIDE * SIDE)

static size_t memory_left(void)
{
    size_t left = 0, total;
    EXPECT_OK(cuMemGetInfo(&left, &total));
    return left;
}

static CUarray array_of(size_t width, size_t height, size_t depth, CUarray_format format, unsigned channels, unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = width, .Height = height, .Depth = depth, .Format = format, .NumChannels = channels, .Flags = flags};
    CUarray array = NULL;
    REQUIRE_OK(cuArray3DCreate(&array, &shape));
    return array;
}

static CUresult refusal_of(size_t width, size_t height, size_t depth, CUarray_format format, unsigned channels, unsigned flags)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = width, .Height = height, .Depth = depth, .Format = format, .NumChannels = channels, .Flags = flags};
    CUarray array;
    CUresult result = cuArray3DCreate(&array, &shape);
    if (!result)
        EXPECT_OK(cuArrayDestroy(array));
    return result;
}

static void number(uint32_t *cells, uint32_t from)
{
    for (uint32_t i = 0; i < CELLS; i++)
        cells[i] = from + i;
}

/* A copy of the box at (x, y, z) of `count` cells in each direction, between cells[] on the host and an array of SIDE cells a side. */
static CUDA_MEMCPY3D box(uint32_t *cells, CUarray array, size_t x, size_t y, size_t z, size_t count, bool to_array)
{
    CUDA_MEMCPY3D c = {.WidthInBytes = count * 4, .Height = count, .Depth = count};
    if (to_array) {
        c.srcMemoryType = CU_MEMORYTYPE_HOST, c.srcHost = cells, c.srcPitch = SIDE * 4, c.srcHeight = SIDE;
        c.dstMemoryType = CU_MEMORYTYPE_ARRAY, c.dstArray = array, c.dstXInBytes = x * 4, c.dstY = y, c.dstZ = z;
    } else {
        c.dstMemoryType = CU_MEMORYTYPE_HOST, c.dstHost = cells, c.dstPitch = SIDE * 4, c.dstHeight = SIDE;
        c.srcMemoryType = CU_MEMORYTYPE_ARRAY, c.srcArray = array, c.srcXInBytes = x * 4, c.srcY = y, c.srcZ = z;
    }
    return c;
}

CASE(a_row_goes_there_and_back)
{
    uint32_t there[SIDE] = {1, 2, 3, 4, 5}, back[SIDE] = {0};
    CUarray array = array_of(SIDE, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0), other = array_of(SIDE, 0, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0);
    CUdeviceptr memory;
    REQUIRE_OK(cuMemAlloc(&memory, sizeof back));
    EXPECT_OK(cuMemcpyHtoA(array, 0, there, sizeof there));
    EXPECT_OK(cuMemcpyAtoA(other, 4, array, 0, 16));
    EXPECT_OK(cuMemcpyAtoD(memory, other, 4, 16));
    EXPECT_OK(cuMemcpyDtoA(other, 0, memory + 12, 4));
    EXPECT_OK(cuMemcpyAtoH(back, other, 0, sizeof back));
    static const uint32_t expected[SIDE] = {4, 1, 2, 3, 4};
    EXPECT(memcmp(back, expected, sizeof back) == 0);
    EXPECT_EQ(cuMemcpyHtoA(array, 4, there, sizeof there), CUDA_ERROR_INVALID_VALUE);  /* beyond its end */
    EXPECT_EQ(cuMemcpyHtoA(array, 2, there, 4), CUDA_ERROR_INVALID_VALUE);             /* not whole elements */
    EXPECT_EQ(simulated_violations(), 2);
    EXPECT_OK(cuMemFree(memory));
    EXPECT_OK(cuArrayDestroy(array));
    EXPECT_OK(cuArrayDestroy(other));
}

CASE(rows_go_there_and_back)
{
    uint32_t there[SIDE * SIDE], back[4] = {0};
    for (uint32_t i = 0; i < SIDE * SIDE; i++)
        there[i] = i;
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = SIDE, .Height = SIDE, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1}, told = {0};
    CUarray array;
    REQUIRE_OK(cuArrayCreate(&array, &shape));
    EXPECT_OK(cuArrayGetDescriptor(&told, array));
    EXPECT(told.Width == SIDE && told.Height == SIDE && told.Format == CU_AD_FORMAT_UNSIGNED_INT32 && told.NumChannels == 1);
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = there, .srcPitch = SIDE * 4, .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .dstArray = array, .WidthInBytes = SIDE * 4, .Height = SIDE};
    EXPECT_OK(cuMemcpy2D(&in));
    CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = array, .srcXInBytes = 8, .srcY = 3, .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = back, .dstPitch = 8, .WidthInBytes = 8, .Height = 2};
    EXPECT_OK(cuMemcpy2D(&out));
    static const uint32_t expected[4] = {17, 18, 22, 23};
    EXPECT(memcmp(back, expected, sizeof back) == 0);
    out.srcY = 4; /* beyond the last row */
    EXPECT_EQ(cuMemcpy2D(&out), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyAtoH(back, array, 0, 4), CUDA_ERROR_INVALID_VALUE);  /* only arrays of one row have such places */
    EXPECT_OK(cuArrayDestroy(array));
}

CASE(boxes_go_there_and_back_by_way_of_another_array)
{
    static uint32_t there[CELLS], back[CELLS];
    CUarray array = array_of(SIDE, SIDE, SIDE, CU_AD_FORMAT_FLOAT, 1, 0), other = array_of(SIDE, SIDE, SIDE, CU_AD_FORMAT_FLOAT, 1, 0);
    number(there, 100);
    CUDA_MEMCPY3D in = box(there, array, 0, 0, 0, SIDE, true), out = box(back, other, 1, 1, 1, SIDE - 1, false);
    EXPECT_OK(cuMemcpy3D(&in));
    CUDA_MEMCPY3D across = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = array, .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = other,
                            .dstXInBytes = 4, .dstY = 1, .dstZ = 1, .WidthInBytes = (SIDE - 1) * 4, .Height = SIDE - 1, .Depth = SIDE - 1};
    EXPECT_OK(cuMemcpy3DAsync(&across, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_OK(cuMemcpy3D(&out));
    for (uint32_t z = 0; z < SIDE - 1; z++)
        for (uint32_t y = 0; y < SIDE - 1; y++)
            EXPECT(memcmp(back + (z * SIDE + y) * SIDE, there + (z * SIDE + y) * SIDE, (SIDE - 1) * 4) == 0);
    for (int side = 0; side < 3; side++) {
        CUDA_MEMCPY3D beyond = box(back, other, side == 0 ? 2 : 1, side == 1 ? 2 : 1, side == 2 ? 2 : 1, SIDE - 1, false);
        EXPECT_EQ(cuMemcpy3D(&beyond), CUDA_ERROR_INVALID_VALUE);
    }
    EXPECT_EQ(simulated_violations(), 3);
    EXPECT_OK(cuArrayDestroy(array));
    EXPECT_OK(cuArrayDestroy(other));
}

CASE(an_array_takes_memory_of_the_device_until_it_is_destroyed)
{
    size_t before = memory_left();
    struct sim_books books = simulated_books();
    CUarray array = array_of(1024, 1024, 16, CU_AD_FORMAT_FLOAT, 4, 0);
    EXPECT_EQ(before - memory_left(), 256u << 20);
    EXPECT_EQ(refusal_of(4096, 4096, 16, CU_AD_FORMAT_FLOAT, 4, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_OK(cuArrayDestroy(array));
    EXPECT_EQ(memory_left(), before);
    EXPECT_EQ(simulated_books().allocations, books.allocations);
    EXPECT_EQ(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
    CUarray small = array_of(1, 1, 1, CU_AD_FORMAT_HALF, 2, 0);     /* shares a chunk with other small memory */
    EXPECT_EQ(before - memory_left(), SIMULATED_PAGE);
    EXPECT_OK(cuArrayDestroy(small));
    EXPECT_EQ(memory_left(), before);
}

CASE(shapes_and_elements_that_there_are_not_are_refused)
{
    static const struct {
        size_t         width, height, depth;
        CUarray_format format;
        unsigned       channels, flags;
        CUresult       result;
    } rows[] = {
        {0, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0, CUDA_ERROR_INVALID_VALUE},
        {8, 0, 8, CU_AD_FORMAT_FLOAT, 1, 0, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 0, CU_AD_FORMAT_FLOAT, 3, 0, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 0, 0, 1, 0, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 0, CU_AD_FORMAT_UNORM_INT8X2, 4, 0, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 0, CU_AD_FORMAT_UNORM_INT8X2, 2, 0, CUDA_SUCCESS},
        {131072, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, CUDA_SUCCESS},
        {131073, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, CUDA_ERROR_INVALID_VALUE},
        {32769, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_SURFACE_LDST, CUDA_ERROR_INVALID_VALUE},
        {64, 65537, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, CUDA_ERROR_INVALID_VALUE},
        {32769, 8, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_TEXTURE_GATHER, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 16385, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, CUDA_SUCCESS},      /* narrow ones may be deeper */
        {8193, 8, 16385, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, CUDA_ERROR_INVALID_VALUE},
        {8, 0, 2048, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED, CUDA_SUCCESS},
        {8, 0, 2049, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 2049, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_LAYERED, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP, CUDA_SUCCESS},
        {8, 7, 6, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 12, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 12, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED, CUDA_SUCCESS},
        {8, 8, 13, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 8, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_TEXTURE_GATHER, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 0, CU_AD_FORMAT_FLOAT, 1, 1u << 20, CUDA_ERROR_INVALID_VALUE},
        {8, 8, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE, CUDA_ERROR_NOT_SUPPORTED},
    };
    size_t before = memory_left();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        EXPECT_EQ(refusal_of(rows[i].width, rows[i].height, rows[i].depth, rows[i].format, rows[i].channels, rows[i].flags), rows[i].result);
    EXPECT_EQ(memory_left(), before);
}

CASE(a_mipmapped_array_has_an_array_for_each_level)
{
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 16, .Height = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1}, told;
    CUmipmappedArray whole;
    CUarray level[5], none;
    size_t before = memory_left();
    REQUIRE_OK(cuMipmappedArrayCreate(&whole, &shape, 100));        /* as many as there are */
    for (unsigned i = 0; i < 5; i++) {
        REQUIRE_OK(cuMipmappedArrayGetLevel(&level[i], whole, i));
        EXPECT_OK(cuArray3DGetDescriptor(&told, level[i]));
        EXPECT_EQ(told.Width, 16u >> i);
        EXPECT_EQ(told.Height, i < 2 ? 4u >> i : 1u);
        uint32_t value = i + 7;
        CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = &value, .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = level[i],
                            .WidthInBytes = 4, .Height = 1};
        EXPECT_OK(cuMemcpy2D(&in));
    }
    for (unsigned i = 0; i < 5; i++) {
        uint32_t value = 0;
        CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = level[i], .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = &value,
                             .WidthInBytes = 4, .Height = 1};
        EXPECT_OK(cuMemcpy2D(&out));
        EXPECT_EQ(value, i + 7);
    }
    EXPECT_EQ(cuMipmappedArrayGetLevel(&none, whole, 5), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuArrayDestroy(level[1]), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_OK(cuMipmappedArrayDestroy(whole));
    EXPECT_EQ(cuArray3DGetDescriptor(&told, level[0]), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(memory_left(), before);
}

CASE(arrays_and_textures_end_with_their_context)
{
    CUcontext primary;
    CUtexObject texture;
    CUDA_TEXTURE_DESC how = {.maxAnisotropy = 99};
    REQUIRE_OK(cuCtxGetCurrent(&primary));
    size_t before = memory_left();
    CUcontext own = machine_new_context();
    CUarray array = array_of(1024, 1024, 4, CU_AD_FORMAT_FLOAT, 4, 0);
    CUDA_RESOURCE_DESC of = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array};
    REQUIRE_OK(cuTexObjectCreate(&texture, &of, &how, NULL));
    EXPECT_OK(cuTexObjectGetTextureDesc(&how, texture));
    EXPECT_EQ(how.maxAnisotropy, 16);
    EXPECT_OK(cuCtxDestroy(own));
    EXPECT_OK(cuCtxSetCurrent(primary));
    EXPECT_EQ(memory_left(), before);
    EXPECT_EQ(cuTexObjectGetTextureDesc(&how, texture), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
}

CASE(a_graph_copies_from_an_array_and_tells_of_it)
{
    static uint32_t there[CELLS], back[CELLS];
    CUarray array = array_of(SIDE, SIDE, SIDE, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0);
    CUgraph graph;
    CUgraphNode in_node, out_node;
    CUgraphExec exec;
    CUcontext context;
    CUDA_MEMCPY3D in = box(there, array, 1, 2, 3, 2, true), out = box(back, array, 1, 2, 3, 2, false), told;
    number(there, 1000);
    REQUIRE_OK(cuCtxGetCurrent(&context));
    REQUIRE_OK(cuGraphCreate(&graph, 0));
    REQUIRE_OK(cuGraphAddMemcpyNode(&in_node, graph, NULL, 0, &in, context));
    REQUIRE_OK(cuGraphAddMemcpyNode(&out_node, graph, &in_node, 1, &out, context));
    EXPECT_OK(cuGraphMemcpyNodeGetParams(out_node, &told));
    EXPECT(told.srcMemoryType == CU_MEMORYTYPE_ARRAY && told.srcArray == array && told.srcXInBytes == 4 && told.srcY == 2 && told.srcZ == 3);
    EXPECT(told.dstMemoryType == CU_MEMORYTYPE_HOST && told.dstHost == back && told.WidthInBytes == 8 && told.Height == 2 && told.Depth == 2);
    REQUIRE_OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    EXPECT_OK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD));
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT(back[0] == 1000 && back[1] == 1001 && back[SIDE] == 1000 + SIDE && back[SIDE * SIDE + SIDE + 1] == 1000 + SIDE * SIDE + SIDE + 1);
    EXPECT_OK(cuGraphExecDestroy(exec));
    EXPECT_OK(cuGraphDestroy(graph));
    EXPECT_OK(cuArrayDestroy(array));
}

static CUresult texture_of(const CUDA_RESOURCE_DESC *of, const CUDA_TEXTURE_DESC *how)
{
    CUtexObject texture;
    CUresult result = cuTexObjectCreate(&texture, of, how, NULL);
    if (!result)
        EXPECT_OK(cuTexObjectDestroy(texture));
    return result;
}

CASE(textures_are_of_arrays_and_of_memory)
{
    CUdeviceptr memory;
    CUDA_TEXTURE_DESC points = {.flags = CU_TRSF_READ_AS_INTEGER}, means = {.filterMode = CU_TR_FILTER_MODE_LINEAR}, wrong = {.flags = 1u << 30};
    REQUIRE_OK(cuMemAlloc(&memory, 1 << 20));
    CUarray array = array_of(8, 8, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0);
    CUDA_RESOURCE_DESC of_array = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array};
    CUDA_RESOURCE_DESC linear = {.resType = CU_RESOURCE_TYPE_LINEAR,
        .res.linear = {.devPtr = memory, .format = CU_AD_FORMAT_FLOAT, .numChannels = 4, .sizeInBytes = 1 << 20}};
    CUDA_RESOURCE_DESC pitched = {.resType = CU_RESOURCE_TYPE_PITCH2D, .res.pitch2D = {.devPtr = memory, .format = CU_AD_FORMAT_HALF,
        .numChannels = 2, .width = 16, .height = 16, .pitchInBytes = 64}};
    EXPECT_OK(texture_of(&of_array, &points));
    EXPECT_EQ(texture_of(&of_array, &means), CUDA_ERROR_INVALID_VALUE);     /* of whole numbers of 32 bits there is none */
    EXPECT_EQ(texture_of(&of_array, &wrong), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(texture_of(&linear, &points));
    linear.res.linear.devPtr += 256;                                        /* not well begun, and beyond the end */
    EXPECT_EQ(texture_of(&linear, &points), CUDA_ERROR_INVALID_VALUE);
    linear.res.linear.sizeInBytes = 1 << 10;
    EXPECT_EQ(texture_of(&linear, &points), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(texture_of(&pitched, &means));
    pitched.res.pitch2D.pitchInBytes = 32;                                  /* shorter than its rows */
    EXPECT_EQ(texture_of(&pitched, &means), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuArrayDestroy(array));
    EXPECT_EQ(texture_of(&of_array, &points), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuMemFree(memory));
    EXPECT_EQ(cuTexObjectDestroy(12345), CUDA_ERROR_INVALID_VALUE);
}

CASE(a_texture_tells_what_it_was_made_with)
{
    CUarray array = array_of(8, 8, 0, CU_AD_FORMAT_HALF, 4, CUDA_ARRAY3D_SURFACE_LDST), plain = array_of(8, 8, 0, CU_AD_FORMAT_HALF, 4, 0);
    CUDA_RESOURCE_DESC of = {.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array}, told = {0};
    CUDA_RESOURCE_VIEW_DESC view = {.width = 8, .height = 8}, seen = {0};
    CUDA_TEXTURE_DESC how = {.addressMode = {CU_TR_ADDRESS_MODE_MIRROR}, .filterMode = CU_TR_FILTER_MODE_LINEAR};
    CUtexObject viewed, bare;
    CUsurfObject surface;
    REQUIRE_OK(cuTexObjectCreate(&viewed, &of, &how, &view));
    REQUIRE_OK(cuTexObjectCreate(&bare, &of, &how, NULL));
    EXPECT_OK(cuTexObjectGetResourceDesc(&told, viewed));
    EXPECT(told.resType == CU_RESOURCE_TYPE_ARRAY && told.res.array.hArray == array);
    EXPECT_OK(cuTexObjectGetResourceViewDesc(&seen, viewed));
    EXPECT(seen.width == 8 && seen.height == 8);
    EXPECT_EQ(cuTexObjectGetResourceViewDesc(&seen, bare), CUDA_ERROR_INVALID_VALUE);
    REQUIRE_OK(cuSurfObjectCreate(&surface, &of));
    EXPECT_OK(cuSurfObjectGetResourceDesc(&told, surface));
    EXPECT_EQ(cuTexObjectGetResourceDesc(&told, surface), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuSurfObjectDestroy(surface));
    EXPECT_EQ(cuSurfObjectDestroy(surface), CUDA_ERROR_INVALID_VALUE);
    of.res.array.hArray = plain;    /* not made for it */
    EXPECT_EQ(cuSurfObjectCreate(&surface, &of), CUDA_ERROR_INVALID_VALUE);
    EXPECT_OK(cuTexObjectDestroy(viewed));
    EXPECT_OK(cuTexObjectDestroy(bare));
    EXPECT_OK(cuArrayDestroy(array));
    EXPECT_OK(cuArrayDestroy(plain));
}

SUITE_MAIN_AROUND("simulated driver: arrays and textures", simulated_begin, machine_end)
