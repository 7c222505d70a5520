#!/usr/bin/env bash
# examples/cpp: evicted tensors come back, and every result is what was loaded. docs/cpp.md shows no line of C++ that the example does not have.
set -euo pipefail
root=$(dirname "$0")/../..
while IFS= read -r line; do
    grep -qxhF -- "$line" "$root"/examples/cpp/*.cpp || { echo "docs/cpp.md shows what the program does not have: $line"; exit 1; }
done < <(sed -n '/^```cpp$/,/^```$/p' "$root/docs/cpp.md" | grep -v '^```')
said=$(CENOTE_SIM=capacity:1GiB,lag:300000 "$CENOTE_BIN/example-cpp")
grep -qE '^400 requests, [0-9]{3} loads, [0-9]{3} evictions, 0 wrong$' <<<"$said" || { echo "$said"; exit 1; }
