/*
 * harness.h: how a test of cenote is written: CUnit, less its ceremony.
 *
 *     #include "tests/harness.h"
 *
 *     CASE(take_returns_what_was_given)
 *     {
 *         REQUIRE(table_open(&t, 8, 100));
 *         EXPECT_EQ(table_take(&t), 1);
 *     }
 *
 *     SUITE_MAIN("memory")
 *
 * One program per tests/<folder>/test_<name>.c; a case registers itself, in the order of the file, so no list is kept by hand. The other .c
 * files of the folder are helpers linked into all its programs: they may use EXPECT and REQUIRE, and define no cases.
 * `program WORD` runs only the cases whose names contain WORD. A case that checked nothing has failed.
 *
 * Tests in C++ (test_<name>.cpp) do not use REQUIRE: a longjmp calls no destructor.
 *
 * This is not a second framework: counting, summary and leaving a case are CUnit's. No locks: check from the main thread only.
 */
#ifndef CENOTE_TESTS_HARNESS_H
#define CENOTE_TESTS_HARNESS_H

#include <CUnit/Basic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES_MAX 512 /* in one program; registering more aborts at start */

struct test_case {
    const char *name;
    void (*run)(void);
};

struct test_cases {
    struct test_case list[CASES_MAX];
    unsigned         count;
};

static inline struct test_cases *test_cases(void)
{
    static struct test_cases cases;
    return &cases;
}

static inline void test_case_add(const char *name, void (*run)(void))
{
    struct test_cases *cases = test_cases();
    if (cases->count == CASES_MAX) {
        fprintf(stderr, "harness: more than %d cases in one program\n", CASES_MAX);
        _Exit(2);
    }
    cases->list[cases->count++] = (struct test_case){name, run};
}

#define CASE(name)                                                                                  \
    static void case_##name(void);                                                                  \
    static void case_checked_##name(void)                                                           \
    {                                                                                               \
        unsigned before = CU_get_number_of_asserts();                                               \
        case_##name();                                                                              \
        if (CU_get_number_of_asserts() == before)                                                   \
            CU_assertImplementation(CU_FALSE, __LINE__, "the case checked nothing", __FILE__, "", CU_FALSE); \
    }                                                                                               \
    __attribute__((constructor)) static void case_add_##name(void)                                  \
    {                                                                                               \
        test_case_add(#name, case_checked_##name);                                                  \
    }                                                                                               \
    static void case_##name(void)

/*
 * A case begins with it if it forks while other threads may allocate, and the child allocates. A sanitizer's allocator leaves its locks in the child
 * as they were: a lock that another thread held stays held, and the thread does not exist there. The C library's allocator mends its locks.
 */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FORKS_BESIDE_THREADS()                                                                      \
    do {                                                                                            \
        EXPECT(true);                                                                               \
        fprintf(stderr, "(forks beside threads: not tried under a sanitizer) ");                    \
        return;                                                                                     \
    } while (0)
#else
#define FORKS_BESIDE_THREADS() ((void)0)
#endif

/* EXPECT counts a failure and goes on; REQUIRE leaves the case (by longjmp: what it holds stays held). */
#define EXPECT(x) ((void)CU_assertImplementation(!!(x), __LINE__, #x, __FILE__, "", CU_FALSE))
#define REQUIRE(x) ((void)CU_assertImplementation(!!(x), __LINE__, #x, __FILE__, "", CU_TRUE))

/* Integers, booleans, enums and pointers; a failure prints both values. Compare floating point with EXPECT. */
#define EXPECT_EQ(a, b) HARNESS_EQ(a, b, CU_FALSE)
#define REQUIRE_EQ(a, b) HARNESS_EQ(a, b, CU_TRUE)

/* Two strings, by content; NULL is equal to NULL alone. */
#define EXPECT_TEXT_EQ(a, b) test_text_equal((a), (b), #a " == " #b, __FILE__, __LINE__)

#ifdef __cplusplus /* tests of the C++ headers: a template has no macro's trouble with types, so nothing looks at them */
#define HARNESS_IS_FLOAT(x) 0
#define _Static_assert static_assert
#else
#define HARNESS_IS_FLOAT(x) _Generic((x), float: 1, double: 1, default: 0)
#endif
#define HARNESS_EQ(a, b, fatal)                                                                                \
    do {                                                                                                       \
        _Static_assert(!HARNESS_IS_FLOAT(a) && !HARNESS_IS_FLOAT(b), "compare floating point with EXPECT");    \
        test_equal((uint64_t)(a), (uint64_t)(b), #a " == " #b, __FILE__, __LINE__, fatal);                     \
    } while (0)

/* A value as a person wants to see it: signed while small, hexadecimal beside what looks like an address or a size. */
static inline const char *test_value(uint64_t value, char text[64])
{
    int64_t as_signed = (int64_t)value;
    if (as_signed > -4096 && as_signed < 4096)
        snprintf(text, 64, "%lld", (long long)as_signed);
    else
        snprintf(text, 64, "%llu = 0x%llx", (unsigned long long)value, (unsigned long long)value);
    return text;
}

static inline void test_equal(uint64_t a, uint64_t b, const char *words, const char *file, int line, CU_BOOL fatal)
{
    char text[512], left[64], right[64];
    if (a == b)
        snprintf(text, sizeof(text), "%s", words);
    else
        snprintf(text, sizeof(text), "%s: %s != %s", words, test_value(a, left), test_value(b, right));
    CU_assertImplementation(a == b, (unsigned)line, text, file, "", fatal);
}

static inline void test_text_equal(const char *a, const char *b, const char *words, const char *file, int line)
{
    char text[1024];
    bool equal = a && b ? strcmp(a, b) == 0 : a == b;
    if (equal)
        snprintf(text, sizeof(text), "%s", words);
    else
        snprintf(text, sizeof(text), "%s: \"%s\" != \"%s\"", words, a ? a : "(NULL)", b ? b : "(NULL)");
    CU_assertImplementation(equal, (unsigned)line, text, file, "", CU_FALSE);
}

/* Runs the cases whose names contain `word`; `before` and `after` stand around each case and may be NULL. Returns main's result. */
static inline int test_run(const char *suite_name, const char *word, void (*before)(void), void (*after)(void))
{
    setvbuf(stdout, NULL, _IONBF, 0); /* a case that crashes, or forks, has printed its name once */
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 2;

    CU_pSuite suite = CU_add_suite_with_setup_and_teardown(suite_name, NULL, NULL, before, after);
    unsigned chosen = 0;
    for (unsigned i = 0; suite && i < test_cases()->count; i++) {
        const struct test_case *c = &test_cases()->list[i];
        if (strstr(c->name, word))
            chosen += CU_add_test(suite, c->name, c->run) != NULL;
    }
    if (!chosen) {
        fprintf(stderr, "%s: no case has a name with \"%s\" in it\n", suite_name, word);
        CU_cleanup_registry();
        return 2;
    }

    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_ErrorCode error = CU_basic_run_tests();
    bool passed = error == CUE_SUCCESS && CU_get_number_of_failures() == 0 && CU_get_number_of_tests_run() == chosen;
    CU_cleanup_registry();
    return passed ? 0 : 1;
}

#define SUITE_MAIN(name) SUITE_MAIN_AROUND(name, NULL, NULL)

/* The same, with a function before each case and one after it, also after one that REQUIRE left. */
#define SUITE_MAIN_AROUND(name, before, after)                                                     \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return test_run((name), argc > 1 ? argv[1] : "", (before), (after));                       \
    }

#endif
