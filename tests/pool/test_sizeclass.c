/* test_sizeclass.c: every byte count that a slab serves, walked. */
#include "pool/core/sizeclass.h"

#include "tests/harness.h"

CASE(each_class_is_larger_than_the_one_before)
{
    for (uint32_t class = 0; class + 1 < CLASS_COUNT; class++) {
        EXPECT(class_bytes(class) < class_bytes(class + 1));
        EXPECT_EQ(class_bytes(class) % 512, 0);
    }
    EXPECT_EQ(class_bytes(0), 512);
    EXPECT_EQ(class_bytes(CLASS_COUNT - 1), CLASS_BYTES_MAX);
}

CASE(each_byte_count_gets_the_smallest_class_that_holds_it)
{
    uint32_t wrong = 0;
    for (uint32_t bytes = 1; bytes <= CLASS_BYTES_MAX; bytes++) {
        uint32_t class = class_of(bytes);
        wrong += class >= CLASS_COUNT || class_bytes(class) < bytes || (class && class_bytes(class - 1) >= bytes);
    }
    EXPECT_EQ(wrong, 0);
}

/* Of what is left after rounding up to 512, which every block pays. */
CASE(at_most_a_fifth_is_slack)
{
    uint32_t wrong = 0;
    for (uint32_t bytes = 512; bytes <= CLASS_BYTES_MAX; bytes += 512) {
        uint32_t slack = class_bytes(class_of(bytes)) - bytes;
        wrong += slack * 5 > class_bytes(class_of(bytes));
    }
    EXPECT_EQ(wrong, 0);
}

CASE(up_to_4_kib_nothing_is_slack)
{
    for (uint32_t bytes = 512; bytes <= 4096; bytes += 512)
        EXPECT_EQ(class_bytes(class_of(bytes)), bytes);
}

CASE(above_there_are_four_to_a_doubling)
{
    for (uint32_t low = 4096; low < CLASS_BYTES_MAX; low *= 2) {
        EXPECT_EQ(class_of(2 * low) - class_of(low), 4);
        for (uint32_t quarter = 1; quarter <= 4; quarter++)
            EXPECT_EQ(class_bytes(class_of(low) + quarter), low + quarter * low / 4);
    }
}

SUITE_MAIN("sizeclass")
