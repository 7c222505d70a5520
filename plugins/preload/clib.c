/*
 * clib.c: the dlsym and the dlvsym of the C library, past those of dlsym.S, or of another library that stands before them.
 *
 * LOCKING: none; both functions are looked up anew by each thread that comes before the first has found them.
 */
#include "plugins/preload/clib.h"

#include "plugins/preload/real.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#include "base/check.h"

typedef void *(*dlsym_fn)(void *handle, const char *name);
typedef void *(*dlvsym_fn)(void *handle, const char *name, const char *version);

/* By symbol our own dlvsym would be found. So the C library's is looked up in the tables of its file. */
struct dynamic {
    const ElfW(Sym) *symbols;
    const char      *names;
    const uint32_t  *hash; /* DT_GNU_HASH */
};

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static struct dynamic dynamic_of(const struct link_map *library)
{
    struct dynamic found = {0};
    for (const ElfW(Dyn) *entry = library->l_ld; entry->d_tag != DT_NULL; entry++) {
        const void *at = (const void *)(entry->d_un.d_ptr < library->l_addr ? library->l_addr + entry->d_un.d_ptr : entry->d_un.d_ptr);
        found.symbols = entry->d_tag == DT_SYMTAB ? at : found.symbols;
        found.names = entry->d_tag == DT_STRTAB ? at : found.names;
        found.hash = entry->d_tag == DT_GNU_HASH ? at : found.hash;
    }
    return found;
}

/* Does `text` begin so? `end`: and end there? A sanitizer stands before the functions of string.h, and may not be ready. */
static bool begins(const char *text, const char *with, bool end)
{
    while (*with && *text == *with)
        text++, with++;
    return !*with && (!end || !*text);
}

/* The value of a symbol that the library defines, of any version. 0: it has none. */
static ElfW(Addr) value_of(const struct dynamic *d, const char *name)
{
    if (!d->symbols || !d->names || !d->hash)
        return 0;
    uint32_t buckets = d->hash[0], first = d->hash[1], filter = d->hash[2], hash = hash_of(name);
    const uint32_t *bucket = d->hash + 4 + filter * (sizeof(ElfW(Addr)) / 4), *chain = bucket + buckets;
    uint32_t i = bucket[hash % buckets];
    bool is_last = !i;
    for (; !is_last; i++) {
        const ElfW(Sym) *s = &d->symbols[i];
        is_last = chain[i - first] & 1;
        if ((chain[i - first] | 1) == (hash | 1) && s->st_shndx != SHN_UNDEF && begins(d->names + s->st_name, name, true))
            return s->st_value;
    }
    return 0;
}

/* In older C libraries it lies in libdl. Both come with the program and stay: what is loaded or unloaded meanwhile comes after them. */
static void *look_for(const char *name)
{
    for (const struct link_map *library = _r_debug.r_map; library; library = library->l_next) {
        const char *file = library->l_name;
        for (const char *at = file; *at; at++)
            file = *at == '/' ? at + 1 : file;
        if (!begins(file, "libc.so.", false) && !begins(file, "libdl.so.", false))
            continue;
        struct dynamic d = dynamic_of(library);
        ElfW(Addr) value = value_of(&d, name);
        if (value)
            return (void *)(library->l_addr + value);
    }
    return NULL;
}

void *clib_dlvsym_function(void)
{
    static void *_Atomic known;
    void *function = atomic_load_explicit(&known, memory_order_relaxed);
    if (!function) {
        function = look_for("dlvsym");
        CHECK(function);
        atomic_store_explicit(&known, function, memory_order_relaxed);
    }
    return function;
}

/* C has no cast between addresses of data and of functions; POSIX makes them the same bits. */
void *clib_dlvsym(void *handle, const char *name, const char *version)
{
    void *address = clib_dlvsym_function();
    dlvsym_fn function;
    memcpy(&function, &address, sizeof function);
    return function(handle, name, version);
}

/*
 * The next one after ours. A library of the program may bring libcuda.so.1 after the C library: then there is none after ours, and it is the C
 * library's own.
 */
static void *find_dlsym(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}; /* newer C libraries, x86-64, aarch64 */
    void *found = NULL;
    for (size_t i = 0; !found && i < sizeof versions / sizeof versions[0]; i++)
        found = clib_dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    found = found ? found : look_for("dlsym");
    CHECK(found);
    return found;
}

void *clib_dlsym_function(void)
{
    static void *_Atomic known;
    void *function = atomic_load_explicit(&known, memory_order_relaxed);
    if (!function)
        atomic_store_explicit(&known, function = find_dlsym(), memory_order_relaxed);
    return function;
}

void *real_dlsym(void *handle, const char *name)
{
    void *address = clib_dlsym_function();
    dlsym_fn function;
    memcpy(&function, &address, sizeof function);
    return function(handle, name);
}
