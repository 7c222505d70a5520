/*
 * modules.c: modules and libraries, and the functions and variables in them.
 *
 * Code is never read: any image is a module, it has a function of any name that is asked for, and a variable of any name, which is
 * device memory of GLOBAL_BYTES, zeroed. A function comes into being when it is first asked for. What CUDA tells apart as CUkernel (of a
 * library) and CUfunction (of that library in one context) is one thing with one handle here, and so are a library and its module.
 *
 *     module      of the context that loaded it, and ends with it
 *     library     of no context; its variables are of the context that asked
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/code/kernel.h"
#include "sim/memory/memory.h"

#define MODULES_MAX (1u << 18)
#define FUNCTIONS_MAX (1u << 20)
#define GLOBALS_MAX (1u << 18)
#define BUCKETS 65536
#define GLOBAL_BYTES 65536      /* of every variable: as large as constant memory, so that any __constant__ fits */

struct module {
    bool     library;
    uint32_t context;           /* 0: library */
    uint32_t functions;         /* list; count of them */
    uint32_t count;
    uint32_t globals;           /* list */
};

struct global {
    char    *name;              /* owned */
    uint32_t context;
    uint32_t next;
    uint64_t allocation;        /* by its lasting name: the context may have ended before the library */
};

static struct slots modules;
static struct slots functions;
static struct slots globals;
static uint32_t buckets[BUCKETS];

static struct module *module_at(uint32_t number)
{
    return slots_at(&modules, number);
}

static struct global *global_at(uint32_t number)
{
    return slots_at(&globals, number);
}

void modules_reset(void)
{
    if (!modules.items) {
        slots_open(&modules, sizeof(struct module), MODULES_MAX, SLOTS_OLDEST_FIRST);
        slots_open(&functions, sizeof(struct function), FUNCTIONS_MAX, SLOTS_OLDEST_FIRST);
        slots_open(&globals, sizeof(struct global), GLOBALS_MAX, SLOTS_OLDEST_FIRST);
    }
    for (uint32_t i = 1; i < functions.used; i++)
        free(((struct function *)slots_at(&functions, i))->name);
    for (uint32_t i = 1; i < globals.used; i++)
        free(global_at(i)->name);
    slots_clear(&modules);
    slots_clear(&functions);
    slots_clear(&globals);
    memset(buckets, 0, sizeof buckets);
}

bool module_is_library(uint32_t number)
{
    return module_at(number)->library;
}

void *module_handle(uint32_t number)
{
    return slots_handle(&modules, number);
}

static uint32_t hash_of(uint32_t module, const char *name)
{
    uint32_t hash = 2166136261u ^ module;   /* FNV-1a */
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return hash;
}

struct function *function_at(uint32_t number)
{
    return slots_is_live(&functions, number) ? slots_at(&functions, number) : NULL;
}

CUfunction function_handle(uint32_t number)
{
    return slots_handle(&functions, number);
}

static uint32_t add_function(uint32_t module, const char *name, uint32_t hash)
{
    static const int attributes[CU_FUNC_ATTRIBUTE_MAX] = {
#define FUNCTION(attribute, value, least, most) [CU_FUNC_ATTRIBUTE_##attribute] = (value),
#include "sim/code/functions.def"
#undef FUNCTION
    };
    char *copy = strdup(name);
    uint32_t number = copy ? slots_take(&functions) : 0;
    if (!number) {
        free(copy);
        return 0;
    }
    struct function *f = function_at(number);
    *f = (struct function){.name = copy, .module = module, .hash = hash, .known = known_kernel(name),
        .next = buckets[hash % BUCKETS]};
    memcpy(f->attributes, attributes, sizeof attributes);
    buckets[hash % BUCKETS] = number;
    if (module) {
        f->sibling = module_at(module)->functions;
        module_at(module)->functions = number;
        module_at(module)->count++;
    }
    return number;
}

uint32_t function_named(uint32_t module, const char *name)
{
    uint32_t hash = hash_of(module, name);
    for (uint32_t i = buckets[hash % BUCKETS]; i; i = function_at(i)->next) {
        const struct function *f = function_at(i);
        if (f->hash == hash && f->module == module && strcmp(f->name, name) == 0)
            return i;
    }
    return add_function(module, name, hash);
}

