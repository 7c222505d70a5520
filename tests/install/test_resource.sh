#!/bin/bash
# cenote/mr.hpp under each compiler and standard against CCCL, and as an upstream of RMM. tools/setup puts both into .venv/cpp.
set -eu
there=$PWD/.venv/cpp
cccl=$there/nvidia/cu13/include/cccl
[ -e "$cccl/cuda/memory_resource" ] || { echo "CCCL is not here: tools/setup test"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
warnings="-Wall -Wextra -Wshadow -Werror -Iinclude"

cat >"$work/concepts.cpp" <<'END'
#include <cenote/mr.hpp>
static_assert(cuda::mr::resource_with<cenote::resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::synchronous_resource_with<cenote::resource, cuda::mr::device_accessible>);
END
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || { echo "$compiler is not here"; continue; }
    for standard in c++17 c++20; do
        $compiler -std=$standard $warnings -isystem "$cccl" -isystem "$CUDA_INCLUDE" -fsyntax-only "$work/concepts.cpp"
        echo "CCCL $compiler $standard"
    done
done

# RMM is compiled by g++ alone: clang refuses the attribute of its namespace. Its copy of CCCL is the one that fits.
rmm=$there/librmm
g++ -std=c++17 $warnings -Wno-shadow -isystem "$rmm/include" -isystem "$rmm/include/rapids" -isystem "$there/rapids_logger/include" \
    -isystem "$CUDA_INCLUDE" tests/install/rmm.cpp -o "$work/rmm" -L"$CENOTE_BUILD" -lcenote \
    "$rmm/lib64/librmm.so" "$there/rapids_logger/lib64/librapids_logger.so" "$CENOTE_BUILD/sim/libcudart.so.13"
CENOTE_SIM=capacity:1GiB LD_LIBRARY_PATH=$CENOTE_BUILD/sim:$CENOTE_BUILD:$rmm/lib64:$there/rapids_logger/lib64 CENOTE_CONF=limit:512MiB "$work/rmm"
echo "RMM g++ c++17"
