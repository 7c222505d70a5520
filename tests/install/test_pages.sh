#!/bin/bash
# The first programs of README.md, docs/engine.md and docs/custom-runtime.md are built and run by the commands that stand there, with no more than
# `make install` and a compiler: neither pkg-config nor a CUDA Toolkit.
set -eu
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$CENOTE_BUILD" --prefix "$work/cenote" >"$work/log" || { cat "$work/log"; exit 1; }
ln -s "$CENOTE_BUILD" "$work/build"

# The program of the README; with a call of the driver, if the page is about a runtime.
sed -n '/^## I write an engine/,/^## /{/^```c$/,/^```$/p}' README.md | sed '/^```/d' >"$work/yours.c"
grep -q cenote_alloc "$work/yours.c"

# The commands of a page from its `make install PREFIX=` on, but for that one.
commands() {
    sed -n '/^    make install PREFIX=/,/^$/p' "$1" | sed '1d;s/^    //'
}

for page in README.md docs/engine.md docs/custom-runtime.md; do
    if [ "$page" = docs/custom-runtime.md ]; then
        sed -i '1i #include <cuda.h>' "$work/yours.c"
        sed -i 's/^    cenote_pool \*pool;/&\n    if (cuInit(0)) return 2;/' "$work/yours.c"
        grep -q cuInit "$work/yours.c"
    fi
    commands "$page" >"$work/commands"
    grep -q '^cc yours.c' "$work/commands"
    grep -q 'a\.out' "$work/commands"
    echo "== $page"
    rm -f "$work/a.out"
    (cd "$work" && HOME=$work CENOTE_SIM=capacity:1GiB PATH=/usr/bin:/bin bash -eux ./commands)
    test -x "$work/a.out"
done
cd "$source"
