/*
 * arrays.c: CUDA arrays and mipmapped arrays: device memory that programs name by coordinates, and reach with copies alone.
 *
 * An array is a block of ordinary device memory (plain.c) that no address leads to: rows of a multiple of 64 bytes, eight of them or a
 * multiple, layer after layer. A real device lays elements out in tiles of that size, in an order that it tells no program. A mipmapped
 * array is one block with an array for each level in it.
 *
 *     created -> destroyed, or ended with its context       a level lives as long as the mipmapped array
 *
 * Not simulated: block-compressed formats and those of video, and arrays whose memory the program maps itself (sparse, deferred): these are
 * not supported.
 *
 * LOCKING: the model's lock.
 */
#include "sim/memory/arrays.h"

#include "sim/machine/model.h"
#include "sim/machine/numbers.h"
#include "sim/memory/memory.h"

#define ARRAYS_MAX (1u << 20)
#define ROW_STEP 64
#define ROWS_STEP 8
#define LEVEL_STEP 512
#define KNOWN_FLAGS (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER | \
                     CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT)
#define OWN_MEMORY_FLAGS (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

enum kind { KIND_WRONG, LINE, LINES, PLANE, PLANES, BOX, CUBE, CUBES };
enum use { TEXTURE, SURFACE, MIPMAPPED, GATHER };

static struct slots arrays;

void arrays_reset(void)
{
    if (!arrays.items)
        slots_open(&arrays, sizeof(struct array), ARRAYS_MAX, SLOTS_OLDEST_FIRST);
    slots_clear(&arrays);
}

static struct array *array_numbered(uint32_t number)
{
    return slots_at(&arrays, number);
}

uint32_t array_element(CUarray_format format, unsigned channels)
{
    switch ((int)format) {
#define FORMAT(name, bytes, count)                                                                   \
    case CU_AD_FORMAT_##name:                                                                        \
        return (count ? channels == count : channels == 1 || channels == 2 || channels == 4) ? (uint32_t)(bytes) * channels : 0;
#define LIMIT(...)
#include "sim/memory/arrays.def"
#undef FORMAT
#undef LIMIT
    default:
        return 0;
    }
}

static struct array *find(const void *handle, bool mipmapped)
{
    uint32_t number = slots_number(&arrays, handle);
    struct array *a = number ? array_numbered(number) : NULL;
    return a && !a->levels == !mipmapped ? a : NULL;
}

struct array *array_find(CUarray handle)
{
    return find(handle, false);
}

struct array *array_find_mipmapped(CUmipmappedArray handle)
{
    return find(handle, true);
}

/* --- which shapes there are */

static enum kind kind_of(const CUDA_ARRAY3D_DESCRIPTOR *s)
{
    bool layered = s->Flags & CUDA_ARRAY3D_LAYERED;
    if (!s->Width)
        return KIND_WRONG;
    if (s->Flags & CUDA_ARRAY3D_CUBEMAP) {
        bool sides = s->Width == s->Height && (layered ? s->Depth && s->Depth % 6 == 0 : s->Depth == 6);
        return !sides ? KIND_WRONG : layered ? CUBES : CUBE;
    }
    if (layered)
        return !s->Depth ? KIND_WRONG : s->Height ? PLANES : LINES;
    if (s->Depth)
        return s->Height ? BOX : KIND_WRONG;
    return s->Height ? PLANE : LINE;
}

#define CU_DEVICE_ATTRIBUTE_MAXIMUM_NONE 0

static bool fits(size_t side, int attribute)
{
    int most;
    return !attribute || (!device_attribute(&most, (CUdevice_attribute)attribute, context_at(context_current())->device) && side <= (size_t)most);
}

