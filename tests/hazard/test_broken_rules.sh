#!/bin/bash
# The sequences of hazards.def notice each of the rules 3 to 5 of docs/design.md when a debug build breaks it on purpose (base/check.h), and so
# does the random program of tests/stress where it is graphs that suffer; with nothing broken the same programs pass. The same for PyTorch is
# in tests/torch/memory/test_graphs_random.py.
set -u
hazards=$CENOTE_BUILD/tests/test-hazard-new_driver
soak=$CENOTE_BUILD/tests/test-stress-soak
grep -q CENOTE_BREAK "$hazards" || exit 77 # a release build breaks no rule

failed=0
expect() { # what must come of it, the rule, the program
    CENOTE_BREAK=$2 timeout 100 "$3" >/dev/null 2>&1 && outcome=passes || outcome=fails
    if [ "$outcome" != "$1" ]; then
        echo "$(basename "$3") $outcome with CENOTE_BREAK=$2"
        failed=1
    fi
}

expect passes 0 "$hazards"
for rule in 3 4 5; do
    expect fails "$rule" "$hazards"
done
for rule in 4 5; do
    expect fails "$rule" "$soak"
done
exit $failed
