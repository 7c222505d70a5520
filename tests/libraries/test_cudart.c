/*
 * test_cudart.c: the simulated CUDA runtime, from CUDA's documentation. What compiled device code would register, the cases register by hand.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/sim.h"
#include "tests/harness.h"
#include "tests/patience.h"

#define OK(call) EXPECT_EQ(call, cudaSuccess)
#define MUST(call) REQUIRE_EQ(call, cudaSuccess)

/* As the compiler's code calls them. */
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, void *thread, void *block,
                            void *block_size, void *grid_size, int *warps);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant, int global);
void **__cudaRegisterFatBinary(void *binary);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream);
cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream);

static const char kernel[1], stranger[1];
static char variable[1];
static const dim3 one = {1, 1, 1};

__attribute__((constructor)) static void register_code(void)
{
    void **handle = __cudaRegisterFatBinary(NULL);
    __cudaRegisterFunction(handle, kernel, NULL, "_Z6kernelv", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterVar(handle, variable, NULL, "variable", 0, 64, 0, 0);
}

static uint64_t all_violations(void)
{
    struct sim_books books;
    sim_books(&books);
    return books.violations;
}

static uint64_t violations_before;

static uint64_t violations(void)
{
    return all_violations() - violations_before;
}

/* Two small devices on which nothing is left of the case before. The machine stays the same: the runtime keeps what it has of the driver. */
static void begin(void)
{
    static bool started;
    if (!started) {
        struct sim_shape shape;
        sim_shape_default(&shape);
        shape.capacity = 1u << 30;
        shape.devices = 2;
        shape.manual_clock = true;
        sim_reset(&shape);
        sim_set_quiet(true);
        started = true;
    }
    for (int device = 1; device >= 0; device--) {
        cudaSetDevice(device);
        cudaDeviceReset();
    }
    cudaGetLastError();
    sim_set_lag(0);
    violations_before = all_violations();
}

static bool active(int device)
{
    unsigned flags;
    int is = -1;
    cuDevicePrimaryCtxGetState(device, &flags, &is);
    return is == 1;
}

/* --- devices, contexts, errors */

CASE(asking_for_the_device_makes_no_context)
{
    begin();
    int device = -1, count = 0;
    OK(cudaGetDeviceCount(&count));
    EXPECT_EQ(count, 2);
    OK(cudaGetDevice(&device));
    EXPECT_EQ(device, 0);
    EXPECT(!active(0));
}

CASE(the_first_call_that_needs_it_makes_the_context)
{
    begin();
    OK(cudaFree(NULL));
    EXPECT(active(0));
    EXPECT(!active(1));
    OK(cudaSetDevice(1));
    EXPECT(active(1));
}

CASE(a_device_that_is_not_there_is_refused_and_remembered)
{
    begin();
    EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

CASE(success_does_not_forget_an_earlier_error)
{
    begin();
    void *at;
    EXPECT_EQ(cudaMalloc(&at, 1ull << 40), cudaErrorMemoryAllocation);
    OK(cudaFree(NULL));
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
}

static void *other_thread(void *device)
{
    cudaGetDevice(device);
    return NULL;
}

CASE(each_thread_has_a_device_of_its_own)
{
    begin();
    int device = -1;
    pthread_t thread;
    MUST(cudaSetDevice(1));
    REQUIRE_EQ(pthread_create(&thread, NULL, other_thread, &device), 0);
    pthread_join(thread, NULL);
    EXPECT_EQ(device, 0);
    OK(cudaGetDevice(&device));
    EXPECT_EQ(device, 1);
}

CASE(a_context_made_current_through_the_driver_is_used)
{
    begin();
    CUcontext context;
    void *at;
    REQUIRE_EQ(cuDevicePrimaryCtxRetain(&context, 1), CUDA_SUCCESS);
    REQUIRE_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    MUST(cudaMalloc(&at, 1 << 20));
    EXPECT(!active(0));
    struct cudaPointerAttributes what;
    OK(cudaPointerGetAttributes(&what, at));
    EXPECT_EQ(what.device, 1);
    OK(cudaFree(at));
    cuDevicePrimaryCtxRelease(1);
}

CASE(errors_have_names_and_texts)
{
    EXPECT(strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation") == 0);
    EXPECT(strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
    EXPECT(strcmp(cudaGetErrorString(cudaErrorIllegalAddress), "an illegal memory access was encountered") == 0);
    EXPECT(strcmp(cudaGetErrorString(cudaErrorInvalidSymbol), "invalid device symbol") == 0);
    EXPECT(strcmp(cudaGetErrorString(cudaErrorNoKernelImageForDevice), "no kernel image is available for execution on the device") == 0);
    EXPECT(strstr(cudaGetErrorString((cudaError_t)12345), "unrecognized") != NULL);
}

CASE(properties_are_the_attributes)
{
    begin();
    struct cudaDeviceProp prop;
    int value;
    MUST(cudaGetDeviceProperties(&prop, 1));
    EXPECT_EQ(prop.totalGlobalMem, 1u << 30);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 1));
    EXPECT_EQ(prop.multiProcessorCount, value);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 1));
    EXPECT_EQ(prop.sharedMemPerBlockOptin, (size_t)value);
    EXPECT_EQ(cudaGetDeviceProperties(&prop, 7), cudaErrorInvalidDevice);
}

