#!/bin/bash
# A program that was never edited is recorded by CENOTE_TRACE alone, and its trace can be replayed: one file for each pool.
set -eu
test -x "$CENOTE_BIN/cenote-replay" || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

expect_trace() {
    "$CENOTE_BIN/cenote-replay" "$1" > "$work/said" || { cat "$work/said"; exit 1; }
}

CENOTE_TRACE="$work/trace.csv.gz" "$CENOTE_BIN/example-growing" > /dev/null
expect_trace "$work/trace.csv.gz"
zcat "$work/trace.csv.gz" | grep -q ',a,'
count() { zcat "$work/trace.csv.gz" | grep -c ",$1,"; }
test "$(count a)" -eq "$(count f)" || { echo "the example frees what it takes"; exit 1; }

# Another option of the same pool, and the name of the process.
CENOTE_CONF=record:3 CENOTE_TRACE="$work/%p.csv" "$CENOTE_BIN/example-growing" > /dev/null
test "$(ls "$work"/[0-9]*.csv | wc -l)" -eq 1
expect_trace "$work"/[0-9]*.csv
test "$(tail -n +2 "$work"/[0-9]*.csv | grep -vc '^0\.000,a')" -le 3

# A folder that is not there is said, and the program ends as it would.
said=$(CENOTE_TRACE="$work/none/trace.csv" "$CENOTE_BIN/example-growing" 2>&1 > /dev/null)
case "$said" in *"cenote: no trace was written: $work/none/trace.csv: No such file or directory"*) ;; *) echo "it said: $said"; exit 1 ;; esac
test -z "$(ls "$work" | grep part || true)"

# Names without a folder or an ending; the second pool's has its number before the endings, or at its end.
pools=$CENOTE_BUILD/tests/test-api-pools
(cd "$work" && CENOTE_TRACE=bare "$pools" two_pools_on_one_card > /dev/null)
test -s "$work/bare" && test -s "$work/bare.2"
CENOTE_TRACE="$work/a%b.csv.gz" "$pools" two_pools_on_one_card > /dev/null
expect_trace "$work/a%b.csv.gz"
expect_trace "$work/a%b.2.csv.gz"

# A pool that is open to the end is written then.
CENOTE_TRACE="$work/default.csv" "$pools" the_default_pool > /dev/null
test "$(grep -c ',a,' "$work/default.csv")" -eq 1

# What can be no file is said, and an empty name asks for nothing.
said=$(CENOTE_TRACE="$work/" "$CENOTE_BIN/example-growing" 2>&1 > /dev/null)
case "$said" in *"cenote: no trace was written: $work/"*) ;; *) echo "it said: $said"; exit 1 ;; esac
said=$(CENOTE_TRACE=$(printf '%5000s' '') "$CENOTE_BIN/example-growing" 2>&1 > /dev/null)
case "$said" in *"CENOTE_TRACE is too long"*) ;; *) echo "it said: $said"; exit 1 ;; esac
test -z "$(CENOTE_TRACE= "$CENOTE_BIN/example-growing" 2>&1 > /dev/null)"