/* A use without a row has the limits of a texture. */
static bool is_within(const CUDA_ARRAY3D_DESCRIPTOR *s, enum kind kind, enum use use)
{
    static const struct limit {
        enum kind kind;
        enum use  use;
        int       width, height, depth;
    } limits[] = {
#define FORMAT(...)
#define LIMIT(kind, use, width, height, depth)                                                                                   \
    {kind, use, CU_DEVICE_ATTRIBUTE_MAXIMUM_##width, CU_DEVICE_ATTRIBUTE_MAXIMUM_##height, CU_DEVICE_ATTRIBUTE_MAXIMUM_##depth},
#include "sim/memory/arrays.def"
#undef FORMAT
#undef LIMIT
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const struct limit *l = &limits[i];
        if (l->kind == kind && l->use == use && !(fits(s->Width, l->width) && fits(s->Height, l->height) && fits(s->Depth, l->depth)))
            return false;
    }
    return true;
}

/* Narrower, and deeper. */
static bool is_deep_box(const CUDA_ARRAY3D_DESCRIPTOR *s)
{
    return fits(s->Width, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE) &&
           fits(s->Height, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE) &&
           fits(s->Depth, CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE);
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *s, bool mipmapped)
{
    if (s->Flags & OWN_MEMORY_FLAGS)
        return CUDA_ERROR_NOT_SUPPORTED;
    enum kind kind = kind_of(s);
    bool gather = s->Flags & CUDA_ARRAY3D_TEXTURE_GATHER;
    if (!kind || s->Flags & ~(unsigned)KNOWN_FLAGS || !array_element(s->Format, s->NumChannels) || (gather && kind != PLANE))
        return CUDA_ERROR_INVALID_VALUE;
    bool within = is_within(s, kind, TEXTURE) || (kind == BOX && is_deep_box(s));
    if (!within || (mipmapped && !is_within(s, kind, MIPMAPPED)) || (gather && !is_within(s, kind, GATHER)) ||
        (s->Flags & CUDA_ARRAY3D_SURFACE_LDST && !is_within(s, kind, SURFACE)))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* --- beginning and end */

static uint64_t at_least_one(size_t side)
{
    return side ? side : 1;
}

/* What it takes. */
static uint64_t lay_out(struct array *a)
{
    uint64_t rows = a->shape.Height ? round_up(a->shape.Height, ROWS_STEP) : 1;
    a->element = array_element(a->shape.Format, a->shape.NumChannels);
    a->pitch = round_up(a->shape.Width * a->element, ROW_STEP);
    a->layer = a->pitch * rows;
    return a->layer * at_least_one(a->shape.Depth);
}

static void forget(uint32_t number)
{
    for (uint32_t level = array_numbered(number)->first; level;) {
        uint32_t next = array_numbered(level)->next;
        slots_give(&arrays, level);
        level = next;
    }
    slots_give(&arrays, number);
}

static void close_array(uint32_t allocation)
{
    forget(allocation_at(allocation)->pool);
    plain_leave(allocation);
}

static const struct allocation_end array_end = {.close = close_array};  /* cuMemFree refuses it */

/* Takes the memory, `bytes` of it. */
static CUresult open_array(uint32_t number, uint64_t bytes)
{
    struct array *a = array_numbered(number);
    a->context = context_current();
    CUresult result = plain_enter(ALLOCATION_ARRAY, &array_end, bytes, &a->allocation);
    if (result)
        return result;
    allocation_at(a->allocation)->pool = number;
    a->at = allocation_at(a->allocation)->at;
    return CUDA_SUCCESS;
}

CUresult array_create_3d(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    if (!handle || !shape)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check(shape, false);
    uint32_t number = result ? 0 : slots_take(&arrays);
    if (!number)
        return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    struct array *a = array_numbered(number);
    a->shape = *shape;
    result = open_array(number, lay_out(a));
    if (result)
        forget(number);
    else
        *handle = slots_handle(&arrays, number);
    return result;
}

CUresult array_create(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *s)
{
    if (!s)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = s->Width, .Height = s->Height, .Format = s->Format, .NumChannels = s->NumChannels};
    return array_create_3d(handle, &shape);
}

/* Halves each side that is not a count of layers. */
static CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR *whole, unsigned level)
{
    CUDA_ARRAY3D_DESCRIPTOR s = *whole;
    bool layers = s.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    s.Width = at_least_one(s.Width >> level);
    s.Height = s.Height ? at_least_one(s.Height >> level) : 0;
    s.Depth = s.Depth && !layers ? at_least_one(s.Depth >> level) : s.Depth;
    return s;
}

static unsigned levels_most(const CUDA_ARRAY3D_DESCRIPTOR *s)
{
    bool layers = s->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    size_t longest = s->Width > s->Height ? s->Width : s->Height;
    if (!layers && s->Depth > longest)
        longest = s->Depth;
    return 64 - (unsigned)__builtin_clzll(longest);
}

