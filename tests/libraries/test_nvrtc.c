/*
 * test_nvrtc.c: the simulated run-time compiler: programs, their images and names. Prototypes are written out here.
 */
#include <stdlib.h>

#include "tests/libraries/device.h"

typedef void *handle;

int nvrtcCreateProgram(handle *, const char *, const char *, int, const char *const *, const char *const *);
int nvrtcDestroyProgram(handle *);
int nvrtcCompileProgram(handle, int, const char *const *);
int nvrtcAddNameExpression(handle, const char *);
int nvrtcGetLoweredName(handle, const char *, const char **);
int nvrtcGetPTXSize(handle, size_t *);
int nvrtcGetPTX(handle, char *);
int nvrtcGetCUBINSize(handle, size_t *);
int nvrtcGetLTOIRSize(handle, size_t *);
int nvrtcGetLTOIR(handle, char *);
int nvrtcGetProgramLogSize(handle, size_t *);
int nvrtcGetNumSupportedArchs(int *);
int nvrtcGetSupportedArchs(int *);
int nvrtcVersion(int *, int *);
const char *nvrtcGetErrorString(int);

CASE(a_compiled_program_is_a_module)
{
    handle program = NULL;
    const char *name = NULL, *virtual_machine[] = {"--std=c++17", "--gpu-architecture=compute_90"}, *real[] = {"-arch", "sm_100a"};
    char image[256];
    size_t size = 7;
    int major = 0, minor = -1;
    CUmodule module;
    CUfunction function;
    begin();
    EXPECT(!getenv("USE_PYTORCH_KERNEL_CACHE")); /* loading the library changes nothing */
    OK(nvrtcVersion(&major, &minor));
    EXPECT_TEXT_EQ(getenv("USE_PYTORCH_KERNEL_CACHE"), "0");
    EXPECT_EQ(major, CUDA_VERSION / 1000);
    EXPECT_EQ(nvrtcCompileProgram(NULL, 0, NULL), 4);
    EXPECT_EQ(nvrtcGetPTXSize(NULL, &size), 4);
    EXPECT_EQ(nvrtcCreateProgram(&program, NULL, "x", 0, NULL, NULL), 3);
    MUST(nvrtcCreateProgram(&program, "source", "x", 0, NULL, NULL));
    OK(nvrtcGetPTXSize(program, &size));
    EXPECT_EQ(size, 0);
    OK(nvrtcAddNameExpression(program, "kernel<float>"));
    EXPECT_EQ(nvrtcGetLoweredName(program, "kernel<float>", &name), 9);
    OK(nvrtcCompileProgram(program, 2, virtual_machine));
    EXPECT_EQ(nvrtcAddNameExpression(program, "late"), 8);
    OK(nvrtcGetLoweredName(program, "kernel<float>", &name));
    EXPECT_EQ(nvrtcGetLoweredName(program, "kernel<int>", &name), 10);
    OK(nvrtcGetProgramLogSize(program, &size));
    EXPECT_EQ(size, 1);
    OK(nvrtcGetCUBINSize(program, &size));
    EXPECT_EQ(size, 0); /* only real architectures have machine code */
    OK(nvrtcGetPTXSize(program, &size));
    REQUIRE(size > 1 && size <= sizeof image);
    OK(nvrtcGetPTX(program, image));
    EXPECT_EQ(strlen(image) + 1, size);
    EXPECT(strstr(image, ".target sm_90\n") != NULL);
    MUST(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, name));
    OK(cuModuleUnload(module));
    OK(nvrtcCompileProgram(program, 2, real));
    OK(nvrtcGetCUBINSize(program, &size));
    EXPECT(size > 1);
    OK(nvrtcDestroyProgram(&program));
    EXPECT(!program);
    EXPECT_EQ(nvrtcDestroyProgram(&program), 4);
    EXPECT_TEXT_EQ(nvrtcGetErrorString(6), "NVRTC_ERROR_COMPILATION");
}

CASE(code_for_the_linker_is_made_if_asked_for)
{
    handle program = NULL;
    const char *options[] = {"-arch=compute_90", "-dlto"};
    char image[256];
    size_t size = 7;
    begin();
    MUST(nvrtcCreateProgram(&program, "source", "x", 0, NULL, NULL));
    OK(nvrtcCompileProgram(program, 1, options));
    OK(nvrtcGetLTOIRSize(program, &size));
    EXPECT_EQ(size, 0);
    OK(nvrtcCompileProgram(program, 2, options));
    OK(nvrtcGetLTOIRSize(program, &size));
    REQUIRE(size > 1 && size <= sizeof image);
    OK(nvrtcGetLTOIR(program, image));
    EXPECT_EQ(strlen(image) + 1, size);
    OK(nvrtcDestroyProgram(&program));
}

CASE(architectures)
{
    int count = 0, list[64] = {0};
    bool has_the_devices = false;
    EXPECT_EQ(nvrtcGetNumSupportedArchs(NULL), 3);
    EXPECT_EQ(nvrtcGetSupportedArchs(NULL), 3);
    OK(nvrtcGetNumSupportedArchs(&count));
    REQUIRE(count > 0 && count < 64);
    OK(nvrtcGetSupportedArchs(list));
    for (int i = 0; i < count; i++) {
        EXPECT(list[i] > (i ? list[i - 1] : 0));
        has_the_devices = has_the_devices || list[i] == 90;
    }
    EXPECT(has_the_devices && !list[count]);
}

CASE(who_wants_the_cache_keeps_it)
{
    int major, minor;
    setenv("USE_PYTORCH_KERNEL_CACHE", "1", 1);
    OK(nvrtcVersion(&major, &minor));
    EXPECT_TEXT_EQ(getenv("USE_PYTORCH_KERNEL_CACHE"), "1");
}

SUITE_MAIN("nvrtc")
