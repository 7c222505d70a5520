/*
 * labels.c: the names of tags, and what the program says it is doing.
 *
 * Tags are a tree: a node is a name inside another node, and a number for good. Nodes are only ever added, so that a thread that has a number
 * may read the name without a lock. A thread's own place in the tree is one word of its own storage. The road of an allocation reads it in
 * programs that push tags; that storage is the usual, slower kind, because the faster one may run out where a library is loaded late.
 *
 * LOCKING: the lock of the labels guards the adding of nodes. A fork waits until no thread has it, so that a child may go on.
 */
#include "stats/account/label.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/error.h"
#include "base/lock.h"
#include "base/memory.h"
#include "base/utf8.h"

#define BUCKETS 4096u

struct node {
    uint32_t unused;                    /* the table chains nodes given back through it; none ever is */
    uint32_t outer;                     /* 0: outermost */
    uint32_t next;                      /* of the same bucket */
    char     name[CENOTE_TAG_BYTES + 1];
};

_Thread_local uint32_t label_tag;
_Atomic(uint64_t) label_common;

static struct lock  lock = LOCK_INITIALIZER(LOCK_LABELS);
static struct table nodes;              /* opened by the first push */
static _Atomic(uint32_t) buckets[BUCKETS];

static struct node *node_of(uint32_t tag)
{
    return TABLE_AT(struct node, &nodes, tag);
}

static int check_name(const char *name)
{
    if (!name || !*name)
        return error_set(CENOTE_INVALID, 0, "a tag needs a name");
    size_t length = strnlen(name, CENOTE_TAG_BYTES + 1);
    if (length > CENOTE_TAG_BYTES)
        return error_set(CENOTE_INVALID, 0, "the name of a tag has up to %d bytes: \"%.20s...\" has more", CENOTE_TAG_BYTES, name);
    for (size_t i = 0, bytes; i < length; i += bytes) {
        unsigned char c = (unsigned char)name[i];
        bytes = utf8_sequence(name + i);
        if (c < 0x20 || c == 0x7f || c == '/' || !bytes)
            return error_set(CENOTE_INVALID, 0, "byte %zu of a tag's name is %#04x: names are UTF-8 without '/' and control characters", i, c);
    }
    return CENOTE_OK;
}

static uint32_t bucket_of(uint32_t outer, const char *name)
{
    uint64_t hash = outer * 0x9e3779b97f4a7c15u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return (uint32_t)(hash >> 40) % BUCKETS;
}

static uint32_t find(uint32_t bucket, uint32_t outer, const char *name)
{
    uint32_t tag = atomic_load_explicit(&buckets[bucket], memory_order_acquire);
    while (tag && (node_of(tag)->outer != outer || strcmp(node_of(tag)->name, name) != 0))
        tag = node_of(tag)->next;
    return tag;
}

static void before_fork(void) { lock_take(&lock); }
static void after_fork(void) { lock_give(&lock); }

/* Before any thread can have the lock. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* Another thread may have added it meanwhile. 0: no memory, or too many. */
static uint32_t add(uint32_t bucket, uint32_t outer, const char *name)
{
    lock_take(&lock);
    uint32_t tag = find(bucket, outer, name);
    if (!tag && (nodes.items || table_open(&nodes, sizeof(struct node), CENOTE_TAGS_MAX)) && (tag = table_take(&nodes))) {
        struct node *n = node_of(tag);
        n->outer = outer;
        n->next = atomic_load_explicit(&buckets[bucket], memory_order_relaxed);
        strcpy(n->name, name);
        atomic_store_explicit(&buckets[bucket], tag, memory_order_release);
    }
    lock_give(&lock);
    return tag;
}

int cenote_tag_push(const char *name)
{
    int error = check_name(name);
    if (error)
        return error;
    uint32_t bucket = bucket_of(label_tag, name), tag = find(bucket, label_tag, name);
    if (!tag && !(tag = add(bucket, label_tag, name)))
        return error_set(CENOTE_OUT_OF_HOST_MEMORY, 0, "no room for the tag \"%s\": a program may have %d paths of tags; use a name again where "
                         "the purpose is the same", name, CENOTE_TAGS_MAX);
    label_tag = tag;
    atomic_fetch_or(&label_common, LABEL_PUSHED);
    return CENOTE_OK;
}

int cenote_tag_pop(void)
{
    if (!label_tag)
        return error_set(CENOTE_INVALID, 0, "cenote_tag_pop without a cenote_tag_push of this thread");
    label_tag = node_of(label_tag)->outer;
    return CENOTE_OK;
}

static void set_common(uint64_t bits, uint64_t value)
{
    uint64_t before = atomic_load(&label_common);
    while (!atomic_compare_exchange_weak(&label_common, &before, (before & ~bits) | value))
        ;
}

/* A thread without a tag of its own goes by the one that is shared: so it has nothing to share, and must not end another thread's. */
int cenote_tag_share(int on)
{
    if (label_tag || !on)
        set_common(MARK_TAG, on ? label_tag : 0);
    return CENOTE_OK;
}

#define CENOTE_KIND(name, text) text,
#define CENOTE_PHASE(name, kind, text) text,
const char *const label_kinds[CENOTE_KINDS] = {
#include <cenote/kinds.def>
};
const char *const label_phases[CENOTE_PHASES] = {
#include <cenote/phases.def>
};
#undef CENOTE_KIND
#undef CENOTE_PHASE

int cenote_phase_set(int phase)
{
    static const uint8_t kinds[] = {
#define CENOTE_PHASE(name, kind, text) CENOTE_KIND_##kind,
#include <cenote/phases.def>
#undef CENOTE_PHASE
    };
    if (phase < 0 || phase >= CENOTE_PHASES)
        return error_set(CENOTE_INVALID, 0, "phase %d: phases are numbered from 0 to %d", phase, CENOTE_PHASES - 1);
    set_common(MARK_PHASE | MARK_KIND, (uint64_t)phase << MARK_PHASE_AT | (uint64_t)kinds[phase] << MARK_KIND_AT);
    return CENOTE_OK;
}

int cenote_phase_now(void)
{
    return (int)mark_phase(atomic_load(&label_common));
}

/* The names from the outermost on, "train/encoder"; of a long path the end. */
void label_path(uint32_t tag, char *text, size_t room)
{
    char path[256];
    size_t from = sizeof(path) - 1;
    path[from] = 0;
    for (; tag; tag = node_of(tag)->outer) {
        const char *name = node_of(tag)->name;
        size_t length = strlen(name);
        if (from <= length)
            break;
        if (path[from])
            path[--from] = '/';
        from -= length;
        memcpy(path + from, name, length);
    }
    size_t length = sizeof(path) - 1 - from;
    if (!tag && length < room) {
        memcpy(text, path + from, length + 1);
        return;
    }
    CHECK(length >= room - 4); /* a name has CENOTE_TAG_BYTES at most */
    const char *end = path + sizeof(path) - 1 - (room - 4);
    while (((unsigned char)*end & 0xc0) == 0x80) /* not in the middle of a character */
        end++;
    snprintf(text, room, "...%s", end);
}
