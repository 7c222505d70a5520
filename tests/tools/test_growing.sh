#!/usr/bin/env bash
# examples/growing.c says what docs/memory-questions.md shows of it, but for addresses.
set -euo pipefail
page=$(dirname "$0")/../../docs/memory-questions.md
steady() { sed -E 's/; [^;]*0x[0-9a-f]+.*$//'; }
said=$("$CENOTE_BIN/example-growing")
grep -q 'example-growing+0x' <<< "$said" || { echo "no function is named: $said"; exit 1; }
while IFS= read -r line; do
    steady < "$page" | grep -qxF -- "$line" || { echo "docs/memory-questions.md does not show: $line"; exit 1; }
done < <(steady <<< "$said")
