/*
 * process.h: cases that end a process, or need one that has never loaded the driver: each runs in a child of its own, and the program itself
 * never touches cenote.
 *
 * LOCKING: none.
 */
#ifndef CENOTE_TESTS_PROCESSES_PROCESS_H
#define CENOTE_TESTS_PROCESSES_PROCESS_H

#include "tests/api/scene.h"
#include "tests/patience.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CARD (256 * MIB)
#define HANGS 60 /* s: a case that takes longer does */

static unsigned failures_inherited; /* by a child */
static pid_t    the_child_is;       /* this process, if it is one */

/* What is still to be said when a child exits by a road of its own. */
static inline int failures_said(void)
{
    bool failed = CU_get_number_of_failure_records() > failures_inherited;
    if (failed)
        CU_basic_show_failures(CU_get_failure_list());
    fflush(NULL);
    return failed ? 1 : 0;
}

/* How a child that runs `body` ends: its exit status, 128 and more for a signal. It leaves by exit, with all handlers. */
static inline int status_of(void (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        alarm(patience(HANGS));
        failures_inherited = CU_get_number_of_failure_records();
        the_child_is = getpid();
        body();
        exit(failures_said());
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* A child that REQUIRE has thrown out of its case ends there. */
static inline void process_after(void)
{
    if (the_child_is == getpid()) {
        failures_said();
        _exit(1);
    }
}

#define PROCESSES_MAIN(name) SUITE_MAIN_AROUND("processes: " name, NULL, process_after)

/* A case that runs in a child, which ends with this status. */
#define ENDS_WITH(name, end)                            \
    static void name##_in_a_child(void);                \
    CASE(name)                                          \
    {                                                   \
        EXPECT_EQ(status_of(name##_in_a_child), end);   \
    }                                                   \
    static void name##_in_a_child(void)

/* The driver ends with the process, as a real one does. */
static inline struct sim_shape mortal_card(void)
{
    struct sim_shape shape = scene_card(CARD);
    shape.shuts_down = true;
    return shape;
}

static inline void open_mortal(struct scene *scene)
{
    struct sim_shape shape = mortal_card();
    cenote_options options = scene_options();
    scene_open_with(scene, &shape, &options);
}

static inline struct held take_one(struct scene *scene, size_t bytes)
{
    struct held held;
    EXPECT(held_take(&held, scene->pool, bytes, scene->stream[A]));
    return held;
}

/* The folder of the build, with "/" at its end. */
static inline void build_folder(char path[512])
{
    ssize_t length = readlink("/proc/self/exe", path, 511);
    REQUIRE(length > 0);
    path[length] = 0;
    *strrchr(path, '/') = 0;
    strrchr(path, '/')[1] = 0;
}

#endif
