/*
 * test_resolve.c: entry points are found in drivers of every age, and the half-answers that drivers give are not taken for functions.
 *
 * The library is made up: `given` says what it exports and how it answers. Its functions are addresses that are never called.
 */
#include "driver/resolve.h"

#include "tests/harness.h"

static struct {
    bool        has_v2, has_v1;      /* cuGetProcAddress_v2, cuGetProcAddress */
    int         version;             /* knows entry points up to that one */
    const char *null_success;        /* found, says the driver, and gives NULL */
    const char *wrong_status;        /* gives an address, and a status that takes it back */
    const char *hidden;              /* not exported, not known */
    unsigned    asked_v2, asked_v1, asked_symbol;
    unsigned    wrong_flags;
} given;

static char functions[DRIVER_CALLS]; /* the address of the n-th stands for the n-th function */

static bool is(const char *a, const char *b)
{
    return a && b && !strcmp(a, b);
}

/* Forms of one call differ by a suffix, which a driver does not know. */
static bool is_a_form_of(const char *name, const char *form)
{
    size_t length = strlen(name);
    return !strncmp(name, form, length) && (!form[length] || !strncmp(form + length, "_v", 2));
}

static CUresult answer(const char *name, void **function, int version, cuuint64_t flags, int *status)
{
    given.wrong_flags += flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    *status = CU_GET_PROC_ADDRESS_SUCCESS;
    if (version > given.version)
        return CUDA_ERROR_INVALID_VALUE;
    if (is(name, given.hidden))
        return CUDA_ERROR_NOT_FOUND;
    if (is(name, given.null_success)) {
        *function = NULL;
        return CUDA_SUCCESS;
    }
    for (int call = 0; call < DRIVER_CALLS; call++)
        if (is_a_form_of(name, driver_call_name((enum driver_call)call)) && driver_call_version((enum driver_call)call) == version)
            *function = &functions[call];
    if (is(name, given.wrong_status))
        *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    return CUDA_SUCCESS;
}

static CUresult ask_v2(const char *name, void **function, int version, cuuint64_t flags, int *status)
{
    given.asked_v2++;
    return answer(name, function, version, flags, status);
}

static CUresult ask_v1(const char *name, void **function, int version, cuuint64_t flags)
{
    int unused;
    given.asked_v1++;
    return answer(name, function, version, flags, &unused);
}

/* What libcuda of CUDA 11.0 exported for the rows that have a suffix, and some that have none. */
static const struct {
    const char      *symbol;
    enum driver_call call;
} exported[] = {
    {"cuInit", CALL_cuInit},
    {"cuMemAlloc_v2", CALL_cuMemAlloc},
    {"cuMemFree_v2", CALL_cuMemFree},
    {"cuMemGetInfo_v2", CALL_cuMemGetInfo},
    {"cuDeviceTotalMem_v2", CALL_cuDeviceTotalMem},
    {"cuDevicePrimaryCtxRelease_v2", CALL_cuDevicePrimaryCtxRelease},
    {"cuCtxPushCurrent_v2", CALL_cuCtxPushCurrent},
    {"cuCtxPopCurrent_v2", CALL_cuCtxPopCurrent},
    {"cuEventDestroy_v2", CALL_cuEventDestroy},
    {"cuEventRecord", CALL_cuEventRecord},
};

#define EXPORTED (sizeof(exported) / sizeof(exported[0]))

static void *symbol(void *library, const char *name)
{
    EXPECT(library == &given);
    CUresult (*v2)(const char *, void **, int, cuuint64_t, int *) = ask_v2;
    CUresult (*v1)(const char *, void **, int, cuuint64_t) = ask_v1;
    void *function = NULL;
    if (is(name, "cuGetProcAddress_v2") || is(name, "cuGetProcAddress")) {
        bool newer = is(name, "cuGetProcAddress_v2");
        if (newer ? given.has_v2 : given.has_v1)
            memcpy(&function, newer ? (void *)&v2 : (void *)&v1, sizeof(function));
        return function;
    }
    given.asked_symbol++;
    for (size_t i = 0; i < EXPORTED; i++)
        if (is(name, exported[i].symbol) && !is(name, given.hidden))
            return &functions[exported[i].call];
    return NULL;
}

