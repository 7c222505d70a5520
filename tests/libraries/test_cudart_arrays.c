/* test_cudart_arrays.c: arrays, textures and surfaces of the simulated CUDA runtime. What the driver does with them: tests/sim/test_arrays.c. */
#include <cuda_runtime_api.h>

#include "sim/sim.h"
#include "tests/harness.h"

#define OK(call) EXPECT_EQ(call, cudaSuccess)
#define MUST(call) REQUIRE_EQ(call, cudaSuccess)
#define WIDTH 6
#define HEIGHT 4

cudaError_t cudaMemcpy2DToArray_ptds(cudaArray_t to, size_t x, size_t y, const void *from, size_t pitch, size_t width, size_t height,
                                     enum cudaMemcpyKind kind);
cudaError_t cudaMemcpy2DFromArrayAsync_ptsz(void *to, size_t pitch, cudaArray_const_t from, size_t x, size_t y, size_t width, size_t height,
                                            enum cudaMemcpyKind kind, cudaStream_t stream);

static const struct cudaChannelFormatDesc pair_of_halves = {16, 16, 0, 0, cudaChannelFormatKindFloat};

static uint32_t there[HEIGHT][WIDTH], back[HEIGHT][WIDTH];

static cudaArray_t begin(unsigned flags)
{
    cudaArray_t array = NULL;
    sim_set_quiet(true);
    MUST(cudaDeviceReset());
    for (uint32_t i = 0; i < HEIGHT * WIDTH; i++)
        there[i / WIDTH][i % WIDTH] = i;
    memset(back, 0, sizeof back);
    MUST(cudaMallocArray(&array, &pair_of_halves, WIDTH, HEIGHT, flags));
    return array;
}

