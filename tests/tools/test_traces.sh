#!/bin/bash
# The traces of the repository are what their generator writes, and small.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$CENOTE_BIN/cenote-traces" "$work"
count=0
for made in "$work"/*.csv.gz; do
    name=$(basename "$made")
    cmp <(zcat "$made") <(zcat "traces/$name") || { echo "traces/$name is not what cenote-traces writes"; exit 1; }
    count=$((count + 1))
done
test "$count" -gt 0
test "$count" -eq "$(ls traces/*.csv.gz | wc -l)" || { echo "traces/ holds a file that no script makes"; exit 1; }
test "$(cat traces/*.csv.gz | wc -c)" -lt 204800 || { echo "traces/ is larger than 200 KiB"; exit 1; }