static struct driver found;

/* What the table holds for an entry point: they are all pointers, in the order of driver.def. */
static void *slot(enum driver_call call)
{
    void *function;
    memcpy(&function, (char *)&found + (size_t)call * sizeof(function), sizeof(function));
    return function;
}

static enum driver_call resolve(void)
{
    memset(&found, 0xff, sizeof(found));
    return driver_resolve(&found, symbol, &given);
}

static void begin(void)
{
    memset(&given, 0, sizeof(given));
    given.has_v2 = given.has_v1 = true;
    given.version = 13000;
}

CASE(a_new_driver_is_asked_the_new_way)
{
    EXPECT_EQ(resolve(), DRIVER_CALLS);
    for (int call = 0; call < DRIVER_CALLS; call++)
        EXPECT(slot((enum driver_call)call) == &functions[call]);
    EXPECT_EQ(given.asked_v2, DRIVER_CALLS);
    EXPECT_EQ(given.asked_v1 + given.asked_symbol, 0);
    EXPECT_EQ(given.wrong_flags, 0);
}

CASE(a_driver_of_cuda_11_3_is_asked_the_old_way)
{
    given.has_v2 = false;
    given.version = 11030;
    EXPECT_EQ(resolve(), DRIVER_CALLS);
    EXPECT(slot(CALL_cuMemMap) == &functions[CALL_cuMemMap]);
    EXPECT(slot(CALL_cuStreamGetId) == NULL); /* 12.0, optional */
    EXPECT(slot(CALL_cuCtxRecordEvent) == NULL);
    EXPECT_EQ(given.asked_v1, DRIVER_CALLS);
    EXPECT_EQ(given.asked_v2 + given.asked_symbol, 0);
}

CASE(an_older_driver_is_searched_for_versioned_symbols)
{
    given.has_v2 = given.has_v1 = false;
    EXPECT_EQ(resolve(), CALL_cuDriverGetVersion); /* the first required one that is not exported above */
    for (size_t i = 0; i < EXPORTED; i++)
        EXPECT(slot(exported[i].call) == &functions[exported[i].call]);
    EXPECT_EQ(given.asked_symbol, DRIVER_CALLS);
}

CASE(a_required_call_that_is_missing_is_named)
{
    given.hidden = "cuEventQuery";
    EXPECT_EQ(resolve(), CALL_cuEventQuery);
    EXPECT(slot(CALL_cuEventQuery) == NULL);
    EXPECT(slot(CALL_cuMemMap) != NULL); /* those behind it are found all the same */
}

CASE(an_optional_call_may_be_missing)
{
    given.hidden = "cuMemMap";
    EXPECT_EQ(resolve(), DRIVER_CALLS);
    EXPECT(slot(CALL_cuMemMap) == NULL);
}

CASE(success_without_a_function_is_none)
{
    given.null_success = "cuMemFree";
    EXPECT_EQ(resolve(), CALL_cuMemFree);
    given.has_v2 = false;
    EXPECT_EQ(resolve(), CALL_cuMemFree);
}

CASE(a_function_with_a_bad_status_is_none)
{
    given.wrong_status = "cuMemFree";
    EXPECT_EQ(resolve(), CALL_cuMemFree);
    EXPECT(slot(CALL_cuMemFree) == NULL);
}

CASE(a_driver_older_than_what_is_required)
{
    given.version = 10000;
    EXPECT_EQ(resolve(), CALL_cuDevicePrimaryCtxRelease); /* 11.0 changed it */
    EXPECT_EQ(driver_call_version(CALL_cuDevicePrimaryCtxRelease), 11000);
}

SUITE_MAIN_AROUND("driver resolve", begin, NULL)
