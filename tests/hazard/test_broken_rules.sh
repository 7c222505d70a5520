#!/bin/bash
# The sequence of hazards.def that is about a rule of docs/design.md notices when a debug build breaks that rule on purpose (base/check.h),
# and so does the random program of tests/stress. With nothing broken both pass. For PyTorch: tests/torch/memory/test_graphs_random.py.
set -u
cd "$CENOTE_BUILD/tests" || exit 1
hazards=./test-hazard-new_driver
soak=./test-stress-soak
grep -q CENOTE_BREAK "$hazards" || exit 77 # a release build breaks no rule

export SOAK_SEED=6 # five random programs from this one on meet both rules; those from 1 on never need rule 5
failed=0
expect() { # passes or fails, the rule, a program and its case
    CENOTE_BREAK=$2 timeout "$((60 * ${CENOTE_TEST_PATIENCE:-4}))" "$3" "$4" >/dev/null 2>&1
    case $?:$1 in
        0:passes) ;;
        124:* | 0:fails | *:passes)
            echo "$4 with CENOTE_BREAK=$2 does not do what it should: $1"
            failed=1 ;;
    esac
}

while read -r rule program case; do
    expect passes 0 "$program" "$case"
    expect fails "$rule" "$program" "$case"
done <<END
3 $hazards aliases_with_the_device_behind
4 $hazards captured_temporary_that_another_stream_wants
5 $hazards nothing_is_unmapped_during_a_capture
4 $soak one_thread
5 $soak one_thread
END
exit $failed
