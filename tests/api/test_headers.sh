#!/usr/bin/env bash
# Each public header alone, in C11 and in C++ (a .hpp in C++17): it compiles in a program whose own macros have the words of the tables for names,
# leaves these as they were, and leaves no macro behind whose name does not begin with CENOTE_ or cenote_.
set -eu
include="$(dirname "$0")/../../include"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

of_tables=$(sed -nE 's/^\w+\(([^"]*)".*/\1/p' "$include"/cenote/*.def | grep -oE '\b[A-Z][A-Z_]+\b' | sort -u)
words="ERROR LEVEL COUNT GAUGE OPTION KIND PHASE ROW $of_tables"
for word in $words; do
    echo "#define $word 1"
done | sort -u >"$folder/own"
[ "$(wc -l <"$folder/own")" -gt 40 ]

standards() { # FILE: each language and standard that it has to be
    case $1 in
    *.hpp) echo "c++ c++17" ;;
    *) echo "c c11"; echo "c++ c++11" ;;
    esac
}

others() { # FILE...: headers of others that they include; their macros are theirs, and they come before a program's
    sed -nE '/cenote/!s/^(#include <.*>)$/\1/p' "$@"
}

# cenote/mr.hpp needs CCCL: what tools/setup puts into .venv/cpp.
venv=$(cd "$(dirname "$0")/../.." && pwd)/.venv
cccl=$venv/cpp/nvidia/cu13/include/cccl

macros() { # LANGUAGE STANDARD FILE: names and values
    cc -x "$1" -std="$2" -I"$include" -isystem "$cccl" -isystem "${CUDA_INCLUDE:-/usr/local/cuda/include}" -E -dM "$3" | sort
}

failed=0
for header in "$include"/cenote/*.h "$include"/cenote/*.hpp; do
    name=cenote/${header##*/}
    [ "$name" != cenote/mr.hpp ] || [ -e "$cccl" ] || { echo "$name: CCCL is not here, not tried"; continue; }
    more=()
    [[ $name != *.hpp ]] || more=("$include/cenote/cenote.hpp")
    { printf '#include <stddef.h>\n#include <stdint.h>\n'; others "$header" "${more[@]}"; } >"$folder/before"
    cat "$folder/before" "$folder/own" >"$folder/without.c"
    { cat "$folder/without.c"; echo "#include <$name>"; } >"$folder/with.c"
    echo "#include <$name>" >"$folder/alone.c"
    while read -r kind standard; do
        for program in alone with; do
            cc -x "$kind" -std="$standard" -pedantic -Wall -Wextra -Werror -I"$include" -isystem "$cccl" \
                -isystem "${CUDA_INCLUDE:-/usr/local/cuda/include}" -fsyntax-only "$folder/$program.c" 2>"$folder/said" ||
                { echo "FAILED $name $program in $standard:"; head -5 "$folder/said"; failed=1; }
        done
        macros "$kind" "$standard" "$folder/without.c" >"$folder/earlier"
        macros "$kind" "$standard" "$folder/with.c" >"$folder/later"
        strangers=$(diff "$folder/earlier" "$folder/later" | grep '^[<>]' | grep -vE '^> #define (CENOTE_|cenote_)' || true)
        [ -z "$strangers" ] || { echo "FAILED $name in $standard leaves or takes macros:"; echo "$strangers"; failed=1; }
    done < <(standards "$name")
    echo "$name"
done
exit $failed
