/*
 * test_cudart_memory.c: copies of boxes, pitched memory, and the pools of a place, by the simulated CUDA runtime. What the driver does with them:
 * tests/sim.
 */
#include <cuda_runtime_api.h>

#include "sim/sim.h"
#include "tests/harness.h"

#define OK(call) EXPECT_EQ(call, cudaSuccess)
#define MUST(call) REQUIRE_EQ(call, cudaSuccess)

cudaError_t cudaMemcpy3D_ptds(const struct cudaMemcpy3DParms *p);
cudaError_t cudaMemcpy3DAsync_ptsz(const struct cudaMemcpy3DParms *p, cudaStream_t stream);

static char from[3 * 3 * 8];
static void *at;

/* Two layers of two rows of four bytes, from the middle of a box of the host's to the beginning of one of the device's. */
static struct cudaMemcpy3DParms begin(void)
{
    for (int i = 0; i < (int)sizeof from; i++)
        from[i] = (char)i;
    MUST(cudaDeviceReset());
    MUST(cudaMalloc(&at, 64));
    OK(cudaMemset(at, 99, 64));
    return (struct cudaMemcpy3DParms){.srcPtr = {from, 8, 8, 3}, .srcPos = {2, 1, 1}, .dstPtr = {at, 16, 16, 2}, .extent = {4, 2, 2},
                                      .kind = cudaMemcpyHostToDevice};
}

static void expect_copied(void)
{
    char to[64] = {0};
    OK(cudaMemcpy(to, at, sizeof to, cudaMemcpyDeviceToHost));
    EXPECT_EQ(to[0], 34); /* layer 1 of 24, row 1 of 8, byte 2 */
    EXPECT_EQ(to[16 + 3], 45);
    EXPECT_EQ(to[32 + 16], 66);
    EXPECT_EQ(to[4], 99);
    OK(cudaMemset(at, 99, 64));
}

CASE(boxes_are_copied_by_pitch_and_height)
{
    struct cudaMemcpy3DParms box = begin();
    OK(cudaMemcpy3D(&box));
    expect_copied();
    OK(cudaMemcpy3DAsync(&box, NULL));
    expect_copied();
    OK(cudaMemcpy3D_ptds(&box));
    expect_copied();
    OK(cudaMemcpy3DAsync_ptsz(&box, NULL));
    OK(cudaStreamSynchronize(cudaStreamPerThread));
    expect_copied();
    box.kind = cudaMemcpyDefault;
    OK(cudaMemcpy3D(&box));
    expect_copied();
    OK(cudaFree(at));
}

CASE(a_box_that_is_none_is_refused)
{
    struct cudaMemcpy3DParms box = begin(), low = box, without = box, both = box, array = box, wrong = box;
    low.dstPtr.ysize = 1; /* two rows in a layer of one */
    without.dstPtr.ptr = NULL;
    both.srcArray = (cudaArray_t)from;
    array.srcArray = (cudaArray_t)from;
    array.srcPtr.ptr = NULL;
    wrong.kind = (enum cudaMemcpyKind)17;
    sim_set_quiet(true);
    EXPECT_EQ(cudaMemcpy3D(&low), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpy3D(&without), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpy3D(&both), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpy3D(&array), cudaErrorInvalidResourceHandle); /* that is no array */
    EXPECT_EQ(cudaMemcpy3D(&wrong), cudaErrorInvalidMemcpyDirection);
    EXPECT_EQ(cudaMemcpy3DAsync(NULL, NULL), cudaErrorInvalidValue);
    sim_set_quiet(false);
    OK(cudaFree(at));
}

CASE(pitched_memory_of_three_sides_is_filled)
{
    struct cudaPitchedPtr p;
    unsigned char byte = 0;
    begin();
    OK(cudaFree(at));
    MUST(cudaMalloc3D(&p, (struct cudaExtent){5, 3, 2}));
    EXPECT(p.pitch >= 5 && p.xsize == 5 && p.ysize == 3);
    OK(cudaMemset3D(p, 7, (struct cudaExtent){5, 3, 2}));
    OK(cudaMemcpy(&byte, (char *)p.ptr + (3 + 2) * p.pitch + 4, 1, cudaMemcpyDeviceToHost));
    EXPECT_EQ(byte, 7);
    OK(cudaMemcpy(&byte, (char *)p.ptr + 5, 1, cudaMemcpyDeviceToHost));
    EXPECT_EQ(byte, 0);
    OK(cudaFree(p.ptr));
}

/* The driver has none; to free none is no mistake. */
CASE(arrays_textures_and_surfaces_are_refused)
{
    cudaArray_t array;
    cudaTextureObject_t texture;
    cudaSurfaceObject_t surface;
    struct cudaResourceDesc of = {.resType = cudaResourceTypeLinear};
    struct cudaTextureDesc how = {.readMode = cudaReadModeElementType};
    struct cudaChannelFormatDesc floats = cudaCreateChannelDesc(32, 0, 0, 0, cudaChannelFormatKindFloat);
    EXPECT(floats.x == 32 && floats.f == cudaChannelFormatKindFloat);
    EXPECT_EQ(cudaMallocArray(&array, &floats, 16, 16, 0), cudaErrorNotSupported);
    EXPECT_EQ(cudaMalloc3DArray(&array, &floats, (struct cudaExtent){4, 4, 4}, 0), cudaErrorNotSupported);
    EXPECT_EQ(cudaCreateTextureObject(&texture, &of, &how, NULL), cudaErrorNotSupported);
    EXPECT_EQ(cudaCreateSurfaceObject(&surface, &of), cudaErrorNotSupported);
    OK(cudaFreeArray(NULL));
    OK(cudaDestroyTextureObject(0));
    OK(cudaDestroySurfaceObject(0));
}

CASE(a_place_has_the_pools_of_its_device)
{
    cudaMemPool_t standard, said, own;
    struct cudaMemLocation here = {.type = cudaMemLocationTypeDevice}, host = {.type = cudaMemLocationTypeHost};
    struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned, .location = here};
    begin();
    MUST(cudaMemPoolCreate(&own, &properties));
    OK(cudaDeviceGetDefaultMemPool(&standard, 0));
    OK(cudaMemSetMemPool(&here, cudaMemAllocationTypePinned, own));
    OK(cudaMemGetMemPool(&said, &here, cudaMemAllocationTypePinned));
    EXPECT_EQ(said, own);
    OK(cudaMemGetDefaultMemPool(&said, &here, cudaMemAllocationTypePinned));
    EXPECT_EQ(said, standard);
    OK(cudaMemGetDefaultMemPool(&said, &host, cudaMemAllocationTypePinned));
    EXPECT(said != standard);
    OK(cudaMemPoolDestroy(own));
    OK(cudaMemGetMemPool(&said, &here, cudaMemAllocationTypePinned));
    EXPECT_EQ(said, standard);
    OK(cudaFree(at));
}

SUITE_MAIN("cudart_memory")
