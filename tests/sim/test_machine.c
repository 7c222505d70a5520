/* test_machine.c: processes on one machine (CENOTE_SIM=machine:NAME): the memory of its devices is shared, and its file in /dev/shm. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/patience.h"
#include "tests/sim/agent.h"

#define MIB (1ull << 20)
#define CONTEXT (64 * MIB)
#define CAPACITY (1024 * MIB)

static char name[48];       /* of the machine: no other run of this test has it */
static char shape[256];     /* of agents on it */
static char path[128];      /* of its file */

/* This process is on the machine too. */
static void begin(void)
{
    static int runs;
    struct sim_shape mine = simulated_shape();
    snprintf(name, sizeof name, "test-%d-%d", (int)getpid(), ++runs);
    snprintf(shape, sizeof shape, "capacity:1GiB,context_bytes:64MiB,machine:%s", name);
    snprintf(path, sizeof path, "/dev/shm/cenote-sim-%u-%s", (unsigned)geteuid(), name);
    snprintf(mine.machine, sizeof mine.machine, "%s", name);
    simulated_begin_as(&mine);
}

/* The last one out removes the file: every case is judged by that. */
static void end(void)
{
    struct sim_shape alone = simulated_shape();
    sim_reset(&alone);
    EXPECT_EQ(access(path, F_OK), -1);
    unlink(path);
}

static size_t left(void)
{
    size_t free = 0, total = 0;
    EXPECT_OK(cuMemGetInfo(&free, &total));
    EXPECT_EQ(total, CAPACITY);
    return free;
}

