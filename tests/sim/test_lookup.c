/* test_lookup.c: cuGetProcAddress, and that the library has every entry point of driver/driver.def. CUDA driver API only. */
#include <dlfcn.h>
#include <link.h>

#include "tests/sim/machine.h"

static void *look_up(const char *name, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    void *function = (void *)1;
    EXPECT_OK(cuGetProcAddress(name, &function, version, flags, status));
    return function;
}

CASE(every_entry_point_of_the_driver_table_is_found)
{
    CUdriverProcAddressQueryResult status;
    char shared[64]; /* the name that all forms have */
#define DRIVER(need, time, name, version, parameters, arguments)                          \
    snprintf(shared, sizeof shared, "%s", #name);                                         \
    shared[strstr(shared, "_v") ? strstr(shared, "_v") - shared : 63] = 0;                \
    EXPECT(look_up(shared, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status) != NULL); \
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
#include "driver/driver.def"
#undef DRIVER
}

CASE(the_function_found_is_the_exported_one)
{
    CUdriverProcAddressQueryResult status;
    EXPECT_EQ(look_up("cuMemAlloc", 3020, 0, &status), dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
    EXPECT_EQ(look_up("cuMemcpyHtoD", 3020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status),
              dlsym(RTLD_DEFAULT, "cuMemcpyHtoD_v2_ptds"));
    EXPECT_EQ(look_up("cuEventRecord", 2000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status), dlsym(RTLD_DEFAULT, "cuEventRecord_ptsz"));
}

CASE(versions_choose_between_variants)
{
    CUdriverProcAddressQueryResult status;
    EXPECT_EQ(look_up("cuStreamGetCaptureInfo", 10010, 0, &status), dlsym(RTLD_DEFAULT, "cuStreamGetCaptureInfo"));
    EXPECT_EQ(look_up("cuStreamGetCaptureInfo", 12000, 0, &status), dlsym(RTLD_DEFAULT, "cuStreamGetCaptureInfo_v2"));
    EXPECT_EQ(look_up("cuStreamGetCtx", 12040, 0, &status), dlsym(RTLD_DEFAULT, "cuStreamGetCtx"));
    EXPECT_EQ(look_up("cuStreamGetCtx", 12050, 0, &status), dlsym(RTLD_DEFAULT, "cuStreamGetCtx_v2"));
    EXPECT_EQ(look_up("cuStreamGetCaptureInfo", 12030, 0, &status), dlsym(RTLD_DEFAULT, "cuStreamGetCaptureInfo_v3"));
}

CASE(a_version_before_the_entry_point_is_not_sufficient)
{
    CUdriverProcAddressQueryResult status;
    EXPECT_EQ(look_up("cuMemCreate", 9000, 0, &status), NULL);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

CASE(an_unknown_name_is_not_found)
{
    CUdriverProcAddressQueryResult status;
    EXPECT_EQ(look_up("cuMemConjure", 12000, 0, &status), NULL);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

CASE(a_version_beyond_the_driver_is_refused)
{
    void *function;
    int version = 0;
    REQUIRE_OK(cuDriverGetVersion(&version));
    EXPECT_EQ(cuGetProcAddress("cuInit", &function, version + 10, 0, NULL), CUDA_ERROR_INVALID_VALUE);
}

CASE(zero_is_the_own_stream_in_per_thread_variants)
{
    CUdriverProcAddressQueryResult status;
    unsigned long long own = 0, found = 0;
    CUresult (*get_id)(CUstream, unsigned long long *);
    void *function = look_up("cuStreamGetId", 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status);
    REQUIRE(function != NULL);
    memcpy(&get_id, &function, sizeof function);
    EXPECT_OK(get_id(NULL, &found));
    EXPECT_OK(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
    EXPECT_EQ(found, own);
}

/* A thread that used it, and ends after a dlclose, would come back to nothing. */
CASE(the_library_stays_once_it_is_loaded)
{
    Dl_info place;
    struct link_map *map = NULL;
    uint64_t flags = 0;
    REQUIRE(dladdr(__extension__(void *)cuInit, &place));
    void *library = dlopen(place.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    REQUIRE(library && !dlinfo(library, RTLD_DI_LINKMAP, &map));
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        flags |= entry->d_tag == DT_FLAGS_1 ? entry->d_un.d_val : 0;
    EXPECT(flags & DF_1_NODELETE);
    dlclose(library);
}

SUITE_MAIN_AROUND("simulated driver: lookup", machine_begin, machine_end)
