/*
 * table.c: which files the command has made, and which entries it keeps.
 *
 * One file, which all processes of all runs have mapped: a hash table of each, with keys alone, and bits that say of a name that no entry of this
 * name is kept. Keys are 62 bits of a hash: that two of a million are equal happens once in ten million programs. If the table of made files is
 * full, a file counts as one of before, and is kept: that is safe. If the other one is full, the change of the entry fails with ENOSPC.
 *
 * Where the file cannot be mapped (the command has ended, and its folder is gone), the process has tables of its own.
 */
#include "plugins/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLOTS (1u << 20)  /* chosen: 8 MiB of a sparse file each */
#define PROBES 256        /* slots that are looked at */
#define NAME_BITS (1u << 16)
#define TOLD_MAX 4096     /* rows for the verdict, which shows a few of them */
#define FOLDERS_MAX 65536 /* with those of folders, which come after their files, and stand for them in the verdict */
#define REMOVED 1         /* in a slot: look on */

struct table {
    _Atomic uint64_t seed; /* of this command alone: two commands in one folder have stand-ins of different names */
    _Atomic uint64_t names[NAME_BITS / 64];
    _Atomic uint64_t made[SLOTS];
    _Atomic uint64_t kept[SLOTS]; /* the state in the two lowest bits */
    _Atomic uint32_t kept_count, told;
    _Atomic bool has_folders; /* among what is kept */
};

bool files_on;
static struct table *table;

static uint64_t mixed(uint64_t x)
{
    x ^= x >> 32;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

static uint64_t name_hash(const char *name, size_t length)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3u;
    return mixed(hash);
}

static uint64_t file_key(const struct stat *file)
{
    return mixed(mixed(file->st_ino) + file->st_dev) << 2 | 1u << 2;
}

uint64_t entry_key(const struct stat *folder, const char *name, size_t length)
{
    return mixed(file_key(folder) ^ atomic_load(&table->seed) ^ name_hash(name, length)) << 2 | 1u << 2;
}

bool name_may_be_kept(const char *name, size_t length)
{
    uint64_t bit = name_hash(name, length) % NAME_BITS;
    return any_is_kept() && atomic_load(&table->names[bit / 64]) >> bit % 64 & 1;
}

bool any_is_kept(void)
{
    return atomic_load_explicit(&table->kept_count, memory_order_acquire);
}

enum state entry_state(uint64_t key)
{
    for (unsigned i = 0; i < PROBES; i++) {
        uint64_t found = atomic_load(&table->kept[(key / 4 + i) % SLOTS]);
        if (!found)
            break;
        if ((found & ~3ull) == key)
            return found & 3;
    }
    return UNTOUCHED;
}

/* A folder is kept, or a link, so that a path may lead to it by another name. */
bool folders_are_kept(void)
{
    return atomic_load_explicit(&table->has_folders, memory_order_acquire);
}

void folder_is_kept(void)
{
    atomic_store(&table->has_folders, true);
}

/* False, with errno: the table is full there. */
bool entry_set(uint64_t key, const char *name, size_t length, enum state state)
{
    uint64_t bit = name_hash(name, length) % NAME_BITS;
    for (unsigned i = 0; i < PROBES; i++) {
        _Atomic uint64_t *slot = &table->kept[(key / 4 + i) % SLOTS];
        uint64_t found = atomic_load(slot);
        if (!found && atomic_compare_exchange_strong(slot, &found, key | state)) {
            atomic_fetch_or(&table->names[bit / 64], 1ull << bit % 64);
            atomic_fetch_add(&table->kept_count, 1);
            return true;
        }
        if ((found & ~3ull) == key) {
            atomic_store(slot, key | state);
            return true;
        }
    }
    errno = ENOSPC;
    return false;
}

static _Atomic uint64_t *made_slot(uint64_t key)
{
    for (unsigned i = 0; i < PROBES; i++) {
        _Atomic uint64_t *slot = &table->made[(key / 4 + i) % SLOTS];
        uint64_t found = atomic_load(slot);
        if (found == key)
            return slot;
        if (!found)
            break;
    }
    return NULL;
}

static void add_made(uint64_t key)
{
    for (unsigned i = 0; i < PROBES && !made_slot(key); i++) {
        _Atomic uint64_t *slot = &table->made[(key / 4 + i) % SLOTS];
        uint64_t found = atomic_load(slot);
        if (found == REMOVED || !found)
            atomic_compare_exchange_strong(slot, &found, key);
    }
}

static void take_made(uint64_t key)
{
    for (_Atomic uint64_t *slot = made_slot(key); slot; slot = made_slot(key))
        atomic_store(slot, REMOVED);
}

bool is_made(const struct stat *file)
{
    return made_slot(file_key(file)) != NULL;
}

void made(const struct stat *file)
{
    add_made(file_key(file));
}

/* The system gives its number to another file, which may be another program's. */
void unmade(const struct stat *file)
{
    take_made(file_key(file));
}

/* A second name of a file of before, which rename.c has made: the name may go, the file must not change. */
bool is_our_link(uint64_t key)
{
    return made_slot(key) != NULL;
}

void our_link(uint64_t key, bool is_there)
{
    if (is_there)
        add_made(key);
    else
        take_made(key);
}

bool may_tell(bool is_folder)
{
    return atomic_load(&table->told) < (is_folder ? FOLDERS_MAX : TOLD_MAX) && atomic_fetch_add(&table->told, 1) < FOLDERS_MAX;
}

static void begin_in(const char *folder)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/table", folder) >= sizeof path)
        return;
    int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    bool is_shared = file >= 0 && !syscall(SYS_ftruncate, file, (long)sizeof *table);
    void *at = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, is_shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    is_shared ? file : -1, 0);
    if (file >= 0)
        close(file);
    if (at == MAP_FAILED)
        return;
    table = at;
    uint64_t none = 0, seed = 0;
    if (syscall(SYS_getrandom, &seed, sizeof seed, 0) == sizeof seed)
        atomic_compare_exchange_strong(&table->seed, &none, seed);
    tell_folder(folder);
    read_caches();
    files_on = true;
}

__attribute__((constructor)) static void begin(void)
{
    int error = errno;
    const char *folder = getenv("CENOTE_DRY_FILES");
    if (folder && *folder)
        begin_in(folder);
    errno = error;
}

/* From Python, once it writes a stack upon our signal. A program of the tests begins only here: it was forked from one that has imported PyTorch. */
__attribute__((visibility("default"))) void cenote_files_begin(const char *folder)
{
    if (!files_on)
        begin_in(folder);
    tell_stacks();
}
