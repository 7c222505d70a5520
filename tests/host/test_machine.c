/* test_machine.c: how much memory a process may have, by its control groups: folders made here stand for those of the system. */
#include "host/machine.h"
#include "tests/harness.h"

#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static void write_file(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0700);
    }
    FILE *file = fopen(path, "w");
    EXPECT(file && fputs(text, file) >= 0 && !fclose(file));
}

static void begin(const char *groups)
{
    strcpy(root, "/tmp/cenote-machine-XXXXXX");
    EXPECT(mkdtemp(root) != NULL);
    if (groups)
        write_file("/proc/self/cgroup", groups);
}

static void end(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    EXPECT_EQ(system(command), 0);
}

CASE(nothing_is_known)
{
    begin(NULL);
    EXPECT_EQ(machine_group_limit(root), UINT64_MAX);
    end();
    begin("0::/\n");
    EXPECT_EQ(machine_group_limit(root), UINT64_MAX);
    end();
}

/* In a container the group is the root of what the process sees. */
CASE(container)
{
    begin("0::/\n");
    write_file("/sys/fs/cgroup/memory.max", "17179869184\n");
    EXPECT_EQ(machine_group_limit(root), 16ull << 30);
    write_file("/sys/fs/cgroup/memory.max", "max\n");
    EXPECT_EQ(machine_group_limit(root), UINT64_MAX);
    end();
}

/* A container that sees the system's names of groups, but only its own folder. */
CASE(container_that_sees_the_names_of_the_system)
{
    begin("7:memory:/docker/c\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
    EXPECT_EQ(machine_group_limit(root), 1ull << 30);
    end();
}

/* A job of a scheduler: the least of the group and of those above it counts, whichever has it. */
CASE(group_below_others)
{
    begin("0::/slurm/job_7/step_0\n");
    write_file("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
    write_file("/sys/fs/cgroup/slurm/job_7/memory.max", "4294967296\n");
    write_file("/sys/fs/cgroup/slurm/memory.max", "8589934592\n");
    EXPECT_EQ(machine_group_limit(root), 4ull << 30);
    write_file("/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "1073741824\n");
    EXPECT_EQ(machine_group_limit(root), 1ull << 30);
    end();
}

/* cgroup v1 has a tree for memory alone; the limits of other resources are none of memory. */
CASE(groups_of_old_systems)
{
    begin("12:cpu,cpuacct:/docker/c\n7:memory:/docker/c\n3:memory_pressure:/x\n1:name=systemd:/\n0::/\n");
    write_file("/sys/fs/cgroup/memory/docker/c/memory.limit_in_bytes", "2147483648\n");
    write_file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4096\n");
    EXPECT_EQ(machine_group_limit(root), 2ull << 30);
    end();
}

CASE(lines_that_make_no_sense)
{
    begin("0\n0:\n0::\n0::relative\n::/\n\n7:memory\n");
    write_file("/sys/fs/cgroup/memory.max", "not a number\n");
    EXPECT_EQ(machine_group_limit(root), UINT64_MAX);
    write_file("/sys/fs/cgroup/memory.max", "0\n"); /* nothing could run with that */
    EXPECT_EQ(machine_group_limit(root), UINT64_MAX);
    end();
}

CASE(what_this_process_may_have)
{
    uint64_t whole = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), memory = machine_memory();
    EXPECT(memory && memory <= whole && memory <= machine_group_limit(""));
}

SUITE_MAIN("machine")