CASE(rectangles_go_to_arrays_and_back)
{
    cudaArray_t array = begin(cudaArrayDefault), other;
    MUST(cudaMallocArray(&other, &pair_of_halves, WIDTH, HEIGHT, cudaArrayDefault));
    OK(cudaMemcpy2DToArray(array, 0, 0, there, sizeof there[0], sizeof there[0], HEIGHT, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DArrayToArray(other, 4, 1, array, 0, 0, 8, 3, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy2DFromArray(back, sizeof back[0], other, 4, 1, 8, 3, cudaMemcpyDefault));
    EXPECT(back[0][0] == 0 && back[0][1] == 1 && back[1][0] == WIDTH && back[2][1] == 2 * WIDTH + 1);
    EXPECT_EQ(cudaMemcpy2DFromArray(back, sizeof back[0], other, 4, 2, 8, 3, cudaMemcpyDefault), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpy2DFromArray(back, sizeof back[0], other, 0, 0, 8, 3, cudaMemcpyHostToDevice), cudaErrorInvalidMemcpyDirection);
    OK(cudaMemcpy2DToArray_ptds(array, 4, 0, there, sizeof there[0], 4, 1, cudaMemcpyHostToDevice));
    OK(cudaMemcpy2DFromArrayAsync_ptsz(back, sizeof back[0], array, 4, 0, 4, 1, cudaMemcpyDeviceToHost, NULL));
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    EXPECT_EQ(back[0][0], 0);
    OK(cudaFreeArray(array));
    OK(cudaFreeArray(other));
    OK(cudaFreeArray(NULL));
    EXPECT_EQ(cudaFreeArray(array), cudaErrorInvalidResourceHandle);
}

CASE(boxes_of_arrays_are_told_in_elements)
{
    cudaArray_t array, small = begin(cudaArrayDefault);
    MUST(cudaMalloc3DArray(&array, &pair_of_halves, (struct cudaExtent){WIDTH, HEIGHT, 2}, cudaArrayDefault));
    struct cudaMemcpy3DParms in = {.srcPtr = {there, sizeof there[0], WIDTH, HEIGHT}, .dstArray = array, .dstPos = {1, 1, 1}, .extent = {3, 2, 1},
                                   .kind = cudaMemcpyHostToDevice};
    struct cudaMemcpy3DParms out = {.srcArray = array, .srcPos = {1, 1, 1}, .dstPtr = {back, sizeof back[0], WIDTH, HEIGHT}, .extent = {3, 2, 1},
                                    .kind = cudaMemcpyDeviceToHost};
    struct cudaMemcpy3DParms beyond = out, unlike = {.srcArray = array, .dstArray = small, .extent = {1, 1, 1}, .kind = cudaMemcpyDeviceToDevice};
    OK(cudaMemcpy3D(&in));
    OK(cudaMemcpy3D(&out));
    EXPECT(back[0][2] == 2 && back[1][2] == WIDTH + 2 && back[0][3] == 0);
    beyond.srcPos.x = WIDTH - 2;
    EXPECT_EQ(cudaMemcpy3D(&beyond), cudaErrorInvalidValue);
    OK(cudaMemcpy3D(&unlike));
    OK(cudaFreeArray(small));
    const struct cudaChannelFormatDesc byte = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};
    MUST(cudaMallocArray(&small, &byte, WIDTH, HEIGHT, cudaArrayDefault));
    unlike.dstArray = small;
    EXPECT_EQ(cudaMemcpy3D(&unlike), cudaErrorInvalidValue);   /* of other elements */
    OK(cudaFreeArray(small));
    OK(cudaFreeArray(array));
}

CASE(an_array_tells_what_it_is)
{
    cudaArray_t array = begin(cudaArraySurfaceLoadStore), none;
    struct cudaChannelFormatDesc d, three = cudaCreateChannelDesc(32, 32, 32, 0, cudaChannelFormatKindFloat);
    struct cudaExtent extent;
    unsigned flags;
    OK(cudaArrayGetInfo(&d, &extent, &flags, array));
    EXPECT(memcmp(&d, &pair_of_halves, sizeof d) == 0 && extent.width == WIDTH && extent.height == HEIGHT && !extent.depth);
    EXPECT_EQ(flags, cudaArraySurfaceLoadStore);
    OK(cudaGetChannelDesc(&d, array));
    EXPECT(memcmp(&d, &pair_of_halves, sizeof d) == 0);
    EXPECT_EQ(cudaMallocArray(&none, &three, WIDTH, HEIGHT, 0), cudaErrorInvalidChannelDescriptor);
    EXPECT_EQ(cudaMallocArray(&none, &pair_of_halves, WIDTH, HEIGHT, cudaArrayLayered), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMallocArray(&none, NULL, WIDTH, HEIGHT, 0), cudaErrorInvalidValue);
    const struct cudaChannelFormatDesc normalized = {8, 8, 8, 8, cudaChannelFormatKindUnsignedNormalized8X4};
    OK(cudaFreeArray(array));
    MUST(cudaMallocArray(&array, &normalized, WIDTH, 0, 0));
    OK(cudaGetChannelDesc(&d, array));
    EXPECT(memcmp(&d, &normalized, sizeof d) == 0);
    OK(cudaFreeArray(array));
}

CASE(a_mipmapped_array_has_levels)
{
    cudaMipmappedArray_t whole;
    cudaArray_t level;
    struct cudaExtent extent;
    OK(cudaFreeArray(begin(0)));
    MUST(cudaMallocMipmappedArray(&whole, &pair_of_halves, (struct cudaExtent){8, 8, 0}, 3, 0));
    OK(cudaGetMipmappedArrayLevel(&level, whole, 2));
    OK(cudaArrayGetInfo(NULL, &extent, NULL, level));
    EXPECT(extent.width == 2 && extent.height == 2);
    EXPECT_EQ(cudaGetMipmappedArrayLevel(&level, whole, 3), cudaErrorInvalidValue);
    OK(cudaFreeMipmappedArray(whole));
}

CASE(textures_and_surfaces_tell_what_they_were_made_with)
{
    cudaArray_t array = begin(cudaArraySurfaceLoadStore);
    cudaTextureObject_t texture;
    cudaSurfaceObject_t surface;
    struct cudaResourceDesc of = {.resType = cudaResourceTypeArray, .res.array.array = array}, told;
    struct cudaTextureDesc how = {.addressMode = {cudaAddressModeClamp}, .filterMode = cudaFilterModeLinear, .normalizedCoords = 1,
                                  .readMode = cudaReadModeElementType, .borderColor = {0.5f}, .sRGB = 1}, seen;
    MUST(cudaCreateTextureObject(&texture, &of, &how, NULL));
    OK(cudaGetTextureObjectResourceDesc(&told, texture));
    EXPECT(told.resType == cudaResourceTypeArray && told.res.array.array == array);
    OK(cudaGetTextureObjectTextureDesc(&seen, texture));
    EXPECT(memcmp(&seen, &how, sizeof seen) == 0);
    OK(cudaDestroyTextureObject(texture));
    MUST(cudaCreateSurfaceObject(&surface, &of));
    OK(cudaGetSurfaceObjectResourceDesc(&told, surface));
    EXPECT_EQ(told.res.array.array, array);
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaFreeArray(array));
}

