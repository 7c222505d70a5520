/*
 * backend.c: the graph interface: descriptors of every kind, made, filled by attributes, finalised and asked.
 *
 *     Create          SetAttribute, any number            Finalize                     Destroy
 *   ---------> open ---------------------------> open ------------> final, immutable ----------->
 *
 * A descriptor is a name for a body; a body that was finalised is shared by everything made of it, so that a plan outlives the descriptors
 * of its operations, as cuDNN's do. attributes.def says what each may hold; graph.c what it means. GetAttribute of descriptors gives
 * the caller's own descriptors the bodies that are asked for.
 *
 * LOCKING: none. An open descriptor belongs to one thread; bodies that are shared do not change, and count their holders atomically.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "sim/libraries/cudnn/graph.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define ELEMENTS_MAX (1 << 16) /* of one attribute; no real one comes near */
#define DEPTH_MAX 64           /* bodies within bodies: release would otherwise go as deep as a hostile caller likes */

struct descriptor {
    struct object object;
    struct body  *body;
};

/* --- bodies */

struct body *body_open(enum descriptor_type type)
{
    struct body *body = calloc(1, sizeof *body);
    if (!body)
        return NULL;
    atomic_init(&body->holders, 1);
    body->type = type;
    body->plans.least = UINT64_MAX;
    body->plans.first = -1;
    return body;
}

void body_hold(struct body *body)
{
    atomic_fetch_add_explicit(&body->holders, 1, memory_order_relaxed);
}

static void attribute_drop(struct attribute *a)
{
    for (int64_t i = 0; a->type == VALUE_BACKEND_DESCRIPTOR && i < a->count; i++)
        body_release(((struct body **)a->values)[i]);
    free(a->values);
}

void body_release(struct body *body)
{
    if (!body || atomic_fetch_sub_explicit(&body->holders, 1, memory_order_acq_rel) > 1)
        return;
    for (unsigned i = 0; i < body->count; i++)
        attribute_drop(&body->attributes[i]);
    free(body->attributes);
    free(body);
}

const struct attribute *body_find(const struct body *body, int number)
{
    for (unsigned i = 0; i < body->count; i++)
        if (body->attributes[i].number == number)
            return &body->attributes[i];
    return NULL;
}

/* The place of an attribute that has none yet, or of the one it replaces. */
static struct attribute *body_room(struct body *body, int number)
{
    for (unsigned i = 0; i < body->count; i++)
        if (body->attributes[i].number == number) {
            attribute_drop(&body->attributes[i]);
            return &body->attributes[i];
        }
    struct attribute *more = realloc(body->attributes, (body->count + 1) * sizeof *more);
    if (!more)
        return NULL;
    body->attributes = more;
    return &more[body->count++];
}

static size_t value_bytes(int type)
{
    switch (type) {
#define DATA_TYPE(number, name, bits)
#define VALUE_TYPE(number, name, bytes, most) case number: return bytes;
#include "sim/libraries/cudnn/types.def"
    default: return 0;
    }
}

bool body_put(struct body *body, int number, int type, int64_t count, const void *values)
{
    size_t bytes = (size_t)count * value_bytes(type);
    void *copy = malloc(bytes + 1);
    struct attribute *a = copy ? body_room(body, number) : NULL;
    if (!a) {
        free(copy);
        return false;
    }
    if (bytes)
        memcpy(copy, values, bytes);
    *a = (struct attribute){number, type, count, copy};
    return true;
}

bool body_put_bodies(struct body *body, int number, int64_t count, struct body *const *bodies)
{
    for (int64_t i = 0; i < count; i++)
        body_hold(bodies[i]); /* before an older value is dropped, which may hold the last of these */
    if (!body_put(body, number, VALUE_BACKEND_DESCRIPTOR, count, bodies)) {
        for (int64_t i = 0; i < count; i++)
            body_release(bodies[i]);
        return false;
    }
    for (int64_t i = 0; i < count; i++)
        if (body->depth <= bodies[i]->depth)
            body->depth = bodies[i]->depth + 1;
    return true;
}

