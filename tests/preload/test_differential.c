/*
 * test_differential.c: the same random program of calls of the driver twice, each in a process of its own: with the preload, and with
 * CENOTE_PRELOAD=off. The two have to be answered alike, call by call. What is left out of that, and why, is listed below.
 *
 * Addresses are told by their distance from the block's start, handles by what they should be. Nothing that hangs on a moment is asked.
 *
 * LOCKING: none.
 */
#include "tests/preload/card.h"

#include "tests/rounds.h"

#define SLOTS 12
#define STEPS 1500

/*
 * Answers that differ, and are not compared:
 *   sizes                          the simulated driver says them in steps of 512 bytes, cenote as they were asked for: all are such steps here
 *   how much memory is left        the driver takes 2 MiB at a time for what is small, cenote also for its pool
 *   buffer ids                     two counts of their own; test_questions.c compares blocks
 *   GPU_DIRECT_RDMA_CAPABLE        the simulated driver says it of pages alone
 *   reserved memory of pools       they are two pools
 */
static const CUpointer_attribute asked[] = {
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_MAPPED,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
};

static const CUpointer_attribute starts[] = {
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
};

static struct slot {
    CUdeviceptr at;
    size_t      size;
} slots[SLOTS];
static FILE *told;
static CUmemoryPool pool;
static uint64_t random_state;

static uint64_t draw(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return random_state >> 33;
}

static void tell(const char *call, CUresult result, uint64_t value)
{
    fprintf(told, "%s %d %llu\n", call, (int)result, (unsigned long long)value);
}

static void take(struct slot *s, CUstream stream)
{
    size_t pitch = 0, kib = 1 + draw() % 6000, width = 1 + draw() % 3000;
    CUresult result;
    if (s->at)
        return;
    switch (draw() % 3) {
    case 0:
        s->size = kib * 1024 - draw() % 2 * 512;
        tell("cuMemAlloc", result = cuMemAlloc(&s->at, s->size), 0);
        break;
    case 1:
        tell("cuMemAllocPitch", result = cuMemAllocPitch(&s->at, &pitch, width, 40, 4), pitch);
        s->size = pitch * 40;
        break;
    default:
        s->size = kib * 1024;
        tell("cuMemAllocAsync", result = cuMemAllocAsync(&s->at, s->size, stream), 0);
    }
    if (result)
        s->at = 0;
}

/* Also an address inside it, and one that was freed. */
static void give(struct slot *s, CUstream stream)
{
    bool by_stream = draw() % 2;
    CUdeviceptr at = s->at + (draw() % 8 ? 0 : 512);
    if (!s->at)
        return;
    CUresult result = by_stream ? cuMemFreeAsync(at, stream) : cuMemFree(at);
    tell(by_stream ? "cuMemFreeAsync" : "cuMemFree", result, at - s->at);
    if (!result) {
        tell("cuMemFree again", cuMemFree(s->at), 0);
        s->at = 0;
    }
}

static void ask(const struct slot *s)
{
    uint64_t value;
    CUdeviceptr start = 0, at = s->at + draw() % s->size;
    size_t size = 0;
    CUresult result = cuMemGetAddressRange(&start, &size, at);
    tell("cuMemGetAddressRange", result, result ? 0 : s->at - start + size);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        value = 0;
        result = cuPointerGetAttribute(&value, asked[i], at);
        tell("an attribute", result, value);
    }
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        value = 0;
        result = cuPointerGetAttribute(&value, starts[i], at);
        tell("an address", result, value - s->at);
    }
    value = 0;
    result = cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_CONTEXT, at);
    tell("the context", result, value == (uintptr_t)card.context);
    value = 0;
    result = cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at);
    tell("the pool", result, value == (uintptr_t)pool);
}

static void share_it(const struct slot *s)
{
    CUipcMemHandle handle;
    CUdeviceptr opened;
    CUresult result = cuIpcGetMemHandle(&handle, s->at);
    tell("cuIpcGetMemHandle", result, 0);
    if (!result)
        tell("cuIpcOpenMemHandle", cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), 0);
    tell("cuIpcCloseMemHandle", cuIpcCloseMemHandle(s->at), 0);
}

