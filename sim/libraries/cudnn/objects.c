/*
 * objects.c: the memory of descriptors.
 *
 * A slot holds one descriptor of any kind. Slots never go back to the heap and are taken again in the order in which they were given
 * back, so a descriptor that was destroyed is recognised until its slot is in use again. A pointer that never was one of ours is the
 * caller's risk, as with the real library.
 *
 *     object_open          the interface's Set function         object_close
 *   ------------> made --------------------------------> set ----------------> unused, in the queue
 *
 * LOCKING: one lock for the queue. A descriptor itself belongs to the program, which must not use one on two threads at a time.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sim/libraries/cudnn/cudnn.h"

#define OBJECT_MAGIC 0x6e6e6475u
#define SLOTS_AT_A_TIME 64

union slot {
    struct object object;
#define OBJECT(name, kind, type) type kind;
#include "sim/libraries/cudnn/objects.def"
#undef OBJECT
    char backend[64]; /* backend.c's: a header and a pointer */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct object  *oldest, *newest;

static void queue(struct object *o)
{
    o->magic = OBJECT_MAGIC;
    o->kind = OBJECT_NONE;
    o->next = NULL;
    if (newest)
        newest->next = o;
    else
        oldest = o;
    newest = o;
}

static bool queue_more(void)
{
    union slot *slots = calloc(SLOTS_AT_A_TIME, sizeof *slots);
    for (int i = 0; slots && i < SLOTS_AT_A_TIME; i++)
        queue(&slots[i].object);
    return slots;
}

void *object_open(enum object_kind kind)
{
    struct object *o = NULL;
    pthread_mutex_lock(&lock);
    if (oldest || queue_more()) {
        o = oldest;
        oldest = o->next;
        if (!oldest)
            newest = NULL;
        memset(o, 0, sizeof(union slot));
        o->magic = OBJECT_MAGIC;
        o->kind = kind;
    }
    pthread_mutex_unlock(&lock);
    return o;
}

void object_close(void *object)
{
    pthread_mutex_lock(&lock);
    queue(object);
    pthread_mutex_unlock(&lock);
}

bool object_is(const void *object, enum object_kind kind)
{
    const struct object *o = object;
    return o && (uintptr_t)o % _Alignof(union slot) == 0 && o->magic == OBJECT_MAGIC && o->kind == kind;
}

int object_check(const void *object, enum object_kind kind)
{
    if (!object)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "a descriptor is NULL");
    if (!object_is(object, kind))
        return cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is destroyed or of another kind", object);
    if (!((const struct object *)object)->is_set)
        return cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p was made but never set", object);
    return 0;
}

static int create(void **descriptor, enum object_kind kind)
{
    if (!descriptor)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no place for the descriptor");
    *descriptor = object_open(kind);
    return *descriptor ? 0 : cudnn_fail(CUDNN_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory for a descriptor");
}

static int destroy(void *descriptor, enum object_kind kind)
{
    if (!descriptor)
        return 0;
    if (!object_is(descriptor, kind))
        return cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is destroyed or of another kind", descriptor);
    object_close(descriptor);
    return 0;
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#define OBJECT(name, kind, type)                                                                        \
    int cudnnCreate##name##Descriptor(void **descriptor) { return create(descriptor, OBJECT_##kind); }  \
    int cudnnDestroy##name##Descriptor(void *descriptor) { return destroy(descriptor, OBJECT_##kind); }
#include "sim/libraries/cudnn/objects.def"