static int64_t integer(const struct attribute *a, int64_t i)
{
    switch (value_bytes(a->type)) {
    case 1: return ((const int8_t *)a->values)[i];
    case 4: return ((const int32_t *)a->values)[i];
    default: return ((const int64_t *)a->values)[i];
    }
}

int64_t body_integer(const struct body *body, int number)
{
    const struct attribute *a = body_find(body, number);
    return a && a->count ? integer(a, 0) : 0;
}

int64_t body_integers(const struct body *body, int number, int64_t *list, int64_t most)
{
    const struct attribute *a = body_find(body, number);
    for (int64_t i = 0; a && i < a->count && i < most; i++)
        list[i] = integer(a, i);
    return a ? a->count : 0;
}

struct body *body_at(const struct body *body, int number, int64_t i)
{
    const struct attribute *a = body_find(body, number);
    return a && i < a->count && a->type == VALUE_BACKEND_DESCRIPTOR ? ((struct body **)a->values)[i] : NULL;
}

/* --- what attributes.def says */

enum use { MAY, NEEDED, ANSWER };

struct rule {
    int         number;
    enum descriptor_type descriptor;
    const char *name;
    uint64_t    types;  /* a bit for each VALUE_... that it can be given as */
    int         of;     /* descriptors: of this type, or one of the two below */
    int64_t     most;
    enum use    use;
};

#define OF_ANY (-1)
#define OF_OPERATION (-2)

#define VALUE(name) (1ull << VALUE_##name)
static const struct rule rules[] = {
#define DIMS CUDNN_DIMS_MAX
#define ANY ELEMENTS_MAX
#define OF(name) VALUE(BACKEND_DESCRIPTOR), DESCRIPTOR_##name
#define ONE(name) VALUE(name), OF_ANY
#define TENSOR OF(TENSOR)
#define OPERATION VALUE(BACKEND_DESCRIPTOR), OF_OPERATION
#define REAL VALUE(FLOAT) | VALUE(DOUBLE), OF_ANY
#define WINDOW VALUE(INT64) | VALUE(FRACTION), OF_ANY
#define SEED VALUE(INT64) | VALUE(BACKEND_DESCRIPTOR), DESCRIPTOR_TENSOR
#define ATTRIBUTE(number, descriptor, name, type, most, use) {number, DESCRIPTOR_##descriptor, #descriptor "_" #name, type, most, use},
#include "sim/libraries/cudnn/attributes.def"
#undef ATTRIBUTE
#undef TENSOR
#undef OPERATION
};

static int rule_order(const void *number, const void *rule)
{
    return *(const int *)number - ((const struct rule *)rule)->number;
}

static const struct rule *rule_of(int number, enum descriptor_type descriptor)
{
    const struct rule *r = bsearch(&number, rules, sizeof rules / sizeof *rules, sizeof *rules, rule_order);
    return r && r->descriptor == descriptor ? r : NULL;
}

/* NULL: nothing is missing. Lists of any length may be empty. */
static const struct rule *rule_unmet(const struct body *body)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (rules[i].descriptor != body->type || rules[i].use != NEEDED)
            continue;
        const struct attribute *a = body_find(body, rules[i].number);
        if (!a || (!a->count && rules[i].most != ELEMENTS_MAX))
            return &rules[i];
    }
    return NULL;
}

static const char *type_name(int type)
{
    switch (type) {
#define DESCRIPTOR(number, name, what) case number: return #name;
#include "sim/libraries/cudnn/descriptors.def"
#undef DESCRIPTOR
    default: return NULL;
    }
}

/* --- the calls */

static int check(const struct descriptor *d)
{
    if (!d)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "a descriptor is NULL");
    return object_is(d, OBJECT_BACKEND) ? 0 : cudnn_fail(CUDNN_BAD_PARAM, "descriptor %p is destroyed, or none", (const void *)d);
}

