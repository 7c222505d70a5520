/* test_shape.c: the shape of the simulated machine: from the program, from the environment. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/simulated.h"

/* Restarts the machine in a child process with this CENOTE_SIM, and returns whether it started and `holds`. */
static bool starts_with(const char *text, bool (*holds)(void))
{
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        setenv("CENOTE_SIM", text, 1);
        if (!freopen("/dev/null", "w", stderr))
            _exit(3);
        sim_reset(NULL);
        _exit(holds() ? 0 : 2);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool nothing(void)
{
    return true;
}

static bool two_devices_of_3_gib(void)
{
    int count = 0;
    size_t bytes = 0;
    return !cuInit(0) && !cuDeviceGetCount(&count) && count == 2 && !cuDeviceTotalMem(&bytes, 1) && bytes == 3ull << 30;
}

CASE(environment_gives_the_shape)
{
    EXPECT(starts_with("capacity:3GiB,devices:2,context_bytes:0,quiet:1", two_devices_of_3_gib));
    EXPECT(!starts_with("capacity:4GiB,devices:2", two_devices_of_3_gib));
}

CASE(mistakes_in_the_environment_end_the_start)
{
    EXPECT(starts_with("lag:1000", nothing));
    EXPECT(starts_with("quirks:wsl-rdma+fabric,lag:1000", nothing));
    EXPECT(!starts_with("lag", nothing));
    EXPECT(!starts_with("lag:-1", nothing));
    EXPECT(!starts_with("capacity:1QiB", nothing));
    EXPECT(!starts_with("devices:17", nothing));
    EXPECT(!starts_with("vmm:2", nothing));
    EXPECT(!starts_with("quirks:wsl-rdma+none-such", nothing));
    EXPECT(!starts_with("colour:1", nothing));
}

CASE(granularity_is_as_asked)
{
    static const uint64_t sizes[] = {64 << 10, 2 << 20, 32 << 20};
    for (int i = 0; i < 3; i++) {
        struct sim_shape shape = simulated_shape();
        shape.granularity = sizes[i];
        simulated_begin_as(&shape);
        EXPECT_EQ(machine_granularity(), sizes[i]);
        struct machine_range range = machine_map(3);
        EXPECT_EQ(range.at % sizes[i], 0);
        EXPECT_OK(sim_launch_fill(NULL, range.at, 5, range.bytes));
        EXPECT_OK(sim_launch_expect(NULL, range.at, 5, range.bytes));
        EXPECT_EQ(sim_mismatches(), 0);
        machine_unmap(range);
    }
}

CASE(a_context_takes_memory_while_it_is_held)
{
    struct sim_shape shape = simulated_shape();
    shape.context_bytes = 100 << 20;
    simulated_begin_as(&shape);
    size_t left, total;
    EXPECT_OK(cuMemGetInfo(&left, &total));
    EXPECT_EQ(total - left, 100 << 20);
}

CASE(address_space_can_be_scarce)
{
    CUdeviceptr at;
    struct sim_shape shape = simulated_shape();
    shape.address_space = 8 * SIMULATED_PAGE;
    simulated_begin_as(&shape);
    EXPECT_EQ(cuMemAddressReserve(&at, 9 * SIMULATED_PAGE, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_OK(cuMemAddressReserve(&at, 8 * SIMULATED_PAGE, 0, 0, 0));
    EXPECT_OK(cuMemAddressFree(at, 8 * SIMULATED_PAGE));
}

CASE(a_device_may_lack_virtual_memory_and_pools)
{
    int vmm = 1, pools = 1;
    CUdeviceptr at;
    CUmemGenericAllocationHandle page;
    CUmemAllocationProp prop = machine_memory_of(0);
    struct sim_shape shape = simulated_shape();
    shape.vmm = shape.pools = false;
    simulated_begin_as(&shape);
    EXPECT_OK(cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    EXPECT_OK(cuDeviceGetAttribute(&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
    EXPECT_EQ(vmm, 0);
    EXPECT_EQ(pools, 0);
    EXPECT_EQ(cuMemCreate(&page, SIMULATED_PAGE, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cuMemAllocAsync(&at, 512, NULL), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_OK(cuMemAlloc(&at, 512));
}

CASE(an_old_driver_lacks_what_is_newer)
{
    void *function;
    CUdriverProcAddressQueryResult status;
    struct sim_shape shape = simulated_shape();
    shape.driver_version = 12000;
    simulated_begin_as(&shape);
    EXPECT_OK(cuGetProcAddress("cuCtxRecordEvent", &function, 12000, 0, &status));
    EXPECT_EQ(function, NULL);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(cuGetProcAddress("cuCtxRecordEvent", &function, 12050, 0, &status), CUDA_ERROR_INVALID_VALUE);
}

CASE(names_can_be_hidden)
{
    void *function;
    CUdriverProcAddressQueryResult status;
    sim_hide("cuMemCreate");
    EXPECT_OK(cuGetProcAddress("cuMemCreate", &function, 12000, 0, &status));
    EXPECT_EQ(function, NULL);
    simulated_begin();
    EXPECT_OK(cuGetProcAddress("cuMemCreate", &function, 12000, 0, &status));
    EXPECT(function != NULL);
}

CASE(a_machine_may_have_no_device)
{
    struct sim_shape shape = simulated_shape();
    shape.devices = 0;
    sim_reset(&shape);
    EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
    int count;
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

SUITE_MAIN_AROUND("simulated device: shape", simulated_begin, NULL)