static void remove_function(uint32_t number)
{
    struct function *f = function_at(number);
    uint32_t *link = &buckets[f->hash % BUCKETS];
    while (*link != number)
        link = &function_at(*link)->next;
    *link = f->next;
    free(f->name);
    f->name = NULL;
    slots_give(&functions, number);
}

uint32_t function_find(const void *handle, const char *call)
{
    uint32_t number = slots_number(&functions, handle);
    if (!number)
        model_violation("%s: function %p was never got, or its module was unloaded", call, handle);
    return number;
}

bool function_is_usable(uint32_t number, uint32_t context)
{
    const struct function *f = function_at(number);
    return !f->module || module_at(f->module)->library || module_at(f->module)->context == context;
}

static uint32_t context_of(uint32_t number)
{
    const struct function *f = function_at(number);
    return f && f->module ? module_at(f->module)->context : 0;
}

bool function_is_alike(uint32_t number, uint32_t other)
{
    return context_of(number) == context_of(other) || !context_of(number) || !context_of(other);
}

static void end_global(uint32_t number)
{
    struct global *g = global_at(number);
    uint32_t allocation = allocation_named(g->allocation);
    if (allocation)
        allocation_free(allocation_at(allocation)->at);
    free(g->name);
    g->name = NULL;
    slots_give(&globals, number);
}

static void close_module(uint32_t number)
{
    struct module *m = module_at(number);
    for (uint32_t i = m->functions, next; i; i = next) {
        next = function_at(i)->sibling;
        remove_function(i);
    }
    for (uint32_t i = m->globals, next; i; i = next) {
        next = global_at(i)->next;
        end_global(i);
    }
    slots_give(&modules, number);
}

void modules_close_all(uint32_t context)
{
    for (uint32_t i = 1; i < modules.used; i++)
        if (slots_is_live(&modules, i) && module_at(i)->context == context)
            close_module(i);
}

static CUresult open_module(void **handle, bool library)
{
    uint32_t number = slots_take(&modules);
    if (!number)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *module_at(number) = (struct module){.library = library, .context = library ? 0 : context_current()};
    *handle = slots_handle(&modules, number);
    return CUDA_SUCCESS;
}

static CUresult load(void **handle, bool library, const void *image, unsigned count, const CUjit_option *options, void **values)
{
    if (!handle || !image)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = jit_options_answer(count, options, values);
    return result ? result : open_module(handle, library);
}

static CUresult load_file(void **handle, bool library, const char *path, unsigned count, const CUjit_option *options, void **values)
{
    if (!path)
        return CUDA_ERROR_INVALID_VALUE;
    return access(path, R_OK) ? CUDA_ERROR_FILE_NOT_FOUND : load(handle, library, path, count, options, values);
}

CUresult module_load(CUmodule *module, const char *path)
{
    return load_file((void **)module, false, path, 0, NULL, NULL);
}

CUresult module_load_data(CUmodule *module, const void *image)
{
    return load((void **)module, false, image, 0, NULL, NULL);
}

CUresult module_load_with(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values)
{
    return load((void **)module, false, image, count, options, values);
}

CUresult library_load(CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned count)
{
    return load((void **)library, true, code, count, options, values);
}

CUresult library_load_file(CUlibrary *library, const char *path, CUjit_option *options, void **values, unsigned count)
{
    return load_file((void **)library, true, path, count, options, values);
}

static uint32_t find(const void *handle, const char *call)
{
    uint32_t number = slots_number(&modules, handle);
    if (!number)
        model_violation("%s: %p was unloaded or never loaded", call, handle);
    return number;
}

CUresult module_unload(CUmodule module)
{
    uint32_t number = find(module, "cuModuleUnload");
    if (!number)
        return CUDA_ERROR_INVALID_HANDLE;
    if (module_at(number)->library)
        return model_refuse(CUDA_ERROR_NOT_PERMITTED, "cuModuleUnload: the module is a library's");
    close_module(number);
    return CUDA_SUCCESS;
}

CUresult library_unload(CUlibrary library)
{
    uint32_t number = find(library, "cuLibraryUnload");
    if (!number || !module_at(number)->library)
        return CUDA_ERROR_INVALID_HANDLE;
    close_module(number);
    return CUDA_SUCCESS;
}

