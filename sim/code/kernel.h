/* kernel.h: modules, functions, and launches of kernels, which do nothing, but for a few that are known by name. LOCKING: the model's lock. */
#ifndef CENOTE_SIM_KERNEL_H
#define CENOTE_SIM_KERNEL_H

#include "sim/order/stream.h"

struct function {
    char    *name;          /* owned */
    uint32_t module;        /* 0: of none, launched by name */
    uint32_t next;          /* in its bucket */
    uint32_t sibling;       /* next of its module */
    uint32_t hash;
    unsigned known;         /* 0: its kernel does nothing */
    int      attributes[CU_FUNC_ATTRIBUTE_MAX];
};

/* --- modules.c: modules, libraries, and their functions and variables */
void     modules_reset(void);
void     modules_close_all(uint32_t context);
uint32_t function_named(uint32_t module, const char *name);     /* 0: no room */
uint32_t function_find(const void *handle, const char *call);   /* CUfunction or CUkernel; 0, and a violation: none */
CUfunction function_handle(uint32_t number);
struct function *function_at(uint32_t number);                  /* NULL: its module was unloaded */
bool     function_is_usable(uint32_t number, uint32_t context);
bool     function_is_alike(uint32_t number, uint32_t other);     /* usable in the same contexts */
bool     module_is_library(uint32_t number);
void    *module_handle(uint32_t number);
CUresult module_load(CUmodule *module, const char *path);
CUresult module_load_data(CUmodule *module, const void *image);
CUresult module_load_with(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values);
CUresult module_unload(CUmodule module);
CUresult module_function(CUfunction *function, CUmodule module, const char *name);
CUresult module_function_count(unsigned *count, CUmodule module);
CUresult module_global(CUdeviceptr *at, size_t *bytes, CUmodule module, const char *name);
CUresult module_loading_mode(CUmoduleLoadingMode *mode);
CUresult library_load(CUlibrary *library, const void *code, CUjit_option *options, void **values, unsigned count);
CUresult library_load_file(CUlibrary *library, const char *path, CUjit_option *options, void **values, unsigned count);
CUresult library_unload(CUlibrary library);
CUresult library_kernel(CUkernel *kernel, CUlibrary library, const char *name);
CUresult library_kernel_count(unsigned *count, CUlibrary library);
CUresult library_kernels(CUkernel *kernels, unsigned count, CUlibrary library);
CUresult library_module(CUmodule *module, CUlibrary library);
CUresult library_global(CUdeviceptr *at, size_t *bytes, CUlibrary library, const char *name);

/* --- functions.c: what can be asked of a function */
CUresult kernel_function(CUfunction *function, CUkernel kernel);
CUresult kernel_library(CUlibrary *library, CUkernel kernel);
CUresult kernel_attribute(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device);
CUresult kernel_set_attribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device);
CUresult kernel_set_cache(CUkernel kernel, CUfunc_cache config, CUdevice device);
CUresult kernel_name(const char **name, CUkernel kernel);
CUresult function_attribute(int *value, CUfunction_attribute attribute, CUfunction function);
CUresult function_set_attribute(CUfunction function, CUfunction_attribute attribute, int value);
CUresult function_set_cache(CUfunction function, CUfunc_cache config);
CUresult function_set_banks(CUfunction function, CUsharedconfig config);
CUresult function_name(const char **name, CUfunction function);
CUresult function_module(CUmodule *module, CUfunction function);
CUresult function_load(CUfunction function);
CUresult function_is_loaded(CUfunctionLoadingState *state, CUfunction function);
CUresult occupancy_blocks(int *blocks, CUfunction function, int block, size_t shared, unsigned flags);
CUresult occupancy_block_size(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared, int most,
                              unsigned flags);  /* takes the lock itself: it calls the program */
uint64_t occupancy_resident(uint32_t function, int device, int block, size_t shared);     /* blocks that run at once on the device */
CUresult occupancy_shared(size_t *shared, CUfunction function, int blocks, int block);

/* --- known.c: kernels that do something */
unsigned known_kernel(const char *name);        /* 0: not one of them */
struct work known_work(unsigned known, void **parameters);

/* --- kernels.c: launches */
struct launch {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared;
    bool     cooperative;
};
CUresult function_set_block(CUfunction function, int x, int y, int z);
CUresult function_set_shared(CUfunction function, unsigned bytes);

CUresult kernel_check(uint32_t function, int device, const struct launch *launch);
CUresult kernel_launch(CUfunction function, const struct launch *launch, CUstream stream, void **parameters, void **extra);
CUresult kernel_launch_with(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra, CUstream stream);

/* --- linker.c: images made of nothing */
void     linkers_reset(void);
CUresult link_create(unsigned count, CUjit_option *options, void **values, CUlinkState *state);
CUresult link_add(CUlinkState state, CUjitInputType type, void *data, size_t size, unsigned count, CUjit_option *options, void **values);
CUresult link_add_file(CUlinkState state, CUjitInputType type, const char *path, unsigned count, CUjit_option *options, void **values);
CUresult link_complete(CUlinkState state, void **image, size_t *bytes);
CUresult link_destroy(CUlinkState state);
CUresult jit_options_answer(unsigned count, const CUjit_option *options, void **values);    /* nothing was logged */
CUresult tensor_map_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *at, const cuuint64_t *extent,
                          const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps);
CUresult profiler_switch(void);

#endif