CASE(all_processes_have_one_memory)
{
    struct agent a, b;
    CUdeviceptr at, mine;
    EXPECT_EQ(left(), CAPACITY - CONTEXT);
    agent_start(&a, shape);
    agent_start(&b, shape);
    EXPECT_EQ(left(), CAPACITY - 3 * CONTEXT);
    REQUIRE_OK(agent_alloc(&a, 300 * MIB, &at));
    EXPECT_EQ(left(), CAPACITY - 3 * CONTEXT - 300 * MIB);
    EXPECT_EQ(agent_left(&b), left());
    EXPECT_EQ(agent_alloc(&b, 600 * MIB, &mine), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc(&mine, 600 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE_OK(cuMemAlloc(&mine, 532 * MIB)); /* all there is */
    EXPECT_EQ(agent_left(&b), 0);
    EXPECT_EQ(agent_alloc(&b, 4 * MIB, &mine), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_OK(agent_free(&a, at));
    EXPECT_OK(agent_alloc(&b, 300 * MIB, &mine));
    EXPECT_EQ(agent_violations(&a) + agent_violations(&b), 0);
    agent_end(&a);
    agent_end(&b);
    EXPECT_EQ(left(), CAPACITY - CONTEXT - 532 * MIB);
}

CASE(there_is_no_context_without_memory_for_it)
{
    CUdeviceptr at;
    CUcontext context;
    struct agent a;
    agent_start(&a, shape);
    REQUIRE_OK(agent_alloc(&a, CAPACITY - 3 * CONTEXT + 2 * MIB, &at));
#if CUDA_VERSION >= 13000
    EXPECT_EQ(cuCtxCreate(&context, NULL, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
#else
    EXPECT_EQ(cuCtxCreate(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
#endif
    agent_end(&a);
}

CASE(who_died_holds_nothing)
{
    struct agent a;
    CUdeviceptr at;
    agent_start(&a, shape);
    REQUIRE_OK(agent_alloc(&a, 500 * MIB, &at));
    agent_kill(&a);
    EXPECT_OK(cuMemAlloc(&at, 900 * MIB)); /* no process looked before */
    EXPECT_EQ(left(), CAPACITY - CONTEXT - 900 * MIB);
}

CASE(processes_are_listed)
{
    struct agent a;
    CUdeviceptr at;
    struct sim_process list[4];
    EXPECT_EQ(sim_processes(0, list, 4), 1);
    EXPECT_EQ(list[0].process, getpid());
    EXPECT_EQ(list[0].bytes, CONTEXT);
    agent_start(&a, shape);
    REQUIRE_OK(agent_alloc(&a, 4 * MIB, &at));
    EXPECT_EQ(sim_processes(0, NULL, 0), 2);
    EXPECT_EQ(sim_processes(0, list, 4), 2);
    int other = list[1].process == a.process;
    EXPECT_EQ(list[other].process, a.process);
    EXPECT_EQ(list[other].bytes, CONTEXT + 4 * MIB);
    EXPECT_EQ(list[!other].process, getpid());
    EXPECT_EQ(sim_processes(1, list, 4), -1);
    agent_kill(&a);
    EXPECT_EQ(sim_processes(0, list, 4), 1);
}

CASE(exported_memory_is_charged_once_and_while_anybody_holds_it)
{
    struct agent a, b;
    CUdeviceptr at, there;
    CUmemGenericAllocationHandle handle;
    int file;
    agent_start(&a, shape);
    agent_start(&b, shape);
    size_t before = left();
    REQUIRE_OK(agent_create(&a, 100 * MIB, &at, &file));
    REQUIRE_OK(agent_import(&b, file, 100 * MIB, &there));
    REQUIRE_OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(file);
    EXPECT_EQ(before - left(), 100 * MIB);
    EXPECT_OK(agent_unmap(&a, at, 100 * MIB)); /* the exporter lets go first */
    EXPECT_EQ(before - left(), 100 * MIB);
    agent_kill(&b);
    EXPECT_EQ(left() - before, CONTEXT - 100 * MIB);
    struct sim_process list[4];
    EXPECT_EQ(sim_processes(0, list, 4), 2);
    EXPECT_EQ(list[list[1].process == getpid()].bytes, CONTEXT + 100 * MIB); /* its holder now */
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_EQ(left() - before, CONTEXT);
    agent_end(&a);
}

CASE(memory_of_a_dead_exporter_stays_charged)
{
    struct agent a;
    CUdeviceptr at, here;
    CUipcMemHandle handle;
    agent_start(&a, shape);
    size_t before = left();
    REQUIRE_OK(agent_alloc(&a, 200 * MIB, &at));
    REQUIRE_OK(agent_get(&a, at, &handle));
    REQUIRE_OK(cuIpcOpenMemHandle(&here, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    EXPECT_EQ(before - left(), 200 * MIB);
    agent_kill(&a);
    EXPECT_EQ(left() - before, CONTEXT - 200 * MIB);
    EXPECT_OK(cuIpcCloseMemHandle(here));
    EXPECT_EQ(left() - before, CONTEXT);
}

CASE(memory_that_only_a_descriptor_kept_is_charged_to_who_takes_it)
{
    struct agent a;
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    int file;
    agent_start(&a, shape);
    size_t before = left();
    REQUIRE_OK(agent_create(&a, 50 * MIB, &at, &file));
    EXPECT_OK(agent_unmap(&a, at, 50 * MIB));
    EXPECT_EQ(left(), before);
    REQUIRE_OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    EXPECT_EQ(before - left(), 50 * MIB);
    REQUIRE_OK(agent_import(&a, file, 50 * MIB, &at));
    EXPECT_EQ(before - left(), 50 * MIB);
    EXPECT_OK(cuMemRelease(handle));
    EXPECT_EQ(before - left(), 50 * MIB);
    EXPECT_OK(agent_unmap(&a, at, 50 * MIB));
    EXPECT_EQ(left(), before);
    close(file);
    agent_end(&a);
}

CASE(machines_do_not_share)
{
    struct agent a;
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    char other[300];
    int file;
    snprintf(other, sizeof other, "%s-other", shape);
    agent_start(&a, other);
    EXPECT_EQ(left(), CAPACITY - CONTEXT);
    REQUIRE_OK(agent_create(&a, 2 * MIB, &at, &file));
    EXPECT_EQ(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT(strstr(sim_last_violation(), "another machine") != NULL);
    close(file);
    agent_end(&a);
}

/* Runs an agent whose shape is not understood, and gives what it said. */
static void start_badly(const char *bad, char *said, size_t room)
{
    int ends[2], status;
    char text[300];
    REQUIRE(!pipe2(ends, O_CLOEXEC));
    snprintf(text, sizeof text, "quiet:1,%s", bad);
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        char *arguments[] = {"agent", AGENT_WORD, NULL};
        setenv("CENOTE_SIM", text, 1);
        dup2(ends[1], 2);
        execv("/proc/self/exe", arguments);
        _exit(0);
    }
    close(ends[1]);
    size_t got = 0;
    ssize_t some;
    while (got + 1 < room && (some = read(ends[0], said + got, room - 1 - got)) > 0)
        got += (size_t)some;
    said[got] = 0;
    close(ends[0]);
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* This process, as it tries to be on a machine where it cannot be; gives what was said on stderr. It goes on: it can count devices. */
static void enter_badly(const struct sim_shape *bad, char *said, size_t room)
{
    int ends[2], kept = dup(2), count = 0;
    CUcontext context;
    REQUIRE(kept >= 0 && !pipe2(ends, O_CLOEXEC));
    sim_reset(bad);
    fflush(NULL);
    dup2(ends[1], 2);
    CUresult started = cuInit(0), counted = cuDeviceGetCount(&count);
    CUresult first = cuDevicePrimaryCtxRetain(&context, 0), second = cuDevicePrimaryCtxRetain(&context, 0);
    dup2(kept, 2);
    close(kept);
    close(ends[1]);
    ssize_t got = read(ends[0], said, room - 1);
    said[got > 0 ? got : 0] = 0;
    close(ends[0]);
    EXPECT_OK(started);
    EXPECT_OK(counted);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(first, CUDA_ERROR_SYSTEM_NOT_READY);
    EXPECT_EQ(second, CUDA_ERROR_SYSTEM_NOT_READY);
    EXPECT(strchr(said, '\n') == said + strlen(said) - 1); /* said once */
}

static struct sim_shape shape_here(void)
{
    struct sim_shape here = simulated_shape();
    snprintf(here.machine, sizeof here.machine, "%s", name);
    return here;
}

CASE(another_shape_is_refused_while_somebody_is_there)
{
    char said[512];
    struct agent a;
    struct sim_shape larger = shape_here(), same = larger;
    larger.capacity *= 2;
    agent_start(&a, shape);
    enter_badly(&larger, said, sizeof said);
    EXPECT(strstr(said, "other devices, capacity or granularity") != NULL);
    EXPECT(strstr(said, path) != NULL);
    EXPECT_EQ(agent_left(&a), CAPACITY - CONTEXT); /* it left no trace */
    sim_reset(&same);
    machine_begin();
    EXPECT_EQ(left(), CAPACITY - 2 * CONTEXT);
    agent_end(&a);
}

/* As many as there are rows, and one. */
CASE(who_comes_too_late_is_told_so)
{
    enum { ROWS = 64 };
    static struct agent all[ROWS];
    char said[512];
    struct sim_shape here = shape_here(), alone = simulated_shape();
    sim_reset(&alone);
    snprintf(shape, sizeof shape, "capacity:1GiB,context_bytes:1MiB,machine:%s", name);
    for (int i = 0; i < ROWS; i++)
        agent_start(&all[i], shape);
    enter_badly(&here, said, sizeof said);
    EXPECT(strstr(said, "as many processes") != NULL);
    EXPECT_EQ(sim_processes(0, NULL, 0), ROWS); /* a process that only counts is let in */
    agent_kill(&all[0]);
    machine_begin(); /* in its place */
    EXPECT_EQ(left(), CAPACITY - (ROWS - 1) * MIB - CONTEXT);
    for (int i = 1; i < ROWS; i++)
        agent_kill(&all[i]);
}

CASE(who_only_asks_is_not_on_the_machine)
{
    struct sim_process list[4];
    struct sim_device device;
    struct agent a;
    struct sim_shape here = shape_here();
    int count = 0, major = 0;
    sim_reset(&here);
    EXPECT_OK(cuInit(0));
    EXPECT_OK(cuDeviceGetCount(&count));
    EXPECT_EQ(sim_processes(0, list, 4), 0);
    EXPECT_EQ(access(path, F_OK), -1); /* no process made it */
    agent_start(&a, shape);
    EXPECT_EQ(sim_processes(0, list, 4), 1);
    EXPECT_EQ(list[0].process, a.process);
    EXPECT_EQ(sim_device_count(), 1);
    REQUIRE(sim_device(0, &device));
    EXPECT_EQ(device.total, CAPACITY);
    EXPECT_EQ(device.used, CONTEXT);
    EXPECT(!sim_device(1, &device));
    EXPECT(sim_device_attribute(0, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major) && major > 0);
    agent_end(&a);
    EXPECT_EQ(access(path, F_OK), -1); /* the last one out did not see us */
    EXPECT_EQ(sim_processes(0, list, 4), 0);
}

/* The questions of a library of management, in a child whose parent uses the device: all are answered, and the parent stays what it is. */
CASE(a_child_of_a_fork_may_ask_too)
{
    int status = -1;
    struct sim_process list[4];
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        struct sim_device device;
        bool told = sim_device(0, &device) && device.used == CONTEXT && sim_processes(0, list, 4) == 1 && list[0].process == getppid();
        _exit(told && cuInit(0) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct agent a;
    agent_start(&a, shape); /* it forgets the dead: this process is not among them */
    EXPECT_EQ(sim_processes(0, list, 4), 2);
    agent_end(&a);
}

CASE(who_asked_before_a_fork_has_not_begun_to_use_the_device)
{
    int status = -1;
    struct sim_device device;
    struct sim_shape here = shape_here();
    sim_reset(&here);
    EXPECT(sim_device(0, &device));
    EXPECT_EQ(device.bus, 1);
    EXPECT(!strcmp(device.bus_id, "0000:01:00.0"));
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        CUcontext context;
        _exit(cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0));
    }
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    machine_begin(); /* takes over from the child, which ended without a word */
    EXPECT_EQ(left(), CAPACITY - CONTEXT);
}

CASE(the_file_of_a_machine_where_all_died_is_taken_over)
{
    struct agent a;
    CUdeviceptr at;
    struct sim_shape alone = simulated_shape();
    char larger[300];
    agent_start(&a, shape);
    REQUIRE_OK(agent_alloc(&a, 500 * MIB, &at));
    sim_reset(&alone);
    agent_kill(&a);
    EXPECT_EQ(access(path, F_OK), 0);
    snprintf(larger, sizeof larger, "capacity:2GiB,context_bytes:64MiB,machine:%s", name);
    agent_start(&a, larger);
    EXPECT_EQ(agent_left(&a), 2 * CAPACITY - CONTEXT);
    agent_end(&a);
}

CASE(files_of_machines_where_all_died_are_swept_away)
{
    struct agent a, b;
    char dead[300], dead_path[200], next[300];
    snprintf(dead, sizeof dead, "%s-dead", shape);
    snprintf(dead_path, sizeof dead_path, "%s-dead", path);
    snprintf(next, sizeof next, "%s-next", shape);
    agent_start(&a, dead);
    agent_start(&b, next); /* another process is on the first */
    EXPECT_EQ(access(dead_path, F_OK), 0);
    agent_end(&b);
    agent_kill(&a);
    agent_start(&b, next);
    EXPECT_EQ(access(dead_path, F_OK), -1);
    EXPECT_EQ(access(path, F_OK), 0); /* this process is on it */
    agent_end(&b);
}

CASE(a_file_that_is_no_machine_is_refused_and_kept)
{
    char said[512];
    struct stat status;
    struct sim_shape here = shape_here(), alone = simulated_shape();
    REQUIRE(!stat(path, &status));
    sim_reset(&alone);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(file >= 0);
    REQUIRE_EQ(write(file, "something else", 14), 14);
    enter_badly(&here, said, sizeof said);
    EXPECT(strstr(said, "none of this version: remove it") != NULL);
    EXPECT_EQ(sim_processes(0, NULL, 0), 0);
    REQUIRE(!ftruncate(file, status.st_size)); /* the right size alone does not make it one */
    enter_badly(&here, said, sizeof said);
    EXPECT(strstr(said, "none of this version: remove it") != NULL);
    EXPECT_EQ(sim_processes(0, NULL, 0), 0);
    EXPECT_EQ(access(path, F_OK), 0);
    unlink(path);
    REQUIRE(!symlink("/dev/null", path));
    enter_badly(&here, said, sizeof said);
    EXPECT(strstr(said, "cannot be opened") != NULL);
    unlink(path);
    close(file);
}

/* In /dev/shm any user can put a file under the name: that user would hold its locks, cut it off, or say that the devices are full. */
CASE(a_file_that_other_users_can_change_is_refused)
{
    char said[512];
    struct sim_shape here = shape_here(), alone = simulated_shape();
    sim_reset(&alone);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    REQUIRE(file >= 0 && !fchmod(file, 0666));
    enter_badly(&here, said, sizeof said);
    EXPECT(strstr(said, "other users can change it") != NULL);
    EXPECT_EQ(sim_processes(0, NULL, 0), 0);
    REQUIRE(!fchmod(file, 0600));
    if (!geteuid()) {
        struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        REQUIRE(!fchown(file, 65534, 65534));
        pid_t child = fork(); /* that user, who has locked all of it */
        REQUIRE(child >= 0);
        if (!child) {
            fcntl(file, F_SETLK, &all);
            pause();
            _exit(0);
        }
        struct wait wait = {0};
        while (!fcntl(file, F_GETLK, &all) && all.l_type == F_UNLCK && wait_on(&wait))
            all.l_type = F_WRLCK;
        enter_badly(&here, said, sizeof said);
        EXPECT(strstr(said, "other users can change it") != NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    unlink(path);
    REQUIRE(!mkfifo(path, 0600));
    enter_badly(&here, said, sizeof said);
    EXPECT(strstr(said, "other users can change it") != NULL);
    unlink(path);
    close(file);
}

CASE(names_that_are_no_names_are_refused)
{
    static const char *const bad[] = {"machine:", "machine:a/b", "machine:../x", "machine:a b",
                                      "machine:0123456789012345678901234567890123456789012345678901234567890123456789"};
    char said[512];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        start_badly(bad[i], said, sizeof said);
        EXPECT(strstr(said, "CENOTE_SIM") != NULL);
    }
}

/* Whatever is in the books, no process crashes; only the sums are wrong. */
CASE(damaged_books_do_no_harm)
{
    struct agent a;
    struct stat status;
    CUdeviceptr at, there;
    CUmemGenericAllocationHandle handle;
    struct sim_process list[80];
    int file, done = 0;
    agent_start(&a, shape);
    int books = open(path, O_RDWR | O_CLOEXEC);
    REQUIRE(books >= 0);
    REQUIRE(!fstat(books, &status));
    srand(4711);
    for (int i = 0; i < 3000; i++) {
        unsigned char byte = (unsigned char)rand();
        off_t where = 40 + rand() % (i % 2 ? 20000 : 30000);
        if (pwrite(books, &byte, 1, where) != 1)
            break;
        bool got = !cuMemAlloc(&at, 4 * MIB);
        sim_processes(0, list, 80);
        if (got)
            cuMemFree(at);
        if (i % 100 || agent_create(&a, 2 * MIB, &there, &file))
            continue;
        if (!cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
            cuMemRelease(handle);
        agent_unmap(&a, there, 2 * MIB);
        close(file);
        done++;
    }
    EXPECT(done > 0);
    agent_kill(&a);
    unlink(path); /* a process that is still listed may never have been */
    close(books); /* not before: it drops the locks of this process on the file */
}

CASE(a_child_of_a_fork_has_a_row_of_its_own)
{
    int status = -1;
    struct agent a;
    struct sim_shape mine = shape_here();
    agent_start(&a, shape);
    sim_reset(&mine); /* before cuInit: a child may use the device */
    fflush(NULL);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        struct sim_process list[4];
        machine_begin();
        bool listed = sim_processes(0, list, 4) == 2 && (list[0].process == getpid() || list[1].process == getpid());
        exit(listed ? 0 : 1);
    }
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(sim_processes(0, NULL, 0), 1);
    machine_begin();
    EXPECT_EQ(left(), CAPACITY - 2 * CONTEXT);
    agent_end(&a);
}

CASE(without_a_machine_a_process_lists_itself)
{
    struct sim_process list[2];
    struct sim_shape alone = simulated_shape();
    CUdeviceptr at;
    sim_reset(&alone);
    EXPECT_EQ(sim_processes(0, list, 2), 0);
    machine_begin();
    REQUIRE_OK(cuMemAlloc(&at, 4 * MIB));
    EXPECT_EQ(sim_processes(0, list, 2), 1);
    EXPECT_EQ(list[0].process, getpid());
    EXPECT_EQ(list[0].bytes, CONTEXT + 4 * MIB);
}

AGENT_MAIN_AROUND("simulated device: processes on one machine", begin, end)