CASE(textures_of_memory_have_its_elements)
{
    void *at;
    size_t pitch;
    cudaTextureObject_t texture;
    struct cudaTextureDesc how = {0};
    OK(cudaFreeArray(begin(0)));
    MUST(cudaMallocPitch(&at, &pitch, 4 * WIDTH, HEIGHT));
    struct cudaResourceDesc pitched = {.resType = cudaResourceTypePitch2D, .res.pitch2D = {at, pair_of_halves, WIDTH, HEIGHT, pitch}}, told;
    struct cudaResourceDesc linear = {.resType = cudaResourceTypeLinear, .res.linear = {at, pair_of_halves, pitch}};
    MUST(cudaCreateTextureObject(&texture, &pitched, &how, NULL));
    OK(cudaGetTextureObjectResourceDesc(&told, texture));
    EXPECT(told.res.pitch2D.devPtr == at && told.res.pitch2D.pitchInBytes == pitch && told.res.pitch2D.desc.y == 16);
    OK(cudaDestroyTextureObject(texture));
    MUST(cudaCreateTextureObject(&texture, &linear, &how, NULL));
    OK(cudaGetTextureObjectResourceDesc(&told, texture));
    EXPECT(told.res.linear.sizeInBytes == pitch && told.res.linear.desc.f == cudaChannelFormatKindFloat);
    OK(cudaDestroyTextureObject(texture));
    linear.res.linear.desc.y = 8;
    EXPECT_EQ(cudaCreateTextureObject(&texture, &linear, &how, NULL), cudaErrorInvalidChannelDescriptor);
    OK(cudaFree(at));
}

CASE(pitched_memory_of_three_sides_is_filled)
{
    struct cudaPitchedPtr p;
    unsigned char byte = 0;
    OK(cudaFreeArray(begin(0)));
    MUST(cudaMalloc3D(&p, (struct cudaExtent){5, 3, 2}));
    EXPECT(p.pitch >= 5 && p.xsize == 5 && p.ysize == 3);
    OK(cudaMemset3D(p, 7, (struct cudaExtent){5, 3, 2}));
    OK(cudaMemcpy(&byte, (char *)p.ptr + (3 + 2) * p.pitch + 4, 1, cudaMemcpyDeviceToHost));
    EXPECT_EQ(byte, 7);
    OK(cudaMemcpy(&byte, (char *)p.ptr + 5, 1, cudaMemcpyDeviceToHost));
    EXPECT_EQ(byte, 0);
    OK(cudaFree(p.ptr));
}

SUITE_MAIN("simulated runtime: arrays and textures")