static void change_pages(const struct slot *s)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr page = s->at / (2 * MIB) * (2 * MIB);
    tell("cuMemUnmap", cuMemUnmap(page < s->at ? s->at : page, 2 * MIB), 0);
    tell("cuMemRetainAllocationHandle", cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)s->at), 0);
}

/* What is written there is read there. */
static void write_it(const struct slot *s, CUstream stream)
{
    unsigned char read = 0, byte = (unsigned char)draw();
    size_t offset = draw() % s->size;
    tell("cuMemsetD8Async", cuMemsetD8Async(s->at, byte, s->size, stream), 0);
    CUresult result = cuCtxSynchronize();
    if (!result)
        result = cuMemcpyDtoH(&read, s->at + offset, 1);
    tell("cuMemcpyDtoH", result, result ? 0 : read);
}

static void capture(bool *is_open)
{
    CUgraph graph = NULL;
    if (*is_open)
        tell("cuStreamEndCapture", cuStreamEndCapture(card.stream[A], &graph), graph != NULL);
    else
        tell("cuStreamBeginCapture", cuStreamBeginCapture(card.stream[A], (CUstreamCaptureMode)(draw() % 3)), 0);
    if (graph)
        cuGraphDestroy(graph);
    *is_open = !*is_open;
}

static void run_program(uint64_t seed)
{
    bool is_open = false;
    cuuint64_t used;
    random_state = seed;
    DONE(cuDeviceGetDefaultMemPool(&pool, 0));
    for (int step = 0; step < STEPS; step++) {
        struct slot *s = &slots[draw() % SLOTS];
        uint64_t what = draw() % 24;
        CUstream stream = is_open || draw() % 2 ? card.stream[B] : card.stream[A];
        if (what < 8)
            take(s, stream);
        else if (what == 8)
            capture(&is_open);
        else if (what == 9)
            tell("used memory of the pool", cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used), 0);
        else if (what < 16)
            give(s, stream);
        else if (s->at)
            what < 19 ? ask(s) : what < 21 ? write_it(s, stream) : what == 21 ? share_it(s) : change_pages(s);
    }
    tell("the end", CUDA_SUCCESS, seed);
}

static void run_to(const char *is_on, uint64_t seed, int to)
{
    alarm(patience(HANGS));
    setenv("CENOTE_PRELOAD", is_on, 1);
    card_open(2048 * MIB, 1);
    sim_set_quiet(true);
    told = fdopen(to, "w");
    REQUIRE(told);
    run_program(seed);
    fclose(told);
    _exit(failures_said());
}

static FILE *answers(const char *is_on, uint64_t seed)
{
    FILE *file = tmpfile();
    int status = -1;
    REQUIRE(file);
    fflush(NULL);
    pid_t child = fork();
    if (!child)
        run_to(is_on, seed, fileno(file));
    REQUIRE(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    rewind(file);
    return file;
}

static void compare(uint64_t seed)
{
    FILE *with = answers("on", seed), *without = answers("off", seed);
    char ours[100] = "", theirs[100] = "";
    int line = 0;
    do {
        line++;
        ours[0] = theirs[0] = 0;
        bool more = fgets(ours, sizeof ours, with), driver_has_more = fgets(theirs, sizeof theirs, without);
        EXPECT_EQ(more, driver_has_more);
        EXPECT_TEXT_EQ(ours, theirs);
        if (strcmp(ours, theirs))
            printf("seed %llu, answer %d\n", (unsigned long long)seed, line);
    } while (ours[0] && !strcmp(ours, theirs));
    EXPECT(line > STEPS / 2);
    fclose(with);
    fclose(without);
}

CASE(the_same_program_has_the_same_answers)
{
    for (int i = 0; i < rounds(20); i++)
        compare((uint64_t)i + 1);
}

PRELOAD_MAIN("differential")