static CUresult get_function(void **function, const void *handle, const char *name, const char *call)
{
    uint32_t number = find(handle, call);
    if (!number)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!function || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!*name)
        return CUDA_ERROR_NOT_FOUND;
    uint32_t found = function_named(number, name);
    if (!found)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *function = slots_handle(&functions, found);
    return CUDA_SUCCESS;
}

CUresult module_function(CUfunction *function, CUmodule module, const char *name)
{
    return get_function((void **)function, module, name, "cuModuleGetFunction");
}

CUresult library_kernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    return get_function((void **)kernel, library, name, "cuLibraryGetKernel");
}

/* Those that were asked for: no other is known. */
static CUresult count_functions(unsigned *count, const void *handle, const char *call)
{
    uint32_t number = find(handle, call);
    if (!number)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = module_at(number)->count;
    return CUDA_SUCCESS;
}

CUresult module_function_count(unsigned *count, CUmodule module)
{
    return count_functions(count, module, "cuModuleGetFunctionCount");
}

CUresult library_kernel_count(unsigned *count, CUlibrary library)
{
    return count_functions(count, library, "cuLibraryGetKernelCount");
}

CUresult library_kernels(CUkernel *kernels, unsigned count, CUlibrary library)
{
    uint32_t number = find(library, "cuLibraryEnumerateKernels");
    if (!number)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!kernels)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t function = module_at(number)->functions;
    for (unsigned i = 0; i < count && function; i++, function = function_at(function)->sibling)
        kernels[i] = slots_handle(&functions, function);
    return CUDA_SUCCESS;
}

CUresult library_module(CUmodule *module, CUlibrary library)
{
    uint32_t number = find(library, "cuLibraryGetModule");
    if (!number || !module_at(number)->library)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    *module = slots_handle(&modules, number);
    return CUDA_SUCCESS;
}

static void zero(uint64_t at)
{
    struct piece piece;
    for (uint64_t done = 0; done < GLOBAL_BYTES && !virtual_piece(context_current(), at + done, GLOBAL_BYTES - done, true, &piece);) {
        contents_fill(piece.offset, 0, 1, piece.bytes);
        done += piece.bytes;
    }
}

static CUresult add_global(struct module *m, const char *name, uint32_t *number)
{
    CUdeviceptr at;
    CUresult result = plain_alloc(&at, GLOBAL_BYTES);
    if (result)
        return result;
    char *copy = strdup(name);
    *number = copy ? slots_take(&globals) : 0;
    if (!*number) {
        free(copy);
        allocation_free(at);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    zero(at);
    uint64_t allocation = allocation_name(allocation_starting(at));
    *global_at(*number) = (struct global){.name = copy, .context = context_current(), .next = m->globals, .allocation = allocation};
    m->globals = *number;
    return CUDA_SUCCESS;
}

static CUresult get_global(CUdeviceptr *at, size_t *bytes, const void *handle, const char *name, const char *call)
{
    uint32_t number = find(handle, call);
    if (!number)
        return CUDA_ERROR_INVALID_HANDLE;
    struct module *m = module_at(number);
    if (!name || (!at && !bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (m->context && m->context != context_current())
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "%s: the module is of another context", call);
    uint32_t global = m->globals;
    while (global && (global_at(global)->context != context_current() || !allocation_named(global_at(global)->allocation) ||
                      strcmp(global_at(global)->name, name)))
        global = global_at(global)->next;
    CUresult result = global ? CUDA_SUCCESS : add_global(m, name, &global);
    if (result)
        return result;
    if (at)
        *at = allocation_at(allocation_named(global_at(global)->allocation))->at;
    if (bytes)
        *bytes = GLOBAL_BYTES;
    return CUDA_SUCCESS;
}

CUresult module_global(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name)
{
    return get_global(at, bytes, module, name, "cuModuleGetGlobal");
}

CUresult library_global(CUdeviceptr *at, size_t *bytes, CUlibrary library, const char *name)
{
    return get_global(at, bytes, library, name, "cuLibraryGetGlobal");
}

CUresult module_loading_mode(CUmoduleLoadingMode *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}