int cudnnBackendCreateDescriptor(int type, struct descriptor **descriptor)
{
    if (!descriptor)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "no place for the descriptor");
    *descriptor = NULL;
    if (!type_name(type))
        return cudnn_fail(CUDNN_NOT_SUPPORTED, "descriptors of type %d are not simulated", type);
    struct descriptor *d = object_open(OBJECT_BACKEND);
    struct body *body = d ? body_open((enum descriptor_type)type) : NULL;
    if (!body) {
        if (d)
            object_close(d);
        return cudnn_fail(CUDNN_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "no memory for a descriptor");
    }
    d->body = body;
    *descriptor = d;
    return 0;
}

int cudnnBackendDestroyDescriptor(struct descriptor *d)
{
    int error = d ? check(d) : 0;
    if (error || !d)
        return error;
    body_release(d->body);
    object_close(d);
    return 0;
}

/* Values that name one of a list must be on it. */
static bool is_listed(int type, int64_t count, const void *values)
{
    int most;
    switch (type) {
#define DATA_TYPE(number, name, bits)
#define VALUE_TYPE(number, name, bytes, highest) case number: most = highest; break;
#include "sim/libraries/cudnn/types.def"
    default: return false;
    }
    struct attribute a = {.type = type, .count = count, .values = (void *)(uintptr_t)values};
    for (int64_t i = 0; most >= 0 && i < count; i++)
        if (integer(&a, i) < 0 || integer(&a, i) > most)
            return false;
    return true;
}

static int put_descriptors(struct body *body, const struct rule *rule, int64_t count, struct descriptor *const *list)
{
    struct body **bodies = malloc((size_t)count * sizeof *bodies + 1);
    int error = bodies ? 0 : CUDNN_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    for (int64_t i = 0; !error && i < count; i++) {
        error = check(list[i]);
        if (error)
            break;
        bodies[i] = list[i]->body;
        bool fits = rule->of == OF_OPERATION ? graph_is_operation(bodies[i]->type) : (int)bodies[i]->type == rule->of;
        if (!fits)
            error = cudnn_fail(CUDNN_BAD_PARAM_DESCRIPTOR_TYPE, "%s: no place for a descriptor of type %d", rule->name, bodies[i]->type);
        else if (!bodies[i]->is_final)
            error = cudnn_fail(CUDNN_BAD_PARAM_NOT_FINALIZED, "%s: the descriptor is not finalised", rule->name);
        else if (bodies[i]->depth >= DEPTH_MAX)
            error = cudnn_fail(CUDNN_NOT_SUPPORTED, "%s: more than %d descriptors within each other", rule->name, DEPTH_MAX);
    }
    if (!error && !body_put_bodies(body, rule->number, count, bodies))
        error = CUDNN_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    free(bodies);
    return error;
}

int cudnnBackendSetAttribute(struct descriptor *d, int number, int type, int64_t count, const void *values)
{
    int error = check(d);
    if (error)
        return error;
    if (d->body->is_final)
        return cudnn_fail(CUDNN_NOT_INITIALIZED, "descriptor %p is finalised already", (void *)d);
    const struct rule *rule = rule_of(number, d->body->type);
    if (!rule || rule->use == ANSWER)
        return cudnn_fail(CUDNN_NOT_SUPPORTED, "attribute %d cannot be set on a descriptor %s", number, type_name(d->body->type));
    if (type < 0 || type > 63 || !(rule->types & 1ull << type))
        return cudnn_fail(CUDNN_BAD_PARAM_ATTRIBUTE_TYPE, "%s is not of type %d", rule->name, type);
    if (count < 0 || count > rule->most)
        return cudnn_fail(CUDNN_BAD_PARAM_OUT_OF_BOUND, "%s: %lld elements", rule->name, (long long)count);
    if (count && !values)
        return cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "%s: no values", rule->name);
    if (type == VALUE_BACKEND_DESCRIPTOR)
        return put_descriptors(d->body, rule, count, values);
    if (!is_listed(type, count, values))
        return cudnn_fail(CUDNN_BAD_PARAM, "%s: there is no such value", rule->name);
    return body_put(d->body, number, type, count, values) ? 0 : CUDNN_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

