#!/bin/bash
# What a user gets: the library is installed into a folder of its own, that folder is moved, and a small program is built against it
# with find_package and with pkg-config, shared and static, as C and as C++; each runs on the simulated GPU. Every public header compiles alone.
set -eu
source=$PWD/tests/install/consumer
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$CENOTE_BUILD" --prefix "$work/first" >"$work/log" || { cat "$work/log"; exit 1; }
mv "$work/first" "$work/installed"
prefix=$work/installed
libraries=$(dirname "$(find "$prefix" -name libcenote.a)")

run_on_sim() {
    echo "run: ${1#"$work"/}"
    CENOTE_SIM=capacity:1GiB LD_LIBRARY_PATH=$CENOTE_BUILD/sim:$libraries "$1"
}

echo "== manual pages"
test "$(cat "$prefix/share/man/man3/cenote_alloc.3")" = ".so man3/cenote.h.3"
grep -q cenote_alloc "$prefix/share/man/man3/cenote.h.3"

echo "== find_package"
cmake -S "$source" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/cmake" >"$work/log" || { cat "$work/log"; exit 1; }
run_on_sim "$work/cmake/consumer-shared"
run_on_sim "$work/cmake/consumer-static"

echo "== pkg-config"
export PKG_CONFIG_PATH=$libraries/pkgconfig
warnings="-Wall -Wextra -Werror"
cc $warnings -std=c11 "$source/consumer.c" $(pkg-config --cflags --libs cenote) -o "$work/pc-c"
c++ $warnings -x c++ "$source/consumer.c" -x none $(pkg-config --cflags --libs cenote) -o "$work/pc-c++"
cc $warnings "$source/consumer.c" $(pkg-config --cflags cenote) "$libraries/libcenote.a" -pthread -ldl -o "$work/pc-static"
for program in pc-c pc-c++ pc-static; do
    run_on_sim "$work/$program"
done

echo "== every header alone"
for header in $(cd "$prefix/include" && find cenote -name '*.h'); do
    echo "#include <$header>" >"$work/alone.c"
    cc $warnings -std=c11 -pedantic -I"$prefix/include" -isystem "$CUDA_INCLUDE" -fsyntax-only "$work/alone.c"
    c++ $warnings -std=c++11 -I"$prefix/include" -isystem "$CUDA_INCLUDE" -fsyntax-only -x c++ "$work/alone.c"
    echo "$header"
done
for header in $(cd "$prefix/include" && find cenote -name '*.hpp'); do
    [ "$header" != cenote/mr.hpp ] || continue # it needs CCCL: test_resource.sh
    echo "#include <$header>" >"$work/alone.cpp"
    c++ $warnings -std=c++17 -I"$prefix/include" -fsyntax-only "$work/alone.cpp"
    echo "$header"
done
test -f "$prefix/include/cenote/cenote.hpp" -a -f "$prefix/include/cenote/mr.hpp"
