#!/usr/bin/env bash
# The log of examples/blocks.c is one of RMM's to `cenote view`: each block that began ended.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$CENOTE_BIN/example-blocks" > "$work/blocks.csv"
test "$(head -1 "$work/blocks.csv")" = Thread,Time,Action,Pointer,Size,Stream
begun=$(grep -c ,allocate, "$work/blocks.csv") ended=$(grep -c ,free, "$work/blocks.csv")
test "$begun" -gt 40 && test "$begun" = "$ended"
test "$(cut -d, -f5 "$work/blocks.csv" | sort -n | tail -1)" = $((23 * 1024 * 1024)) # the cache grew to its last token

said=$("$CENOTE_BIN/cenote" view --at peak --top 3 "$work/blocks.csv")
grep -q "^22.0 MiB.* 8 to 32 MiB$" <<< "$said"
