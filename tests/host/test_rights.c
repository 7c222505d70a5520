/*
 * test_rights.c: a program with other rights than its caller's (set-uid) believes nothing of the caller's environment: a variable may name a file
 * to write, a library to load, or a plug-in of hwloc's to run.
 *
 * The program is a copy of this one that is root's and set-uid; another user runs it. Only root can try that.
 */
#include "base/rights.h"
#include "driver/topology.h"
#include "tests/host/pinned.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define USER 65534
#define FINE 42 /* and not 0: a copy without the rights would run the cases */
#define WHAT "TEST_RIGHTS" /* secure_getenv would not find it in the copy */

/* What is wrong in a program with other rights, or FINE. Nothing else of this program runs there. */
static int judge(void)
{
    cenote_options options;
    cenote_host_options host;
    char why[256] = "";
    if (cenote_options_default(&options) || options.page_mib == 64)
        return 2;
    if (cenote_host_options_default(&host) || host.budget_percent == 77 || !host.announced)
        return 3;
    struct topology *machine = topology_open(NULL, why, sizeof why);
    bool is_named = getenv("HWLOC_PLUGINS_PATH") != NULL;
    if (is_named != rights_forbid("HWLOC_") || is_named == (machine != NULL) || (is_named && !strstr(why, "HWLOC_")))
        return 4;
    topology_close(machine);
    return FINE;
}

__attribute__((constructor)) static void begin_with_other_rights(void)
{
    if (getauxval(AT_SECURE) && getenv(WHAT))
        _exit(judge());
}

static int copy_of_this(const char *path)
{
    struct stat status;
    off_t at = 0;
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    bool done = from >= 0 && to >= 0 && !fstat(from, &status);
    while (done && at < status.st_size)
        done = sendfile(to, from, &at, (size_t)(status.st_size - at)) > 0;
    done = done && !fchmod(to, 04755);
    close(from), close(to);
    return done ? 0 : -1;
}

static int run_as_user(const char *path, bool names_hwloc)
{
    int status = -1;
    pid_t child = fork();
    if (!child) {
        char *arguments[] = {(char *)(uintptr_t)path, NULL};
        char *variables[] = {WHAT "=1", "CENOTE_CONF=page_mib:64,announced:0", "CENOTE_HOST_CONF=budget_percent:77",
                             names_hwloc ? "HWLOC_PLUGINS_PATH=/tmp" : NULL, NULL};
        if (!setgid(USER) && !setuid(USER))
            execve(path, arguments, variables);
        _exit(100);
    }
    REQUIRE_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

CASE(a_program_with_other_rights_believes_no_environment)
{
    char path[64] = "/tmp/cenote-test-rights-XXXXXX";
    EXPECT(!rights_forbid("")); /* this process has its caller's rights */
    if (geteuid())
        return;
    int made = mkstemp(path);
    REQUIRE(made >= 0 && !close(made) && !unlink(path));
    REQUIRE(!copy_of_this(path));
    EXPECT_EQ(run_as_user(path, false), FINE);
    EXPECT_EQ(run_as_user(path, true), FINE);
    EXPECT(!unlink(path));
}

SUITE_MAIN("rights")
