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

/* Says by its exit which rules are broken. */
static void ask_for_rules(void *setting)
{
    if (setting)
        setenv("CENOTE_BREAK", setting, 1);
    else
        unsetenv("CENOTE_BREAK");
    _exit(BREAKS(3) | BREAKS(4) << 1 | BREAKS(5) << 2);
}

CASE(a_rule_is_broken_on_purpose_in_debug_builds_only)
{
    EXPECT_EQ(child_run(ask_for_rules, NULL).status, 0);
    EXPECT_EQ(child_run(ask_for_rules, "no number").status, 0);
    EXPECT_EQ(child_run(ask_for_rules, "3").status, CENOTE_DEBUG >= 1 ? 1 : 0);
    EXPECT_EQ(child_run(ask_for_rules, "4").status, CENOTE_DEBUG >= 1 ? 2 : 0);
    EXPECT_EQ(child_run(ask_for_rules, "5").status, CENOTE_DEBUG >= 1 ? 4 : 0);
}

SUITE_MAIN("check")
