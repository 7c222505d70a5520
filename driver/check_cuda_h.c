/*
 * check_cuda_h.c: does driver.def say what cuda.h says? Compiled in every build, adds nothing to the library: a wrong row does not
 * compile.
 *
 * A function may be declared twice if both declarations agree. cuda.h has declared ours, under the versioned names that its macros
 * stand for, so declaring each row again compares the two. A row newer than the header is a first declaration, and passes.
 */
#include "driver/device.h"
#include "driver/driver.h"

#define DRIVER(need, time, name, version, parameters, arguments) CUresult name parameters;
#include "driver/driver.def"
#undef DRIVER

/* No row is newer than CUDA 12.5, so this header knows each: the version must be one that gives our parameter list its name. */
#if CUDA_VERSION >= 12050 && __has_include(<cudaTypedefs.h>)
#include <cudaTypedefs.h>
#define PFN_cuStreamGetCtx_v2_v12050 PFN_cuStreamGetCtx_v12050
#define PFN_cuStreamGetCaptureInfo_v2_v11030 PFN_cuStreamGetCaptureInfo_v11030
#define DRIVER(need, time, name, version, parameters, arguments) \
    _Static_assert(__builtin_types_compatible_p(PFN_##name##_v##version, CUresult (*) parameters), #name ": no such version");
#include "driver/driver.def"
#undef DRIVER
#endif

#if CUDA_VERSION >= 12080
_Static_assert((int)DECOMPRESSION_ALGORITHMS == (int)CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, "the attribute has another number");
_Static_assert(FOR_DECOMPRESSION == CU_MEM_CREATE_USAGE_HW_DECOMPRESS && FOR_DECOMPRESSION == CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS,
               "the flag has another bit");
#endif

/* results.def was written down from CUDA 13.0. */
#if CUDA_VERSION >= 13000
#define RESULT(code, name, effect) _Static_assert(name == code, #name " has another code");
#include "driver/results.def"
#undef RESULT
#endif
