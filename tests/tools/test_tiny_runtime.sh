#!/usr/bin/env bash
# examples/tiny_runtime prints what docs/custom-runtime.md shows, to the byte: on a card that is 0.3 ms behind and whose clock stands still but
# for the cost of calls, nothing depends on the machine.
# Every line of C on the page is one of the program.
set -euo pipefail
page=$(dirname "$0")/../../docs/custom-runtime.md
while IFS= read -r line; do
    grep -qxhF -- "$line" "$(dirname "$0")"/../../examples/tiny_runtime/*.[ch] ||
        { echo "$page shows what the program does not have: $line"; exit 1; }
done < <(sed -n '/^```c$/,/^```$/p' "$page" | grep -v '^```')
said=$(CENOTE_SIM=capacity:1GiB,lag:300000,manual_clock:1,charge_cost:1 "$CENOTE_BIN/example-tiny-runtime")
shown=$(sed -n '/^```text$/,/^```$/p' "$page" | sed '1d;$d')
diff <(printf '%s\n' "$shown") <(printf '%s\n' "$said") ||
    { echo "docs/custom-runtime.md shows other figures (left) than the program prints (right)"; exit 1; }