CASE(driver_functions_are_found_by_name)
{
    begin();
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
    OK(cudaGetDriverEntryPointByVersion("cuMemCreate", &function, 12000, cudaEnableDefault, &found));
    EXPECT(function != NULL);
    EXPECT_EQ(found, cudaDriverEntryPointSuccess);
    OK(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 12000, cudaEnableDefault, &found));
    EXPECT(function == NULL);
    EXPECT_EQ(found, cudaDriverEntryPointSymbolNotFound);
}

CASE(a_lost_context_fails_every_call)
{
    begin();
    void *at;
    MUST(cudaMalloc(&at, 4096));
    sim_lose_context(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaMalloc(&at, 4096), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaLaunchKernel(kernel, one, one, NULL, 0, NULL), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    EXPECT_EQ(cudaStreamQuery(NULL), cudaErrorIllegalAddress);
}

CASE(reset_gives_everything_back)
{
    begin();
    void *at;
    size_t before, left, total;
    MUST(cudaMemGetInfo(&before, &total));
    MUST(cudaMalloc(&at, 64 << 20));
    OK(cudaDeviceReset());
    EXPECT(!active(0));
    OK(cudaMemGetInfo(&left, &total));
    EXPECT_EQ(left, before);
    EXPECT_EQ(violations(), 0);
}

/* --- memory */

CASE(nothing_is_allocated_for_nothing)
{
    begin();
    void *at = variable;
    OK(cudaMalloc(&at, 0));
    EXPECT(at == NULL);
    OK(cudaFree(NULL));
    OK(cudaFreeHost(NULL));
    EXPECT_EQ(cudaMalloc(NULL, 16), cudaErrorInvalidValue);
}

CASE(double_free_and_foreign_pointers_are_refused)
{
    begin();
    void *at;
    MUST(cudaMalloc(&at, 4096));
    OK(cudaFree(at));
    EXPECT_EQ(cudaFree(at), cudaErrorInvalidValue);
    EXPECT_EQ(cudaFree(variable), cudaErrorInvalidValue);
    EXPECT(violations() >= 2);
}

CASE(copies_carry_bytes_in_every_direction)
{
    begin();
    char from[256], to[256] = {0}, third[256] = {0};
    void *here, *there;
    for (int i = 0; i < 256; i++)
        from[i] = (char)i;
    MUST(cudaMalloc(&here, 256));
    MUST(cudaMalloc(&there, 256));
    OK(cudaMemcpy(here, from, 256, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(there, here, 256, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy(to, there, 256, cudaMemcpyDefault));
    EXPECT(memcmp(from, to, 256) == 0);
    OK(cudaMemcpy(third, to, 256, cudaMemcpyHostToHost));
    EXPECT(memcmp(from, third, 256) == 0);
    EXPECT_EQ(cudaMemcpy(to, there, 256, (enum cudaMemcpyKind)9), cudaErrorInvalidMemcpyDirection);
    OK(cudaMemset(here, 7, 256));
    OK(cudaMemcpyAsync(to, here, 256, cudaMemcpyDeviceToHost, NULL));
    OK(cudaStreamSynchronize(NULL));
    EXPECT_EQ(to[255], 7);
    EXPECT_EQ(violations(), 0);
}

/* The runtime promises that pageable memory has been read when the call returns. */
CASE(pageable_memory_is_read_before_the_copy_returns)
{
    begin();
    sim_set_lag(1000000);
    int value = 1, back = 0;
    void *at;
    MUST(cudaMalloc(&at, sizeof value));
    OK(cudaMemcpyAsync(at, &value, sizeof value, cudaMemcpyHostToDevice, NULL));
    value = 2;
    OK(cudaMemcpy(&back, at, sizeof back, cudaMemcpyDeviceToHost));
    EXPECT_EQ(back, 1);
}

CASE(rows_are_copied_by_pitch)
{
    begin();
    char from[64], to[64] = {0};
    void *at;
    memset(from, 3, sizeof from);
    MUST(cudaMalloc(&at, 64));
    OK(cudaMemset(at, 0, 64));
    OK(cudaMemcpy2DAsync(at, 16, from, 8, 4, 4, cudaMemcpyHostToDevice, NULL));
    OK(cudaMemcpy(to, at, 64, cudaMemcpyDeviceToHost));
    EXPECT_EQ(to[0], 3);
    EXPECT_EQ(to[3], 3);
    EXPECT_EQ(to[4], 0);
    EXPECT_EQ(to[16], 3);
    EXPECT_EQ(to[63], 0);
}

CASE(pointers_say_what_they_are)
{
    begin();
    struct cudaPointerAttributes what;
    void *at, *pinned;
    MUST(cudaMalloc(&at, 4096));
    MUST(cudaMallocHost(&pinned, 4096));
    OK(cudaPointerGetAttributes(&what, (char *)at + 100));
    EXPECT_EQ(what.type, cudaMemoryTypeDevice);
    EXPECT_EQ(what.device, 0);
    OK(cudaPointerGetAttributes(&what, pinned));
    EXPECT_EQ(what.type, cudaMemoryTypeHost);
    EXPECT(what.hostPointer == pinned);
    OK(cudaPointerGetAttributes(&what, variable));
    EXPECT_EQ(what.type, cudaMemoryTypeUnregistered);
    OK(cudaFreeHost(pinned));
    EXPECT_EQ(violations(), 0);
}

CASE(stream_ordered_memory_comes_and_goes)
{
    begin();
    void *at;
    cudaStream_t stream;
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMallocAsync(&at, 1 << 20, stream));
    OK(cudaMemsetAsync(at, 1, 1 << 20, stream));
    OK(cudaFreeAsync(at, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    EXPECT_EQ(violations(), 0);
}

CASE(peers_are_enabled_once)
{
    begin();
    int can = 0;
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    EXPECT_EQ(can, 1);
    EXPECT(!active(1));
    OK(cudaDeviceEnablePeerAccess(1, 0));
    EXPECT(active(1));
    EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    OK(cudaDeviceDisablePeerAccess(1));
    EXPECT_EQ(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
}

CASE(variables_of_device_code_have_memory)
{
    begin();
    char in[64], out[64] = {0};
    size_t size;
    memset(in, 5, sizeof in);
    OK(cudaGetSymbolSize(&size, variable));
    EXPECT_EQ(size, 64);
    OK(cudaMemcpyToSymbol(variable, in, 60, 4, cudaMemcpyHostToDevice));
    OK(cudaMemcpyFromSymbol(out, variable, 60, 4, cudaMemcpyDeviceToHost));
    EXPECT(memcmp(in, out, 60) == 0);
    OK(cudaDeviceReset());
    OK(cudaMemcpyToSymbol(variable, in, 60, 4, cudaMemcpyHostToDevice));
    EXPECT_EQ(violations(), 0);
    EXPECT_EQ(cudaMemcpyToSymbol(variable, in, 61, 4, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyToSymbol(stranger, in, 1, 0, cudaMemcpyHostToDevice), cudaErrorInvalidSymbol);
}

/* --- order */

CASE(time_passes_between_events)
{
    begin();
    cudaEvent_t start, end;
    cudaStream_t stream;
    float ms = 0;
    MUST(cudaStreamCreate(&stream));
    MUST(cudaEventCreate(&start));
    MUST(cudaEventCreate(&end));
    OK(cudaEventRecord(start, stream));
    REQUIRE_EQ(sim_launch_wait(stream, 3000000), CUDA_SUCCESS);
    OK(cudaEventRecord(end, stream));
    EXPECT_EQ(cudaEventQuery(end), cudaErrorNotReady);
    EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, start, end));
    EXPECT(ms > 2.9f && ms < 3.1f);
}

CASE(the_per_thread_stream_is_another)
{
    begin();
    cudaEvent_t event;
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    REQUIRE_EQ(sim_launch_wait(cudaStreamPerThread, 1000000), CUDA_SUCCESS);
    OK(cudaEventRecord_ptsz(event, NULL));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    sim_advance(1000001);
    OK(cudaEventQuery(event));
}

static void count_call(void *count)
{
    ++*(int *)count;
}

CASE(host_functions_run_in_order)
{
    begin();
    int calls = 0;
    MUST(cudaFree(NULL));
    REQUIRE_EQ(sim_launch_wait(NULL, 1000), CUDA_SUCCESS);
    OK(cudaLaunchHostFunc(NULL, count_call, &calls));
    EXPECT_EQ(calls, 0);
    OK(cudaDeviceSynchronize());
    EXPECT_EQ(calls, 1);
}

CASE(captured_kernels_become_nodes)
{
    begin();
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    size_t nodes = 0;
    MUST(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 3; i++)
        OK(cudaLaunchKernel(kernel, one, one, NULL, 0, stream));
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    EXPECT_EQ(nodes, 3);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    EXPECT_EQ(violations(), 0);
}

CASE(a_capture_does_not_survive_a_synchronise)
{
    begin();
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    void *at;
    MUST(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(cudaMalloc(&at, 4096), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT(graph == NULL);
}

/* --- kernels */

CASE(only_registered_kernels_are_launched)
{
    begin();
    cudaKernel_t handle = NULL;
    const char *name = NULL;
    cudaFunction_t code = NULL;
    OK(cudaLaunchKernel(kernel, one, one, NULL, 0, NULL));
    EXPECT_EQ(cudaLaunchKernel(stranger, one, one, NULL, 0, NULL), cudaErrorInvalidDeviceFunction);
    EXPECT_EQ(cudaLaunchKernel(NULL, one, one, NULL, 0, NULL), cudaErrorInvalidDeviceFunction);
    OK(__cudaGetKernel(&handle, kernel));
    OK(__cudaLaunchKernel(handle, one, one, NULL, 0, NULL));
    EXPECT_EQ(__cudaGetKernel(&handle, stranger), cudaErrorInvalidDeviceFunction);
    OK(cudaFuncGetName(&name, kernel));
    EXPECT(name && strcmp(name, "_Z6kernelv") == 0);
    OK(cudaGetFuncBySymbol(&code, kernel));
    OK(cuLaunchKernel(code, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)); /* the driver's own handle */
    EXPECT_EQ(cudaGetFuncBySymbol(&code, stranger), cudaErrorInvalidDeviceFunction);
    EXPECT_EQ(cudaGetFuncBySymbol(NULL, kernel), cudaErrorInvalidValue);
}

CASE(launches_that_cannot_be_are_refused)
{
    begin();
    EXPECT_EQ(cudaLaunchKernel(kernel, one, (dim3){1025, 1, 1}, NULL, 0, NULL), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaLaunchKernel(kernel, one, (dim3){32, 32, 2}, NULL, 0, NULL), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaLaunchKernel(kernel, one, (dim3){1, 1, 65}, NULL, 0, NULL), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaLaunchKernel(kernel, (dim3){0, 1, 1}, one, NULL, 0, NULL), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaLaunchKernel(kernel, (dim3){1, 65536, 1}, one, NULL, 0, NULL), cudaErrorInvalidConfiguration);
    EXPECT_EQ(cudaLaunchKernel(kernel, one, one, NULL, 100 << 10, NULL), cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
    OK(cudaLaunchKernel(kernel, one, one, NULL, 100 << 10, NULL));
    EXPECT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20), cudaErrorInvalidValue);
    EXPECT_EQ(cudaLaunchCooperativeKernel(kernel, (dim3){200000, 1, 1}, (dim3){1024, 1, 1}, NULL, 0, NULL), cudaErrorCooperativeLaunchTooLarge);
    EXPECT_EQ(cudaLaunchKernel(kernel, one, one, NULL, 0, (cudaStream_t)variable), cudaErrorInvalidResourceHandle);
}

CASE(launch_configurations_are_a_stack)
{
    dim3 grid, block;
    size_t shared;
    void *stream;
    EXPECT_EQ(__cudaPushCallConfiguration((dim3){2, 1, 1}, one, 16, NULL), 0);
    EXPECT_EQ(__cudaPushCallConfiguration((dim3){3, 1, 1}, one, 32, cudaStreamPerThread), 0);
    OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
    EXPECT_EQ(grid.x, 3);
    EXPECT(stream == cudaStreamPerThread);
    OK(__cudaPopCallConfiguration(&grid, &block, &shared, &stream));
    EXPECT_EQ(grid.x, 2);
    EXPECT_EQ(shared, 16);
    EXPECT_EQ(__cudaPopCallConfiguration(&grid, &block, &shared, &stream), cudaErrorMissingConfiguration);
    cudaGetLastError();
}

/* Threads come in warps, so 97 of them cost as many as 128. */
CASE(occupancy_follows_threads_and_shared_memory)
{
    begin();
    static const struct {
        int    threads;
        size_t shared;
        int    blocks;
    } known[] = {{1024, 0, 2}, {32, 0, 32}, {97, 0, 16}, {128, 0, 16}, {128, 100 << 10, 2}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        int blocks = 0;
        OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, known[i].threads, known[i].shared));
        EXPECT_EQ(blocks, known[i].blocks);
    }
    struct cudaFuncAttributes what;
    OK(cudaFuncGetAttributes(&what, kernel));
    EXPECT_EQ(what.maxThreadsPerBlock, 1024);
    EXPECT_EQ(cudaFuncGetAttributes(&what, stranger), cudaErrorInvalidDeviceFunction);
}

CASE(kernels_of_libraries_loaded_at_run_time_are_launched)
{
    begin();
    cudaLibrary_t library;
    cudaKernel_t loaded;
    MUST(cudaLibraryLoadData(&library, "any image", NULL, NULL, 0, NULL, NULL, 0));
    MUST(cudaLibraryGetKernel(&loaded, library, "_Z6loadedv"));
    OK(cudaLaunchKernel(loaded, one, one, NULL, 0, NULL));
    OK(cudaLibraryUnload(library));
    EXPECT_EQ(violations(), 0);
}

/* A child may register code while threads of its parent launch: it must not wait for one of theirs. */
static _Atomic bool stop;

static void *keep_launching(void *nothing)
{
    while (!stop)
        cudaLaunchKernel(kernel, one, one, NULL, 0, NULL);
    return nothing;
}

CASE(forked_children_register_code)
{
    FORKS_BESIDE_THREADS();
    begin();
    pthread_t threads[2];
    int failed = 0;
    stop = false;
    for (int i = 0; i < 2; i++)
        REQUIRE_EQ(pthread_create(&threads[i], NULL, keep_launching, NULL), 0);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (!child) {
            alarm(patience(10));
            __cudaRegisterFunction(__cudaRegisterFatBinary(NULL), stranger + 0, NULL, "_Z5childv", -1, NULL, NULL, NULL, NULL, NULL);
            _exit(0);
        }
        int status = 1;
        waitpid(child, &status, 0);
        failed += status != 0;
    }
    stop = true;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    EXPECT_EQ(failed, 0);
}

SUITE_MAIN("cudart")
