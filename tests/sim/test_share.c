/* test_share.c: memory that processes hand to each other as file descriptors. The other processes are agents: see agent.h. */
#include <sys/syscall.h>

#include "sim/machine/files.c" /* to forge headers whose sum is right */
#include "tests/sim/agent.h"

static CUmemAllocationProp exportable(void)
{
    CUmemAllocationProp prop = machine_memory_of(0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return prop;
}

static CUresult export_to(int *file, CUmemGenericAllocationHandle handle)
{
    return cuMemExportToShareableHandle(file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static CUresult import_from(CUmemGenericAllocationHandle *handle, int file)
{
    return cuMemImportFromShareableHandle(handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/* Memory of this process, mapped, readable and writable; `handle` is held. */
static CUdeviceptr map_handle(CUmemGenericAllocationHandle handle, size_t bytes)
{
    CUdeviceptr at = 0;
    REQUIRE_OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
    REQUIRE_OK(cuMemMap(at, bytes, 0, handle, 0));
    machine_allow(at, bytes);
    return at;
}

static CUdeviceptr create_page(CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp prop = exportable();
    REQUIRE_OK(cuMemCreate(handle, SIMULATED_PAGE, &prop, 0));
    return map_handle(*handle, SIMULATED_PAGE);
}

/* --- file descriptors */

CASE(what_one_process_writes_another_reads)
{
    struct agent other;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = create_page(&handle), there;
    int file = -1;
    own_fill(at, 11, SIMULATED_PAGE); /* written before it was exported */
    REQUIRE_OK(export_to(&file, handle));
    EXPECT_EQ(own_differ(at, 11, SIMULATED_PAGE), 0);
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_import(&other, file, SIMULATED_PAGE, &there));
    EXPECT_EQ(agent_differ(&other, there, 11, SIMULATED_PAGE), 0);
    own_fill(at + 4096, 22, 4096);
    EXPECT_EQ(agent_differ(&other, there + 4096, 22, 4096), 0);
    EXPECT_OK(agent_fill(&other, there + 8192, 33, 4096));
    EXPECT_EQ(own_differ(at + 8192, 33, 4096), 0);
    EXPECT_EQ(own_differ(at, 11, 4096), 0);
    EXPECT_EQ(agent_violations(&other), 0);
    agent_end(&other);
    close(file);
    EXPECT_EQ(simulated_violations(), 0);
}

CASE(a_descriptor_is_fetched_by_pidfd)
{
    CUdeviceptr at, here;
    CUmemGenericAllocationHandle handle;
    struct agent other;
    int sent = -1;
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_create(&other, SIMULATED_PAGE, &at, &sent));
    EXPECT_OK(agent_fill(&other, at, 5, 4096));
    int process = (int)syscall(SYS_pidfd_open, getpid(), 0);
    REQUIRE(process >= 0);
    int file = (int)syscall(SYS_pidfd_getfd, process, sent, 0);
    REQUIRE(file >= 0);
    REQUIRE_OK(import_from(&handle, file));
    close(file);
    close(process);
    close(sent);
    here = map_handle(handle, SIMULATED_PAGE);
    EXPECT_EQ(own_differ(here, 5, 4096), 0);
    agent_end(&other);
}

CASE(imported_memory_outlives_its_exporter)
{
    struct agent other;
    CUdeviceptr at, here;
    CUmemGenericAllocationHandle handle;
    int file = -1;
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_create(&other, SIMULATED_PAGE, &at, &file));
    EXPECT_OK(agent_fill(&other, at, 77, SIMULATED_PAGE));
    REQUIRE_OK(import_from(&handle, file));
    close(file);
    agent_kill(&other);
    here = map_handle(handle, SIMULATED_PAGE);
    EXPECT_EQ(own_differ(here, 77, SIMULATED_PAGE), 0);
    EXPECT_OK(cuMemUnmap(here, SIMULATED_PAGE));
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_EQ(simulated_violations(), 0);
}

CASE(a_descriptor_alone_keeps_the_memory)
{
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr at = create_page(&handle);
    int file = -1;
    uint64_t used = simulated_books().used;
    own_fill(at, 3, SIMULATED_PAGE);
    REQUIRE_OK(export_to(&file, handle));
    EXPECT_OK(cuMemUnmap(at, SIMULATED_PAGE));
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_EQ(used - simulated_books().used, SIMULATED_PAGE);
    REQUIRE_OK(import_from(&again, file));
    EXPECT_EQ(simulated_books().used, used);
    EXPECT_EQ(own_differ(map_handle(again, SIMULATED_PAGE), 3, SIMULATED_PAGE), 0);
    close(file);
}

CASE(imports_are_counted_and_not_charged)
{
    struct agent other;
    CUdeviceptr at;
    CUmemGenericAllocationHandle first, second;
    size_t before, after, total;
    int file = -1;
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_create(&other, SIMULATED_PAGE, &at, &file));
    EXPECT_OK(cuMemGetInfo(&before, &total));
    REQUIRE_OK(import_from(&first, file));
    REQUIRE_OK(import_from(&second, file));
    EXPECT_EQ(first, second); /* one memory, two references */
    EXPECT_OK(cuMemGetInfo(&after, &total));
    EXPECT_EQ(before, after);
    EXPECT_EQ(simulated_books().handles, 2);
    CUmemAllocationProp prop;
    EXPECT_OK(cuMemGetAllocationPropertiesFromHandle(&prop, first));
    EXPECT_EQ(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    EXPECT_EQ(prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    EXPECT_OK(cuMemRelease(first));
    EXPECT_OK(cuMemRelease(second));
    EXPECT_EQ(cuMemRelease(second), CUDA_ERROR_INVALID_VALUE);
    close(file);
    agent_end(&other);
}

CASE(what_exceeds_the_budget_of_contents_has_no_bytes_elsewhere)
{
    struct agent other;
    struct sim_shape shape = simulated_shape();
    shape.data = 3 * SIMULATED_PAGE;
    simulated_begin_as(&shape);
    CUmemGenericAllocationHandle handle[2];
    CUdeviceptr at[2], there[2];
    int file[2];
    agent_start(&other, ALONE);
    CUmemAllocationProp prop = exportable();
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(cuMemCreate(&handle[i], 2 * SIMULATED_PAGE, &prop, 0));
        at[i] = map_handle(handle[i], 2 * SIMULATED_PAGE);
        own_fill(at[i], 9, 4096);
        REQUIRE_OK(export_to(&file[i], handle[i]));
        REQUIRE_OK(agent_import(&other, file[i], 2 * SIMULATED_PAGE, &there[i]));
        close(file[i]);
        EXPECT_EQ(own_differ(at[i], 9, 4096), 0);
        EXPECT_EQ(agent_differ(&other, there[i], 9, 4096), 0); /* the second: unknown, differs from nothing */
    }
    own_fill(at[0], 10, 4096);
    EXPECT_EQ(agent_differ(&other, there[0], 9, 4096), 512);
    own_fill(at[1], 10, 4096);
    EXPECT_EQ(agent_differ(&other, there[1], 9, 4096), 0);
    EXPECT_OK(cuMemUnmap(at[1], 2 * SIMULATED_PAGE));
    EXPECT_OK(cuMemRelease(handle[1]));
    agent_end(&other);
}

CASE(foreign_descriptors_are_refused)
{
    CUmemGenericAllocationHandle handle;
    int ends[2];
    REQUIRE(!pipe(ends));
    int null = open("/dev/null", O_RDWR);
    int plain = memfd_create("plain", MFD_CLOEXEC);
    int files[] = {-1, 99999, ends[0], ends[1], null, plain};
    REQUIRE(!ftruncate(plain, 1 << 20));
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        EXPECT_EQ(import_from(&handle, files[i]), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(simulated_books().handles, 0);
    for (size_t i = 2; i < sizeof files / sizeof files[0]; i++)
        close(files[i]);
}

/* The header of a real one, in a file whose size could still be cut under a mapping. */
CASE(a_file_that_can_shrink_is_refused)
{
    CUmemGenericAllocationHandle handle, copy;
    create_page(&handle);
    int file = -1;
    char page[4096];
    REQUIRE_OK(export_to(&file, handle));
    REQUIRE_EQ(pread(file, page, sizeof page, 0), sizeof page);
    int forged = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE_EQ(pwrite(forged, page, sizeof page, 0), sizeof page);
    REQUIRE(!ftruncate(forged, 4096 + SIMULATED_PAGE));
    EXPECT_EQ(import_from(&copy, forged), CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!fcntl(forged, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    EXPECT_OK(import_from(&copy, forged)); /* the seals were what was wrong with it: it names the same memory */
    EXPECT_EQ(ftruncate(file, 0), -1);
    close(forged);
    close(file);
}

CASE(damaged_headers_are_refused)
{
    struct agent other;
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    unsigned char whole[4096], broken[4096];
    int file = -1, accepted = 0;
    agent_start(&other, ALONE);
    REQUIRE_OK(agent_create(&other, SIMULATED_PAGE, &at, &file));
    REQUIRE_EQ(pread(file, whole, sizeof whole, 0), sizeof whole);
    for (int i = 0; i < 2000; i++) {
        memcpy(broken, whole, sizeof whole);
        agent_flip(broken, sizeof(struct file_header));
        if (!memcmp(broken, whole, sizeof(struct file_header)))
            continue;
        REQUIRE_EQ(pwrite(file, broken, sizeof broken, 0), sizeof broken);
        accepted += !agent_is_refusal(import_from(&handle, file));
    }
    EXPECT_EQ(accepted, 0);
    EXPECT_EQ(simulated_books().handles, 0);
    REQUIRE_EQ(pwrite(file, whole, sizeof whole, 0), sizeof whole);
    EXPECT_OK(import_from(&handle, file));
    close(file);
    agent_end(&other);
}

CASE(pools_are_not_shared_and_say_so)
{
    CUmemoryPool pool, imported;
    CUmemPoolPtrExportData data;
    CUdeviceptr at;
    int file;
    EXPECT_OK(cuDeviceGetDefaultMemPool(&pool, 0));
    EXPECT_EQ(cuMemPoolExportToShareableHandle(&file, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuMemPoolImportFromShareableHandle(&imported, (void *)3, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE_OK(cuMemAllocAsync(&at, 512, NULL));
    EXPECT_EQ(cuMemPoolExportPointer(&data, at), CUDA_ERROR_NOT_SUPPORTED);
    memset(&data, 0, sizeof data);
    EXPECT_EQ(cuMemPoolImportPointer(&at, pool, &data), CUDA_ERROR_NOT_SUPPORTED);
}

/* A header that says one thing too much, with the right sum, in a file of the right size and seals. */
CASE(forged_headers_are_refused)
{
    CUmemGenericAllocationHandle handle;
    const struct file_header good = {.kind = FILE_CREATED_MEMORY, .id = 1, .size = SIMULATED_PAGE, .kept = SIMULATED_PAGE,
                                     .place = CU_MEM_LOCATION_TYPE_DEVICE, .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    struct file_header bad[10];
    for (int i = 0; i < 10; i++)
        bad[i] = good;
    bad[0].size = bad[0].kept = 12345;
    bad[1].size = bad[1].kept = 0;
    bad[2].size = UINT64_MAX / SIMULATED_PAGE * SIMULATED_PAGE;
    bad[2].kept = 0;
    bad[3].device = bad[3].place_id = 99;
    bad[4].device = -1;
    bad[5].place = 12;
    bad[6].kind = FILE_PLAIN_MEMORY;
    bad[7].kind = FILE_EVENTS;
    bad[8].handle_types = UINT32_MAX;
    bad[9].machine = 5;
    for (int i = -1; i < 10; i++) {
        struct file_header header = i < 0 ? good : bad[i];
        int file = file_create(&header);
        REQUIRE(file >= 0);
        EXPECT_EQ(import_from(&handle, file), i < 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
        close(file);
    }
    EXPECT_EQ(simulated_books().handles, 1);
}

CASE(fabric_handles_are_not_supported)
{
    int fabric = -1;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = machine_memory_of(0);
    CUmemFabricHandle bytes;
    EXPECT_OK(cuDeviceGetAttribute(&fabric, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0));
    EXPECT_EQ(fabric, 0);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    EXPECT_EQ(cuMemCreate(&handle, SIMULATED_PAGE, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    memset(&bytes, 0, sizeof bytes);
    EXPECT_EQ(cuMemImportFromShareableHandle(&handle, &bytes, CU_MEM_HANDLE_TYPE_FABRIC), CUDA_ERROR_NOT_SUPPORTED);
}

AGENT_MAIN_AROUND("simulated device: memory between processes", simulated_begin, NULL)
