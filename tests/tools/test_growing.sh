#!/usr/bin/env bash
# examples/growing.c says what docs/memory-questions.md shows of it, but for addresses.
set -euo pipefail
steady() { sed -E 's/; [^;]*0x[0-9a-f]+.*$//'; }
page=$(steady < "$(dirname "$0")/../../docs/memory-questions.md")
said=$("$CENOTE_BIN/example-growing")
grep -q 'example-growing+0x' <<< "$said" || { echo "no function is named: $said"; exit 1; }
while IFS= read -r line; do
    grep -qxF -- "$line" <<< "$page" || { echo "docs/memory-questions.md does not show: $line"; exit 1; }
done < <(steady <<< "$said")
