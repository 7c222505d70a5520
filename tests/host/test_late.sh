#!/usr/bin/env bash
# jemalloc and when it comes: a program that is linked to it, one that has it preloaded, one with room for it, and one without, which is told what
# helps. It is sought once; a child that is forked meanwhile is refused; and what knows addresses of the library finds it there after dlclose.
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

# A library that is loaded for as long as the program likes, and is no jemalloc in the end.
cat >"$folder/slow.c" <<'C'
void being_loaded(void);
__attribute__((constructor)) static void loaded(void) { being_loaded(); }
C
cat >"$folder/forks.c" <<'C'
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cenote/host.h>
static __typeof__(&cenote_host_alloc) alloc;
static __typeof__(&cenote_host_message) message;
static sem_t loading, forked;
static int loads;
void being_loaded(void)
{
    loads++;
    sem_post(&loading);
    sem_wait(&forked);
}
static int ask(void)
{
    void *block;
    return alloc(0, 1000, &block);
}
static void *first(void *error)
{
    *(int *)error = ask();
    return NULL;
}
int main(int count, char **arguments)
{
    pthread_t thread;
    int error = 0, status = 0;
    void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW) : NULL;
    alloc = (__typeof__(alloc))dlsym(library, "cenote_host_alloc");
    message = (__typeof__(message))dlsym(library, "cenote_host_message");
    sem_init(&loading, 0, 0);
    sem_init(&forked, 0, 0);
    pthread_create(&thread, NULL, first, &error);
    sem_wait(&loading);
    pid_t child = fork();
    if (!child) {
        alarm(20);
        _exit(ask());
    }
    waitpid(child, &status, 0);
    sem_post(&forked);
    pthread_join(thread, NULL);
    setenv("CENOTE_JEMALLOC", "/no/such.so", 1);
    printf("child %d, parent %d, then %d after %d load: %s\n", status, error, ask(), loads, message());
    return 0;
}
C

cat >"$folder/closes.c" <<'C'
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <cenote/host.h>
static void *use_it(void *path)
{
    void *library = dlopen(path, RTLD_NOW);
    __typeof__(&cenote_host_alloc) alloc = (__typeof__(&cenote_host_alloc))dlsym(library, "cenote_host_alloc");
    __typeof__(&cenote_host_trim) trim = (__typeof__(&cenote_host_trim))dlsym(library, "cenote_host_trim");
    void *block;
    int refused = alloc(99, 1000, &block) != 0, error = trim(0, 0);
    printf("%d %d %d\n", refused, error, dlclose(library));
    return NULL;
}
int main(int count, char **arguments)
{
    pthread_t thread;
    pthread_create(&thread, NULL, use_it, arguments[count - 1]);
    return pthread_join(thread, NULL);
}
C
include="$(dirname "$0")/../../include"
cc -D_GNU_SOURCE -I"$include" "$folder/late.c" -o "$folder/late" -ldl
cc -D_GNU_SOURCE -I"$include" "$folder/late.c" -o "$folder/linked" -Wl,--no-as-needed -ljemalloc -ldl
cc -D_GNU_SOURCE -I"$include" "$folder/forks.c" -o "$folder/forks" -rdynamic -ldl -pthread
cc -D_GNU_SOURCE -I"$include" "$folder/closes.c" -o "$folder/closes" -Wl,--no-as-needed -ljemalloc -ldl -pthread
cc -fPIC -shared "$folder/slow.c" -o "$folder/slow.so"
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
forked=18
expect 0 "child $((forked * 256)), parent $not_supported, then $not_supported after 1 load: .*slow.so is no jemalloc" \
    env CENOTE_JEMALLOC="$folder/slow.so" "$folder/forks" "$library"
expect 0 "1 0 0" "$folder/closes" "$library"
expect 0 "1 0 0" env CENOTE_DRIVER=/no/such.so "$folder/closes" "$library"
echo "late: linked, preloaded, with room, and told what helps"
