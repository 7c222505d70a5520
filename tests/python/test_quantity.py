"""Sizes and counts as users write them."""
import pytest

from cenote.base import quantity

GIB = 1 << 30


@pytest.mark.parametrize("text, size", [
    ("80GiB", 80 * GIB), ("80gib", 80 * GIB), ("80g", 80 * GIB), ("80G", 80 * GIB), ("80GB", 80 * 10**9), ("80gb", 80 * 10**9),
    ("24576MiB", 24 * GIB), ("24576m", 24 * GIB),
    ("1TiB", 1024 * GIB), ("1.5GiB", 3 * GIB // 2), ("0.1GB", 10**8), ("8589934592", 8 * GIB),
    ("8589934592B", 8 * GIB), ("1k", 1024), ("0", 0), ("007MB", 7 * 10**6),
])
def test_reads_what_people_write(text, size):
    assert quantity.read_size(text) == size


@pytest.mark.parametrize("text", [
    "", " ", "GiB", "80 GiB", " 80GiB", "80GiB ", "80GiB\n", "-1GiB", "+1GiB",
    "1e9", "0x10", "nan", "inf", "80XiB", "80GiBs", "1.GiB", ".5GiB", "1,5GiB",
    "1.5.5GiB", "80GiB,devices:4", "٨٠GiB", "80ＧiB", "８０GiB", "9" * 21, "1_000", "80Gi", "80gIb\0",
])
def test_refuses_everything_else(text):
    with pytest.raises(ValueError):
        quantity.read_size(text)


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "1e3", "٤", "1 ", "one", "9" * 21])
def test_a_count_is_digits(text):
    with pytest.raises(ValueError):
        quantity.read_count(text)


@pytest.mark.parametrize("size", [0, 1, 1023, 1 << 20, 80 * GIB, 80 * 10**9, (1 << 40) + 1, 1 << 40])
def test_what_is_written_reads_the_same(size):
    assert quantity.read_size(quantity.write_size(size)) == size


@pytest.mark.parametrize("seconds, text", [(0.4, "0 s"), (99.4, "99 s"), (100, "2 min"), (3600, "60 min")])
def test_durations(seconds, text):
    assert quantity.duration(seconds) == text
