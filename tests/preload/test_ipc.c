/*
 * test_ipc.c: memory of one process in another, by handles of cuIpcGetMemHandle: blocks of cenote, and memory of the driver, beside each other.
 */
#include "tests/preload/card.h"

#include <sys/mman.h>

#define WORDS 0x77aa55ee77aa55eeu

static void card_of_machine(const char *name)
{
    struct sim_shape shape = scene_card(CAPACITY);
    snprintf(shape.machine, sizeof shape.machine, "%s", name);
    scene_open_card(&card, &shape);
}

static const char *machine_name(void)
{
    static char name[64];
    snprintf(name, sizeof name, "preload-ipc-%d", (int)getpid());
    return name;
}

struct message {
    CUipcMemHandle handle;
    size_t bytes;
};

/* The importer: a process of its own that reads a handle, looks, writes one more pattern and ends. */
static void import_and_look(int from, int to, const char *machine)
{
    struct message m;
    CUdeviceptr at = 0, again = 0;
    char done = 1;
    REQUIRE(read(from, &m, sizeof m) == (ssize_t)sizeof m);
    card_of_machine(machine);
    EXPECT_EQ(cuIpcOpenMemHandle(&at, m.handle, 0), CUDA_ERROR_INVALID_VALUE);
    DONE(cuIpcOpenMemHandle(&at, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CUdeviceptr start = 0, start_said = 0;
    size_t size = 0, size_said = 0;
    DONE(cuMemGetAddressRange(&start, &size, at + m.bytes - 1)); /* of the memory that the other process took, not of pages */
    EXPECT_EQ(start, at);
    EXPECT_EQ(size, m.bytes);
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    DONE(cuPointerGetAttributes(2, asked, (void *[]){&start_said, &size_said}, at + 512));
    EXPECT_EQ(start_said, at);
    EXPECT_EQ(size_said, m.bytes);
    DONE(cuPointerGetAttribute(&size_said, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at));
    EXPECT_EQ(size_said, m.bytes);
    DONE(cuPointerGetAttribute(&start_said, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at + 512));
    DONE(cuPointerGetAttribute(&size_said, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at + 512));
    EXPECT(start_said == at && size_said == m.bytes);
    CUmemGenericAllocationHandle page;
    EXPECT_EQ(cuMemRetainAllocationHandle(&page, (void *)(uintptr_t)at), CUDA_ERROR_INVALID_VALUE);
    DONE(sim_launch_expect(card.stream[A], at, WORDS, m.bytes));
    DONE(sim_launch_fill(card.stream[A], at, ~WORDS, m.bytes));
    DONE(cuStreamSynchronize(card.stream[A]));
    EXPECT_EQ(sim_mismatches(), 0);
    DONE(cuIpcOpenMemHandle(&again, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    DONE(cuIpcCloseMemHandle(again));
    DONE(cuIpcCloseMemHandle(at));
    EXPECT(cuIpcCloseMemHandle(at) != CUDA_SUCCESS);
    scene_is_open = false;
    EXPECT(write(to, &done, 1) == 1);
}

/* The importer is forked before this process uses the driver. */
static void share(bool by_driver)
{
    int there[2], back[2];
    char name[64], done = 0;
    snprintf(name, sizeof name, "%s", machine_name());
    REQUIRE(!pipe(there) && !pipe(back));
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        alarm(patience(HANGS));
        sim_set_quiet(true);
        import_and_look(there[0], back[1], name);
        _exit(failures_said());
    }
    if (by_driver)
        setenv("CENOTE_CONF", "provider:plain", 1);
    card_of_machine(name);
    struct message m = {.bytes = 3 * MIB};
    CUdeviceptr at = 0, pair;
    DONE(cuMemAlloc(&pair, 700 * KIB));
    if (by_driver) {
        union {
            void *from;
            CUresult (*to)(CUdeviceptr *, size_t);
        } alloc = {.from = past_the_hooks("cuMemAlloc_v2")};
        DONE(alloc.to(&at, m.bytes));
        EXPECT(!is_ours(at));
    } else {
        DONE(cuMemAlloc(&at, m.bytes));
        EXPECT(is_ours(at));
    }
    DONE(sim_launch_fill(NULL, at, WORDS, m.bytes));
    DONE(cuCtxSynchronize());
    DONE(cuIpcGetMemHandle(&m.handle, by_driver ? at : at + 1000)); /* any address of it names the whole */
    REQUIRE(write(there[1], &m, sizeof m) == (ssize_t)sizeof m);
    REQUIRE(read(back[0], &done, 1) == 1);
    DONE(sim_launch_expect(NULL, at, ~WORDS, m.bytes));
    DONE(cuCtxSynchronize());
    EXPECT_EQ(sim_mismatches(), 0);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && !WEXITSTATUS(status));
    DONE(cuMemFree(at));
    scene_is_open = false;
}

ENDS_WITH(a_block_in_another_process, 0) { share(false); }
ENDS_WITH(memory_of_the_driver_in_another_process, 0) { share(true); }

/* --- in a context of the program's own */

static int primary_is_active(void)
{
    unsigned flags;
    int active = 0;
    DONE(cuDevicePrimaryCtxGetState(0, &flags, &active));
    return active;
}

static void expect_words(CUdeviceptr at, size_t bytes)
{
    DONE(sim_launch_expect(CU_STREAM_PER_THREAD, at, WORDS, bytes));
    DONE(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_EQ(sim_mismatches(), 0);
}

/* It has no primary context, and gets none. What is open ends with its context. */
static void import_in_own_contexts(int from, int to, const char *machine)
{
    struct message m;
    CUcontext own;
    CUdeviceptr at = 0, left = 0;
    char done = 1;
    struct sim_shape shape = scene_card(CAPACITY);
    snprintf(shape.machine, sizeof shape.machine, "%s", machine);
    REQUIRE(read(from, &m, sizeof m) == (ssize_t)sizeof m);
    sim_reset(&shape);
    DONE(cuInit(0));
    for (int round = 0; round < 2; round++) {
        DONE(cuCtxCreate(&own, NULL, 0, 0));
        DONE(cuIpcOpenMemHandle(&at, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        expect_words(at, m.bytes);
        EXPECT(!primary_is_active());
        if (round == 0) {
            DONE(cuIpcCloseMemHandle(at));
            DONE(cuIpcOpenMemHandle(&left, m.handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        } else {
            DONE(cuIpcCloseMemHandle(at));
        }
        DONE(cuCtxDestroy(own));
        EXPECT(!primary_is_active());
        EXPECT(cuIpcCloseMemHandle(round ? at : left) != CUDA_SUCCESS);
    }
    EXPECT(write(to, &done, 1) == 1);
}

ENDS_WITH(a_block_in_a_context_of_the_programs_own, 0)
{
    int there[2], back[2], status = 0;
    char name[64], done = 0;
    snprintf(name, sizeof name, "%s", machine_name());
    REQUIRE(!pipe(there) && !pipe(back));
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        alarm(patience(HANGS));
        sim_set_quiet(true);
        import_in_own_contexts(there[0], back[1], name);
        _exit(failures_said());
    }
    card_of_machine(name);
    struct message m = {.bytes = 3 * MIB};
    CUdeviceptr at = 0;
    DONE(cuMemAlloc(&at, m.bytes));
    DONE(sim_launch_fill(NULL, at, WORDS, m.bytes));
    DONE(cuCtxSynchronize());
    DONE(cuIpcGetMemHandle(&m.handle, at));
    REQUIRE(write(there[1], &m, sizeof m) == (ssize_t)sizeof m);
    REQUIRE(read(back[0], &done, 1) == 1);
    REQUIRE(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && !WEXITSTATUS(status));
    DONE(cuMemFree(at));
    scene_is_open = false;
}

/* --- closed while a stream is captured */

enum { MODES = 3, LAST_CLOSE = 2, CLOSE_AGAIN = 4, ANSWERS = 6 };

/* Opened twice, and closed twice in captures of each mode; and once more, if need be. What is told: each call, and the end of its capture. */
static void close_in_captures(const struct message *m, int answers[MODES][ANSWERS])
{
    static const CUstreamCaptureMode modes[MODES] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                     CU_STREAM_CAPTURE_MODE_RELAXED};
    CUdeviceptr at, again;
    for (int i = 0; i < MODES; i++) {
        int *to = answers[i];
        DONE(cuIpcOpenMemHandle(&at, m->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        DONE(cuIpcOpenMemHandle(&again, m->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        for (int use = 0; use < 2; use++) {
            CUgraph graph = NULL;
            DONE(cuStreamBeginCapture(card.stream[A], modes[i]));
            *to++ = (int)cuIpcCloseMemHandle(at);
            *to++ = (int)cuStreamEndCapture(card.stream[A], &graph);
            if (graph)
                DONE(cuGraphDestroy(graph));
        }
        *to++ = (int)cuIpcCloseMemHandle(at);
        *to = (int)cuIpcCloseMemHandle(at);
    }
}

/* Both processes run with the preload, or without. */
static void answers_of(const char *is_on, int answers[MODES][ANSWERS])
{
    int there[2], back[2], status = 0;
    char name[64], done = 1;
    struct message m = {.bytes = MIB};
    snprintf(name, sizeof name, "%s-%s", machine_name(), is_on);
    REQUIRE(!pipe(there) && !pipe(back));
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        CUdeviceptr at = 0;
        alarm(patience(HANGS));
        setenv("CENOTE_PRELOAD", is_on, 1);
        card_of_machine(name);
        DONE(cuMemAlloc(&at, m.bytes));
        DONE(cuIpcGetMemHandle(&m.handle, at));
        EXPECT(write(there[1], &m, sizeof m) == (ssize_t)sizeof m && read(back[0], &done, 1) == 1);
        _exit(failures_said());
    }
    setenv("CENOTE_PRELOAD", is_on, 1);
    REQUIRE(read(there[0], &m, sizeof m) == (ssize_t)sizeof m);
    card_of_machine(name);
    sim_set_quiet(true);
    close_in_captures(&m, answers);
    EXPECT(write(back[1], &done, 1) == 1);
    REQUIRE(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && !WEXITSTATUS(status));
    scene_is_open = false;
}

static int (*shown)[MODES][ANSWERS]; /* by two children: with the preload, and without */

static void answers_with(void) { answers_of("on", shown[0]); }
static void answers_without(void) { answers_of("off", shown[1]); }

/*
 * As without the preload, but for one thing: in a capture that allows it, the driver takes down at once what was closed as often as it was opened.
 * cenote refuses that close, the capture goes on, and the memory stays open until it is closed once more.
 */
CASE(memory_that_is_closed_in_a_capture)
{
    shown = mmap(NULL, 2 * sizeof *shown, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(shown != MAP_FAILED);
    EXPECT_EQ(status_of(answers_with), 0);
    EXPECT_EQ(status_of(answers_without), 0);
    for (int mode = 0; mode < MODES; mode++)
        for (int i = 0; i < ANSWERS; i++)
            if (mode < 2 || (i != LAST_CLOSE && i != CLOSE_AGAIN))
                EXPECT_EQ(shown[0][mode][i], shown[1][mode][i]);
    EXPECT_EQ(shown[0][2][LAST_CLOSE], CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(shown[0][2][CLOSE_AGAIN], CUDA_SUCCESS);
    EXPECT_EQ(shown[1][2][LAST_CLOSE], CUDA_SUCCESS);
}

/* As without the preload: memory in stream order has no handle, and its attribute says so. */
static void ask_for_handles(const char *is_on)
{
    CUipcMemHandle handle;
    setenv("CENOTE_PRELOAD", is_on, 1);
    card_open(CAPACITY, 1);
    sim_set_quiet(true);
    struct held plain = plain_take(MIB, card.stream[A]), async = stream_take(MIB, card.stream[A]);
    unsigned is_plain = 0, is_async = 1;
    DONE(cuPointerGetAttribute(&is_plain, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at_of(&plain)));
    DONE(cuPointerGetAttribute(&is_async, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at_of(&async)));
    EXPECT(is_plain && !is_async);
    DONE(cuIpcGetMemHandle(&handle, at_of(&plain)));
    EXPECT_EQ(cuIpcGetMemHandle(&handle, at_of(&async)), CUDA_ERROR_INVALID_VALUE);
    scene_is_open = false;
}

ENDS_WITH(handles_under_the_preload, 0) { ask_for_handles("on"); }
ENDS_WITH(handles_without_it, 0) { ask_for_handles("off"); }

/* A process gets its own memory by no handle, and the block stays as it was. */
static void open_own(const char *is_on)
{
    CUipcMemHandle handle;
    CUdeviceptr at = 77;
    setenv("CENOTE_PRELOAD", is_on, 1);
    card_open(CAPACITY, 1);
    sim_set_quiet(true);
    struct held plain = plain_take(MIB, card.stream[A]);
    DONE(cuIpcGetMemHandle(&handle, at_of(&plain)));
    for (int i = 0; i < 2; i++)
        EXPECT_EQ(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(at, 77);
    held_expect(&plain, card.stream[A]);
    DONE(cuMemFree(at_of(&plain)));
    EXPECT(!is_ours(at_of(&plain)));
    EXPECT_EQ(sim_mismatches(), 0);
    scene_is_open = false;
}

ENDS_WITH(an_own_handle_under_the_preload, 0) { open_own("on"); }
ENDS_WITH(an_own_handle_without_it, 0) { open_own("off"); }

ON_CARD(handles_that_are_refused)
{
    CUipcMemHandle handle;
    CUdeviceptr at = 0;
    struct held held = plain_take(MIB, card.stream[A]);
    sim_set_quiet(true);
    memset(&handle, 0x5a, sizeof handle);
    EXPECT(cuIpcOpenMemHandle(&at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
    EXPECT(cuIpcGetMemHandle(NULL, at_of(&held)) != CUDA_SUCCESS);
    EXPECT(cuIpcGetMemHandle(&handle, 4096) != CUDA_SUCCESS);
    EXPECT(cuIpcCloseMemHandle(at_of(&held)) != CUDA_SUCCESS);
    EXPECT(cuIpcCloseMemHandle(0) != CUDA_SUCCESS);
    EXPECT(is_ours(at_of(&held)));
    scene_is_open = false;
    exit(failures_said());
}

PRELOAD_MAIN("ipc")
