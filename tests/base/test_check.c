/* test_check.c: does a failing check say where, and end the program? */
#include "base/check.h"

#include <signal.h>

#include "tests/base/child.h"

static void fail_at_line_1203(void *unused)
{
    (void)unused;
    check_failed("pages < most", "pool/example.c", 1203);
}

CASE(check_failed_names_the_place_and_aborts)
{
    struct child_end end = child_run(fail_at_line_1203, NULL);
    EXPECT_EQ(end.signal, SIGABRT);
    EXPECT(strstr(end.words, "cenote: pool/example.c:1203: check failed: pages < most\n") != NULL);
}

static void check_arithmetic(void *number)
{
    CHECK(*(int *)number == 4);
}

CASE(checks_are_in_debug_builds_only)
{
    int four = 4;
    int five = 5;
    EXPECT_EQ(child_run(check_arithmetic, &four).signal, 0);
    EXPECT_EQ(child_run(check_arithmetic, &five).signal, CENOTE_DEBUG >= 1 ? SIGABRT : 0);
}

SUITE_MAIN("check")