/* The last level is made first: each is put before the smaller ones. False: no more. */
static bool add_levels(uint32_t number, uint64_t *bytes)
{
    struct array *whole = array_numbered(number);
    *bytes = 0;
    for (unsigned i = whole->levels; i--;) {
        uint32_t level = slots_take(&arrays);
        if (!level)
            return false;
        struct array *a = array_numbered(level);
        *a = (struct array){.shape = level_of(&whole->shape, i), .whole = number, .context = context_current(), .next = whole->first};
        whole->first = level;
        *bytes = round_up(*bytes + lay_out(a), LEVEL_STEP);
    }
    return true;
}

static void place_levels(const struct array *whole)
{
    uint64_t at = whole->at;
    for (uint32_t level = whole->first; level; level = array_numbered(level)->next) {
        struct array *a = array_numbered(level);
        a->at = at;
        a->allocation = whole->allocation;
        at += round_up(a->layer * at_least_one(a->shape.Depth), LEVEL_STEP);
    }
}

CUresult array_create_mipmapped(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels)
{
    if (!handle || !shape)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = check(shape, true);
    uint32_t number = result ? 0 : slots_take(&arrays);
    if (!number)
        return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    struct array *a = array_numbered(number);
    a->shape = *shape;
    a->element = array_element(shape->Format, shape->NumChannels);
    unsigned most = levels_most(shape);
    a->levels = levels < 1 ? 1 : levels > most ? most : levels;
    uint64_t bytes;
    result = add_levels(number, &bytes) ? open_array(number, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result) {
        forget(number);
        return result;
    }
    place_levels(a);
    *handle = slots_handle(&arrays, number);
    return CUDA_SUCCESS;
}

CUresult array_level(CUarray *handle, CUmipmappedArray of, unsigned level)
{
    const struct array *whole = array_find_mipmapped(of);
    if (!whole)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!handle || level >= whole->levels)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t number = whole->first;
    while (level--)
        number = array_numbered(number)->next;
    *handle = slots_handle(&arrays, number);
    return CUDA_SUCCESS;
}

/* Waits for the device, as cuMemFree does. */
static CUresult destroy(const struct array *a, const char *call, const void *handle)
{
    if (!a || a->whole)
        return model_refuse(CUDA_ERROR_INVALID_HANDLE, "%s: %p is no such array", call, handle);
    if (!clock_go_to(context_at(a->context)->all_done))
        return MODEL_AGAIN;
    close_array(a->allocation);
    return CUDA_SUCCESS;
}

CUresult array_destroy(CUarray handle)
{
    return destroy(array_find(handle), "cuArrayDestroy", handle);
}

CUresult array_destroy_mipmapped(CUmipmappedArray handle)
{
    return destroy(array_find_mipmapped(handle), "cuMipmappedArrayDestroy", handle);
}

/* --- questions */

CUresult array_shape(CUDA_ARRAY_DESCRIPTOR *shape, CUarray handle)
{
    const struct array *a = array_find(handle);
    if (!shape || !a)
        return a ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    const CUDA_ARRAY3D_DESCRIPTOR *s = &a->shape;
    *shape = (CUDA_ARRAY_DESCRIPTOR){.Width = s->Width, .Height = s->Height, .Format = s->Format, .NumChannels = s->NumChannels};
    return CUDA_SUCCESS;
}

CUresult array_shape_3d(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray handle)
{
    const struct array *a = array_find(handle);
    if (!shape || !a)
        return a ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *shape = a->shape;
    return CUDA_SUCCESS;
}

CUresult array_lacks(CUarray handle)
{
    return array_find(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

CUresult array_lacks_mipmapped(CUmipmappedArray handle)
{
    return array_find_mipmapped(handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

CUarray array_holding(uint64_t at, uint64_t place[3])
{
    const struct allocation *owner = virtual_is_device_address(at) ? allocation_holding(at) : NULL;
    if (!owner || owner->kind != ALLOCATION_ARRAY)
        return NULL;
    uint32_t number = owner->pool;
    if (array_numbered(number)->levels)
        for (number = array_numbered(number)->first; array_numbered(number)->next; number = array_numbered(number)->next)
            if (at < array_numbered(array_numbered(number)->next)->at)
                break;
    const struct array *a = array_numbered(number);
    uint64_t offset = at - a->at;
    place[0] = offset % a->pitch;
    place[1] = offset % a->layer / a->pitch;
    place[2] = offset / a->layer;
    return slots_handle(&arrays, number);
}
