#!/bin/bash
# cenote.hpp under each compiler and standard, with and without exceptions: no warning, no macro that is not ours, and a program of both kinds runs
# on the simulated GPU.
set -eu
source=$PWD/tests/install
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LD_LIBRARY_PATH=$CENOTE_BUILD/sim:$CENOTE_BUILD CENOTE_SIM=capacity:1GiB

flags="-Wall -Wextra -Wshadow -Wold-style-cast -Wnon-virtual-dtor -pedantic -Werror -Iinclude"
echo "#include <cenote/cenote.hpp>" >"$work/alone.cpp"
tried=0
for compiler in g++ clang++; do
    command -v $compiler >/dev/null || { echo "$compiler is not here"; continue; }
    for standard in c++17 c++20; do
        $compiler -std=$standard $flags -fsyntax-only "$work/alone.cpp"
        $compiler -std=$standard $flags -O2 -fno-exceptions -c "$source/lean.cpp" -o "$work/lean.o"
        $compiler -std=$standard $flags -O2 -c "$source/hearty.cpp" -o "$work/hearty.o"
        for order in "lean hearty" "hearty lean"; do
            read -r first second <<<"$order"
            $compiler "$work/$first.o" "$work/$second.o" -L"$CENOTE_BUILD" -lcenote -o "$work/program"
            "$work/program" || { echo "FAILED $compiler $standard $order: $?"; exit 1; }
            said=$("$work/program" mistake 2>&1) && { echo "FAILED $compiler $standard: a mistake went unnoticed"; exit 1; }
            grep -q '^CENOTE_INTERIOR: ' <<<"$said" || { echo "FAILED $compiler $standard: a mistake said $said"; exit 1; }
        done
        echo "$compiler $standard"
        tried=$((tried + 1))
    done
done
[ $tried -gt 0 ]
