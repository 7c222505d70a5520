/*
 * linker.c: what makes code and descriptions of tensors, neither of which is read: the linker of cuLink*, options of the compiler, tensor
 * maps. Arguments are checked as CUDA documents them; what comes out names itself simulated.
 */
#include <string.h>
#include <unistd.h>

#include "sim/code/kernel.h"

#define LINKERS_MAX 65536

struct linker {
    uint32_t inputs;
    bool     complete;
};

static struct slots linkers;

void linkers_reset(void)
{
    if (!linkers.items)
        slots_open(&linkers, sizeof(struct linker), LINKERS_MAX, SLOTS_OLDEST_FIRST);
    slots_clear(&linkers);
}

/* The bytes of a log are given as its room and answered as what was written: nothing. */
CUresult jit_options_answer(unsigned count, const CUjit_option *options, void **values)
{
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES || options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            values[i] = NULL;
    return CUDA_SUCCESS;
}

static struct linker *find(CUlinkState state, const char *call)
{
    uint32_t number = slots_number(&linkers, state);
    if (number)
        return slots_at(&linkers, number);
    model_violation("%s: %p was destroyed or never created", call, (void *)state);
    return NULL;
}

CUresult link_create(unsigned count, CUjit_option *options, void **values, CUlinkState *state)
{
    CUresult result = state ? jit_options_answer(count, options, values) : CUDA_ERROR_INVALID_VALUE;
    uint32_t number = result ? 0 : slots_take(&linkers);
    if (!number)
        return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    *state = slots_handle(&linkers, number);
    return CUDA_SUCCESS;
}

static CUresult add(CUlinkState state, CUjitInputType type, bool there, const char *call)
{
    struct linker *l = find(state, call);
    if (!l || l->complete)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!there || (unsigned)type >= CU_JIT_NUM_INPUT_TYPES)
        return CUDA_ERROR_INVALID_VALUE;
    l->inputs++;
    return CUDA_SUCCESS;
}

CUresult link_add(CUlinkState state, CUjitInputType type, void *data, size_t size, unsigned count, CUjit_option *options, void **values)
{
    CUresult result = jit_options_answer(count, options, values);
    return result ? result : add(state, type, data && size, "cuLinkAddData");
}

CUresult link_add_file(CUlinkState state, CUjitInputType type, const char *path, unsigned count, CUjit_option *options, void **values)
{
    CUresult result = jit_options_answer(count, options, values);
    if (!result && path && access(path, R_OK))
        result = CUDA_ERROR_FILE_NOT_FOUND;
    return result ? result : add(state, type, path, "cuLinkAddFile");
}

CUresult link_complete(CUlinkState state, void **image, size_t *bytes)
{
    static char nothing[] = "code of a simulated GPU";
    struct linker *l = find(state, "cuLinkComplete");
    if (!l)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!image || !l->inputs)
        return CUDA_ERROR_INVALID_VALUE;
    l->complete = true;
    *image = nothing;
    if (bytes)
        *bytes = sizeof nothing;
    return CUDA_SUCCESS;
}

CUresult link_destroy(CUlinkState state)
{
    if (!find(state, "cuLinkDestroy"))
        return CUDA_ERROR_INVALID_HANDLE;
    slots_give(&linkers, slots_number(&linkers, state));
    return CUDA_SUCCESS;
}

/* The limits of the documentation of cuTensorMapEncodeTiled; the map itself is opaque and holds a mark and the address. */
CUresult tensor_map_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at, const cuuint64_t *extent,
                          const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps)
{
    if (!map || (uintptr_t)map % 64 || !at || (uintptr_t)at % 16 || !extent || !box || !steps || (unsigned)type > 32)
        return CUDA_ERROR_INVALID_VALUE;
    if (!rank || rank > 5 || (rank > 1 && !strides))
        return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++) {
        bool fits = extent[i] && extent[i] <= 1ull << 32 && box[i] && box[i] <= 256 && steps[i] && steps[i] <= 8;
        if (!fits || (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40)))
            return CUDA_ERROR_INVALID_VALUE;
    }
    memset(map, 0, sizeof *map);
    memcpy((char *)map, "simulated", 9);
    memcpy((char *)map + 16, &at, sizeof at);
    return CUDA_SUCCESS;
}

/* There is nothing to profile on a device that does nothing. */
CUresult profiler_switch(void)
{
    return CUDA_SUCCESS;
}
