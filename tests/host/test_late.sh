#!/usr/bin/env bash
# jemalloc and when it comes: a program that is linked to it, one that has it preloaded, one with room for it, and one without, which is told what
# helps.
set -eu
library=$CENOTE_BUILD/libcenote_host.so
[ -e "$library" ] || exit 77
if nm -D "$library" | grep -q "__asan\|__tsan\|__ubsan"; then exit 77; fi # a sanitizer's functions come with the program
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cat >"$folder/late.c" <<'C'
#include <dlfcn.h>
#include <stdio.h>
#include <cenote/host.h>
int main(int count, char **arguments)
{
    void *block, *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    if (!library)
        return puts(count > 1 ? dlerror() : "which library?"), 2;
    __typeof__(&cenote_host_alloc) alloc = (__typeof__(&cenote_host_alloc))dlsym(library, "cenote_host_alloc");
    __typeof__(&cenote_host_free) release = (__typeof__(&cenote_host_free))dlsym(library, "cenote_host_free");
    __typeof__(&cenote_host_message) message = (__typeof__(&cenote_host_message))dlsym(library, "cenote_host_message");
    int error = alloc(0, 1000, &block);
    puts(error ? message() : "pinned");
    return error ? error : release(block);
}
C
include="$(dirname "$0")/../../include"
cc -D_GNU_SOURCE -I"$include" "$folder/late.c" -o "$folder/late" -ldl
cc -D_GNU_SOURCE -I"$include" "$folder/late.c" -o "$folder/linked" -Wl,--no-as-needed -ljemalloc -ldl
export LD_LIBRARY_PATH=$CENOTE_BUILD/sim

expect() { # STATUS WORDS COMMAND...
    local status=0 said
    said=$("${@:3}" 2>&1) || status=$?
    if [ "$status" != "$1" ] || ! grep -q -- "$2" <<<"$said"; then
        echo "${*:3}: status $status, expected $1 and \"$2\": $said"
        exit 1
    fi
}

not_supported=8
expect 0 pinned "$folder/linked" "$library"
expect 0 pinned env LD_PRELOAD=libjemalloc.so.2 "$folder/late" "$library"
expect 0 pinned env GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384 "$folder/late" "$library"
expect $not_supported "LD_PRELOAD=libjemalloc.so.2" "$folder/late" "$library"
expect $not_supported "disable-initial-exec-tls" "$folder/late" "$library"
expect $not_supported "CENOTE_JEMALLOC" env CENOTE_JEMALLOC=/no/such.so "$folder/late" "$library"
expect $not_supported "no jemalloc" env CENOTE_JEMALLOC=libm.so.6 "$folder/late" "$library"
echo "late: linked, preloaded, with room, and told what helps"
