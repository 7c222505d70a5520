/* test_tools.c: the smaller libraries: a profiler that gets no records, files read and written, NVSHMEM refused. */
#include <cuda.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "sim/sim.h"
#include "tests/harness.h"

#define OK(call) EXPECT_EQ(call, 0)
#define MUST(call) REQUIRE_EQ(call, 0)

int cuptiGetVersion(uint32_t *version);
int cuptiGetResultString(int result, const char **text);
int cuptiSubscribe(void **made, const void *callback, const void *data);
int cuptiUnsubscribe(void *who);
int cuptiEnableDomain(uint32_t enable, const void *who, unsigned domain);
int cuptiActivityEnable(unsigned kind);
int cuptiActivityFlushAll(uint32_t flags);
int cuptiActivityRegisterCallbacks(const void *request, const void *complete);
int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record);
int cuptiActivityPushExternalCorrelationId(unsigned kind, uint64_t id);
int cuptiActivityPopExternalCorrelationId(unsigned kind, uint64_t *last);

struct error {
    int file, cuda;
};
struct description {
    int kind;
    union {
        int   fd;
        void *handle;
    };
    const void *operations;
};
struct error cuFileHandleRegister(void **made, struct description *what);
void cuFileHandleDeregister(void *file);
struct error cuFileBufRegister(const void *at, size_t bytes, int flags);
struct error cuFileBufDeregister(const void *at);
ssize_t cuFileRead(void *file, void *base, size_t bytes, off_t from, off_t offset);
ssize_t cuFileWrite(void *file, const void *base, size_t bytes, off_t from, off_t offset);

int nvshmemid_init_status(void);
int nvshmemid_hostlib_init_attr(int requested, int *provided, unsigned flags, void *attributes, void *versions, void *callback);
void *nvshmem_malloc(size_t bytes);

static void begin(void)
{
    CUcontext context;
    sim_reset(NULL);
    sim_set_quiet(true);
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
}

static void called(void)
{
    EXPECT(!"a callback was called");
}

CASE(a_profiler_gets_no_records)
{
    void *one = NULL, *two = NULL, *record = NULL;
    uint32_t version = 0;
    uint64_t id = 0;
    const char *text = NULL;
    uint8_t buffer[64] = {0};
    OK(cuptiGetVersion(&version));
    EXPECT_EQ(version, 130001);
    OK(cuptiSubscribe(&one, (const void *)(uintptr_t)called, NULL));
    EXPECT_EQ(cuptiSubscribe(&two, (const void *)(uintptr_t)called, NULL), 39);
    OK(cuptiEnableDomain(1, one, 2));
    EXPECT_EQ(cuptiEnableDomain(1, one, 99), 1);
    OK(cuptiActivityRegisterCallbacks((const void *)(uintptr_t)called, (const void *)(uintptr_t)called));
    OK(cuptiActivityEnable(10));
    MUST(sim_launch_kernel(NULL, "kernel"));
    OK(cuptiActivityFlushAll(1));
    EXPECT_EQ(cuptiActivityGetNextRecord(buffer, sizeof buffer, &record), 12);
    OK(cuptiUnsubscribe(one));
    EXPECT_EQ(cuptiUnsubscribe(one), 1);
    OK(cuptiActivityPushExternalCorrelationId(1, 7));
    OK(cuptiActivityPushExternalCorrelationId(1, 8));
    OK(cuptiActivityPopExternalCorrelationId(1, &id));
    EXPECT_EQ(id, 8);
    OK(cuptiActivityPopExternalCorrelationId(1, NULL));
    EXPECT_EQ(cuptiActivityPopExternalCorrelationId(1, &id), 18);
    EXPECT_EQ(cuptiActivityPushExternalCorrelationId(99, 1), 1);
    for (uint64_t i = 0; i < 1000; i++)
        OK(cuptiActivityPushExternalCorrelationId(2, i));
    for (uint64_t i = 1000; i--;) {
        OK(cuptiActivityPopExternalCorrelationId(2, &id));
        EXPECT_EQ(id, i);
    }
    EXPECT_EQ(cuptiActivityPopExternalCorrelationId(2, &id), 18);
    OK(cuptiGetResultString(39, &text));
    EXPECT_TEXT_EQ(text, "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED");
    EXPECT_EQ(cuptiGetResultString(12345, &text), 1);
}

CASE(files_are_read_and_written)
{
    const size_t bytes = 5 << 20;   /* more than the buffer between */
    char path[] = "/tmp/test-tools-XXXXXX", *here = malloc(bytes), *there = calloc(1, bytes);
    struct description what = {.kind = 1, .fd = mkstemp(path)};
    void *file = NULL;
    CUdeviceptr at;
    REQUIRE(what.fd >= 0);
    unlink(path);
    for (size_t i = 0; i < bytes; i++)
        here[i] = (char)(i * 7 ^ i >> 12);
    MUST(cuMemAlloc(&at, 2 * bytes));
    MUST(cuMemcpyHtoD(at + 100, here, bytes));
    MUST(cuFileHandleRegister(&file, &what).file);
    OK(cuFileBufRegister((void *)at, 2 * bytes, 0).file);
    EXPECT_EQ(cuFileWrite(file, (void *)at, bytes, 10, 100), bytes);
    EXPECT_EQ(cuFileRead(file, (void *)at, bytes + 1000, 10, (off_t)bytes - 1000), bytes);
    MUST(cuMemcpyDtoH(there, at + bytes - 1000, bytes));
    EXPECT_EQ(memcmp(here, there, bytes), 0);
    EXPECT_EQ(cuFileRead(file, (void *)at, bytes, 0, (off_t)bytes + 1), -5012);
    EXPECT_EQ(cuFileRead(file, here, 8, 0, 0), -5012);
    EXPECT_EQ(cuFileRead(NULL, (void *)at, 8, 0, 0), -5022);
    EXPECT_EQ(cuFileBufRegister(here, 8, 0).file, 5012);
    OK(cuFileBufDeregister((void *)at).file);
    cuFileHandleDeregister(file);
    close(what.fd);
    EXPECT_EQ(cuFileHandleRegister(&file, &what).file, 5018);
    free(here);
    free(there);
}

CASE(nvshmem_is_refused)
{
    EXPECT_EQ(nvshmemid_init_status(), 0);
    EXPECT_EQ(nvshmemid_hostlib_init_attr(0, NULL, 0, NULL, NULL, NULL), -1);
    EXPECT_EQ((uintptr_t)nvshmem_malloc(64), 0);
}

SUITE_MAIN_AROUND("tools", begin, NULL)
