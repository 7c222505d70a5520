#!/bin/bash
# examples/umf under UMF, on a simulated card that is behind the host. tools/setup puts UMF into .venv/cpp.
set -eu
umf=$PWD/.venv/cpp
[ -e "$umf/include/umf.h" ] || { echo "UMF is not here: tools/setup test"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -std=gnu11 -Wall -Wextra -Werror -Iinclude -I. -isystem "$umf/include" -isystem "$CUDA_INCLUDE" tests/install/umf.c examples/umf/provider.c \
    -o "$work/umf" -L"$CENOTE_BUILD" -lcenote "$umf/lib/libumf.so.1" "$CENOTE_BUILD/sim/libcuda.so.1"
CENOTE_SIM=capacity:1GiB,lag:1000000,manual_clock:1 LD_LIBRARY_PATH=$CENOTE_BUILD/sim:$CENOTE_BUILD:$umf/lib "$work/umf"
