/* test_error.c: codes have names and texts, and each thread has its own words. */
#include <pthread.h>

#include "base/error.h"
#include "tests/harness.h"

CASE(every_code_has_a_name_and_a_text)
{
#define ERROR(code, name, text) \
    EXPECT_TEXT_EQ(cenote_error_name(CENOTE_##name), "CENOTE_" #name); \
    EXPECT_TEXT_EQ(cenote_error_text(code), text);
#include <cenote/errors.def>
#undef ERROR
}

CASE(unknown_codes_have_them_too)
{
    static const int unknown[] = {-1, 9999, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        EXPECT_TEXT_EQ(cenote_error_name(unknown[i]), "CENOTE_UNKNOWN");
        EXPECT(strlen(cenote_error_text(unknown[i])) > 0);
    }
}

CASE(error_set_returns_the_code_and_keeps_the_words)
{
    EXPECT_EQ(error_set(CENOTE_NOT_OURS, 0, "the block at %#x is not ours", 0x200), CENOTE_NOT_OURS);
    EXPECT_TEXT_EQ(cenote_message(), "the block at 0x200 is not ours");
}

CASE(words_may_be_built_from_the_words_before)
{
    error_set(CENOTE_INVALID, 0, "inner");
    error_set(CENOTE_INVALID, 0, "outer: %s", cenote_message());
    EXPECT_TEXT_EQ(cenote_message(), "outer: inner");
}

CASE(long_words_end_in_dots)
{
    char longer[2000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    error_set(CENOTE_INVALID, 0, "%s", longer);
    size_t length = strlen(cenote_message());
    EXPECT(length > 400 && length < 600);
    EXPECT_TEXT_EQ(cenote_message() + length - 4, "x...");
}

CASE(only_failures_of_the_driver_change_its_result)
{
    static const int with_result[] = {CENOTE_DRIVER, CENOTE_DEVICE_LOST, CENOTE_OUT_OF_MEMORY};
    for (int i = 0; i < 3; i++) {
        error_set(with_result[i], 700 + i, "driver");
        EXPECT_EQ(cenote_driver_result(), 700 + i);
        error_set(CENOTE_DOUBLE_FREE, 0, "misuse");
        EXPECT_EQ(cenote_driver_result(), 700 + i);
    }
    error_set(CENOTE_OUT_OF_MEMORY, 0, "a limit of the pool, not of the driver");
    EXPECT_EQ(cenote_driver_result(), 0);
}

struct seen {
    char message[128];
    int  result;
};

static void *look_then_fail(void *arg)
{
    struct seen *seen = arg;
    snprintf(seen->message, sizeof(seen->message), "%s", cenote_message());
    seen->result = cenote_driver_result();
    error_set(CENOTE_DRIVER, 2, "of the other thread");
    return NULL;
}

CASE(threads_do_not_see_each_other)
{
    struct seen seen;
    pthread_t thread;
    error_set(CENOTE_DRIVER, 1, "of this thread");
    REQUIRE_EQ(pthread_create(&thread, NULL, look_then_fail, &seen), 0);
    pthread_join(thread, NULL);
    EXPECT_TEXT_EQ(seen.message, "no call of this thread has failed");
    EXPECT_EQ(seen.result, 0);
    EXPECT_TEXT_EQ(cenote_message(), "of this thread");
    EXPECT_EQ(cenote_driver_result(), 1);
}

SUITE_MAIN("error")
