/* test_error.c: codes have names and texts, and each thread has its own words. */
#include <pthread.h>

#include "base/error.h"
#include "tests/harness.h"

CASE(every_code_has_a_name_and_a_text)
{
#define CENOTE_ERROR(code, name, text) \
    EXPECT_TEXT_EQ(cenote_error_name(CENOTE_##name), "CENOTE_" #name); \
    EXPECT_TEXT_EQ(cenote_error_text(code), text);
#include <cenote/errors.def>
#undef CENOTE_ERROR
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

/* --- sheets: words that are longer than a message */

#define THREADS 20  /* more than there are sheets */

static struct {
    pthread_barrier_t all_wrote;
    char seen[THREADS][64];
    size_t sizes[THREADS];
} crowd;

static void *write_long_words(void *arg)
{
    int number = *(int *)arg;
    char *sheet = error_sheet(CENOTE_OUT_OF_MEMORY, 2, &crowd.sizes[number]);
    snprintf(sheet, crowd.sizes[number], "of thread %d", number);
    pthread_barrier_wait(&crowd.all_wrote);
    snprintf(crowd.seen[number], sizeof crowd.seen[number], "%s", cenote_message());
    return NULL;
}

/* Each thread has its own words, whether or not it got a sheet; those that have ended leave theirs to others. */
CASE(sheets_are_for_one_thread_each)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    for (int round = 0; round < 3; round++) {
        size_t large = 0;
        REQUIRE_EQ(pthread_barrier_init(&crowd.all_wrote, NULL, THREADS), 0);
        for (int i = 0; i < THREADS; i++) {
            numbers[i] = i;
            REQUIRE_EQ(pthread_create(&threads[i], NULL, write_long_words, &numbers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            char expected[64];
            pthread_join(threads[i], NULL);
            snprintf(expected, sizeof expected, "of thread %d", i);
            EXPECT_TEXT_EQ(crowd.seen[i], expected);
            EXPECT(crowd.sizes[i] >= 512);
            large += crowd.sizes[i] >= 4096;
        }
        EXPECT(large >= 10 && large < THREADS);
        pthread_barrier_destroy(&crowd.all_wrote);
    }
}

CASE(the_next_failure_ends_long_words)
{
    size_t size;
    char longer[2000];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    char *sheet = error_sheet(CENOTE_OUT_OF_MEMORY, 2, &size);
    snprintf(sheet, size, "%s", longer);
    EXPECT(!strcmp(cenote_message(), longer));
    EXPECT_EQ(cenote_driver_result(), 2);
    error_set(CENOTE_INVALID, 0, "before: %s", cenote_message()); /* from the words that end */
    EXPECT(!strncmp(cenote_message(), "before: xxx", 11) && strlen(cenote_message()) < 600);
    for (int i = 0; i < 100; i++) { /* a thread takes no second sheet */
        sheet = error_sheet(CENOTE_OUT_OF_MEMORY, 2, &size);
        EXPECT(size >= 4096);
        snprintf(sheet, size, "again");
    }
    EXPECT_TEXT_EQ(cenote_message(), "again");
}

SUITE_MAIN("error")
