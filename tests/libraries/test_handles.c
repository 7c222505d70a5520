/*
 * test_handles.c: what was destroyed is no handle any more, whichever free() it was given to. Prototypes are written out here.
 *
 * This program has a free() of its own, which can be told to leave memory as it was; glibc's writes over its start.
 */
#include <dlfcn.h>

#include "tests/libraries/device.h"

int cublasCreate_v2(void **handle);
int cublasDestroy_v2(void *handle);
int cusparseCreate(void **handle);
int cusparseDestroy(void *handle);
int cusparseCreateDnVec(void **made, int64_t size, void *values, int type);
int cusparseDestroyDnVec(void *made);
int cublasLtMatmulPreferenceCreate(void **made);
int cublasLtMatmulPreferenceDestroy(void *made);
int nvrtcCreateProgram(void **made, const char *source, const char *name, int count, const char *const *texts, const char *const *names);
int nvrtcDestroyProgram(void **program);
int ncclCommInitAll(void **made, int ranks, const int *devices);
int ncclCommDestroy(void *comm);

#ifndef __has_feature
#define __has_feature(name) 0
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)

static void (*real_free)(void *);
static bool kept;

__attribute__((constructor)) static void find_free(void)
{
    real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

void free(void *at)
{
    if (real_free && !kept)
        real_free(at);
}

/* The first destroy succeeds, the second does not. */
static void destroy_twice(void *object, int (*destroy)(void *), const char *name)
{
    kept = true;
    int first = destroy(object), second = destroy(object);
    kept = false;
    EXPECT_EQ(first, 0);
    EXPECT(second != 0);
    if (!second)
        fprintf(stderr, "%s took the same twice\n", name);
}

#define TWICE(object, destroy) destroy_twice(object, destroy, #destroy)

CASE(a_second_destroy_is_refused)
{
    void *made = NULL;
    begin();
    MUST(cublasCreate_v2(&made));
    TWICE(made, cublasDestroy_v2);
    MUST(cusparseCreate(&made));
    TWICE(made, cusparseDestroy);
    MUST(cusparseCreateDnVec(&made, 10, NULL, 0));
    TWICE(made, cusparseDestroyDnVec);
    MUST(cublasLtMatmulPreferenceCreate(&made));
    TWICE(made, cublasLtMatmulPreferenceDestroy);
    MUST(ncclCommInitAll(&made, 1, NULL));
    TWICE(made, ncclCommDestroy);
}

CASE(a_second_destroy_of_a_program_is_refused)
{
    void *program = NULL;
    begin();
    MUST(nvrtcCreateProgram(&program, "source", "x", 0, NULL, NULL));
    void *copy = program;
    kept = true;
    int first = nvrtcDestroyProgram(&program), second = nvrtcDestroyProgram(&copy);
    kept = false;
    EXPECT_EQ(first, 0);
    EXPECT_EQ(second, 4);
}

#else

CASE(a_sanitizer_has_a_free_of_its_own)
{
    EXPECT(true);
}

#endif

SUITE_MAIN("handles")
