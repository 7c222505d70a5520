/* test_quantity.c: numbers as people write them, and what is none. */
#include "stats/text/quantity.h"
#include "tests/harness.h"

#define UNTOUCHED 0x5555555555555555ull

static uint64_t bytes_of(const char *text)
{
    uint64_t bytes = UNTOUCHED;
    EXPECT(quantity_read_bytes(text, &bytes));
    return bytes;
}

CASE(bytes_have_units)
{
    EXPECT_EQ(bytes_of("0"), 0);
    EXPECT_EQ(bytes_of("512"), 512);
    EXPECT_EQ(bytes_of("512B"), 512);
    EXPECT_EQ(bytes_of("1KiB"), 1024);
    EXPECT_EQ(bytes_of("2 mib"), 2097152);
    EXPECT_EQ(bytes_of(" 20GiB "), 20ull << 30);
    EXPECT_EQ(bytes_of("1TiB"), 1ull << 40);
    EXPECT_EQ(bytes_of("1kB"), 1000);
    EXPECT_EQ(bytes_of("1MB"), 1000000);
    EXPECT_EQ(bytes_of("20GB"), 20000000000ull);
    EXPECT_EQ(bytes_of("1.5TB"), 1500000000000ull);
    EXPECT_EQ(bytes_of("0.3GB"), 300000000);
    EXPECT_EQ(bytes_of(".5KiB"), 512);
    EXPECT_EQ(bytes_of("0.000000000000000000000000001TiB"), 0);
    EXPECT_EQ(bytes_of("9223372036854775807"), INT64_MAX);
}

CASE(what_is_no_number_of_bytes)
{
    static const char *const wrong[] = {
        "", " ", ".", "-1", "+1", "1e9", "0x10", "inf", "nan", "1 2", "1,5", "GiB", "1XiB", "1GiBs", "1 G iB", "1..5", "1.5.5",
        "9223372036854775808", "18446744073709551616", "99999999999999999999999999", "8388608TiB", "20GiB;", "1%",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        uint64_t bytes = UNTOUCHED;
        EXPECT(!quantity_read_bytes(wrong[i], &bytes));
        EXPECT_EQ(bytes, UNTOUCHED);
    }
}

CASE(counts_are_digits)
{
    uint64_t count = UNTOUCHED;
    EXPECT(quantity_read_count(" 12 ", &count));
    EXPECT_EQ(count, 12);
    EXPECT(quantity_read_count("18446744073709551615", &count));
    EXPECT_EQ(count, UINT64_MAX);
    static const char *const wrong[] = {"", "-1", "1.0", "1.", "12a", "1 2", "18446744073709551616", "0x1"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        EXPECT(!quantity_read_count(wrong[i], &count));
    EXPECT_EQ(count, UINT64_MAX);
}

static bool is_share(const char *text, double expected)
{
    double share = -7;
    return quantity_read_share(text, &share) && share > expected - 1e-15 && share < expected + 1e-15;
}

CASE(shares_are_parts_or_percent)
{
    EXPECT(is_share("0.01", 0.01));
    EXPECT(is_share("1%", 0.01));
    EXPECT(is_share(" 1 % ", 0.01));
    EXPECT(is_share("80%", 0.8));
    EXPECT(is_share("0", 0));
    EXPECT(is_share("250%", 2.5)); /* its caller knows what is too much */
    static const char *const wrong[] = {"", "%", "-1%", "-0.1", "nan", "inf", "1%%", "1 % 2", "0,1", "1e-2", "off"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        double share = -7;
        EXPECT(!quantity_read_share(wrong[i], &share));
        EXPECT(share == -7);
    }
}

CASE(bytes_are_written_short)
{
    static const struct {
        uint64_t    bytes;
        const char *text;
    } written[] = {
        {0, "0 B"}, {512, "512 B"}, {1023, "1023 B"}, {1024, "1.00 KiB"}, {1536, "1.50 KiB"}, {10240, "10.0 KiB"}, {104857600, "100 MiB"},
        {1048575, "1.00 MiB"}, {20ull << 30, "20.0 GiB"}, {UINT64_MAX, "16.0 EiB"},
    };
    for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++) {
        char text[QUANTITY_TEXT];
        EXPECT_TEXT_EQ(quantity_write_bytes(text, written[i].bytes), written[i].text);
    }
}

SUITE_MAIN("quantity")