static int get_descriptors(const struct attribute *a, const struct rule *rule, int64_t room, struct descriptor *const *list)
{
    for (int64_t i = 0; i < a->count && i < room; i++) {
        int error = check(list[i]);
        if (error)
            return error;
        struct body *body = ((struct body **)a->values)[i];
        if (list[i]->body->type != body->type)
            return cudnn_fail(CUDNN_BAD_PARAM_DESCRIPTOR_TYPE, "%s: the descriptor to fill is of type %d", rule->name, list[i]->body->type);
        body_hold(body);
        body_release(list[i]->body);
        list[i]->body = body;
    }
    return 0;
}

/* Says how many values it gave; with no place for values, how many there are. */
int cudnnBackendGetAttribute(const struct descriptor *d, int number, int type, int64_t room, int64_t *count, void *values)
{
    int error = check(d);
    if (error)
        return error;
    if (!d->body->is_final)
        return cudnn_fail(CUDNN_BAD_PARAM_NOT_FINALIZED, "descriptor %p is not finalised", (const void *)d);
    const struct rule *rule = rule_of(number, d->body->type);
    if (!rule)
        return cudnn_fail(CUDNN_NOT_SUPPORTED, "a descriptor %s has no attribute %d", type_name(d->body->type), number);
    const struct attribute *a = body_find(d->body, number);
    if (room < 0 || type < 0 || type > 63 || !(rule->types & 1ull << type) || (a && a->type != type))
        return cudnn_fail(CUDNN_BAD_PARAM_ATTRIBUTE_TYPE, "%s is not of type %d", rule->name, type);
    int64_t there = a ? a->count : 0;
    if (count)
        *count = values && room && room < there ? room : there;
    if (!a)
        return count ? 0 : cudnn_fail(CUDNN_BAD_PARAM, "%s was not set", rule->name);
    if (!values || !room)
        return count ? 0 : cudnn_fail(CUDNN_BAD_PARAM_NULL_POINTER, "%s: no place for values or their number", rule->name);
    if (type == VALUE_BACKEND_DESCRIPTOR)
        return get_descriptors(a, rule, room, values);
    memcpy(values, a->values, (size_t)(room < there ? room : there) * value_bytes(type));
    return 0;
}

int cudnnBackendFinalize(struct descriptor *d)
{
    int error = check(d);
    if (error)
        return error;
    if (d->body->is_final)
        return 0;
    const struct rule *unmet = rule_unmet(d->body);
    if (unmet)
        return cudnn_fail(CUDNN_BAD_PARAM, "%s was not set", unmet->name);
    error = graph_finalize(d->body);
    if (!error)
        d->body->is_final = true;
    return error;
}

int cudnnBackendExecute(const void *handle, const struct descriptor *plan, const struct descriptor *pack)
{
    int error = cudnn_check_handle(handle);
    if (!error)
        error = check(plan);
    if (!error)
        error = check(pack);
    if (error)
        return error;
    if (plan->body->type != DESCRIPTOR_EXECUTION_PLAN || pack->body->type != DESCRIPTOR_VARIANT_PACK)
        return cudnn_fail(CUDNN_BAD_PARAM_DESCRIPTOR_TYPE, "execution wants a plan and a variant pack");
    if (!plan->body->is_final || !pack->body->is_final)
        return cudnn_fail(CUDNN_BAD_PARAM_NOT_FINALIZED, "the plan or the variant pack is not finalised");
    return graph_execute(handle, plan->body, pack->body);
}
