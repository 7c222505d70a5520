/*
 * test_signals.c: signals while threads allocate, share memory and wait; which thread hears them; what becomes of handlers, and of what a process
 * leaves behind that a signal has ended.
 *
 * A handler may do what it may do elsewhere. It must not call cenote, as it must not call malloc: it may have come in the middle of it.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "share/share.h"
#include "tests/api/other.h"
#include "tests/processes/process.h"

#define PERIOD 200 /* us between two signals */
#define TENTHS 20  /* of a second: the patience with an exporter, and fewer than the signals that come meanwhile */

static struct scene scene;
static atomic_uint  heard;
static atomic_int   heard_by[64];   /* threads, by the order in which they first heard one */

static pid_t this_thread(void)
{
    return (pid_t)syscall(SYS_gettid);
}

static void hear(int number)
{
    int before = errno, me = (int)this_thread();
    (void)number;
    atomic_fetch_add(&heard, 1);
    for (int i = 0; i < 64; i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&heard_by[i], &none, me) || none == me)
            break;
    }
    errno = before;
}

/* Calls of the system come back in the middle: SA_RESTART is not asked for. The first child's timer is its own. */
static void begin_signals(void)
{
    struct sigaction action = {.sa_handler = hear};
    struct itimerval often = {{0, PERIOD}, {0, PERIOD}};
    sigemptyset(&action.sa_mask);
    DONE(sigaction(SIGALRM, &action, NULL));
    DONE(setitimer(ITIMER_REAL, &often, NULL));
}

static void end_signals(void)
{
    struct itimerval never = {{0, 0}, {0, 0}};
    DONE(setitimer(ITIMER_REAL, &never, NULL));
    EXPECT(atomic_load(&heard) > TENTHS);
}

static void open_busy(void)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    cenote_share share;
    options.decay_ms = 1;
    options.background = 1;
    shape.spend_cost = true; /* most signals come in the middle of a call of the driver */
    scene_open_with(&scene, &shape, &options);
    struct held held = take_one(&scene, MIB);
    DONE(cenote_export(held.at, &share));
    held_give(&held);
}

static void *come_and_go(void *number)
{
    uintptr_t n = (uintptr_t)number;
    cuCtxSetCurrent(scene.context);
    for (unsigned i = 0; i < 300; i++) {
        void *block = NULL;
        if (cenote_alloc(scene.pool, (1 + (i + n) % 37) * 200 * KIB, scene.stream[n], &block) ||
            cenote_use(block, scene.stream[(n + 1) % SCENE_STREAMS]) || cenote_free(block))
            return (void *)cenote_message();
        if (i % 40 == 0 && cenote_pool_trim(scene.pool, 0, i % 80 ? CENOTE_TRIM_WAIT : 0))
            return (void *)cenote_message();
        sim_advance(MSEC / 5);
    }
    return NULL;
}

ENDS_WITH(a_timer_while_threads_allocate, 0)
{
    pthread_t threads[SCENE_STREAMS];
    open_busy();
    begin_signals();
    for (uintptr_t i = 0; i < SCENE_STREAMS; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, come_and_go, (void *)i));
    for (int i = 0; i < SCENE_STREAMS; i++) {
        void *words = NULL;
        pthread_join(threads[i], &words);
        EXPECT(!words);
        if (words)
            printf("    %s\n", (char *)words);
    }
    end_signals();
    scene_close(&scene);
}

/* A card of this process's name, with another process on it. */
static void open_beside(struct other *other)
{
    char name[64], text[128];
    snprintf(name, sizeof name, "signals-%d", (int)getpid());
    snprintf(text, sizeof text, "capacity:256MiB,context_bytes:0,machine:%s", name);
    other_start(other, text, CENOTE_VMM);
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    snprintf(shape.machine, sizeof shape.machine, "%s", name);
    scene_open_with(&scene, &shape, &options);
}

/* Questions to another process and their answers, page by page. */
ENDS_WITH(a_timer_while_memory_is_shared, 0)
{
    struct other other;
    cenote_share share;
    uint64_t there;
    open_beside(&other);
    DONE(other_take(&other, 40 * MIB, 7, &share, &there));
    begin_signals();
    for (int i = 0; i < 60; i++) {
        void *at = NULL;
        DONE(cenote_import(&share, sizeof share, 0, &at));
        if (at)
            DONE(cenote_import_close(at));
    }
    end_signals();
    other_end(&other);
    scene_close(&scene);
}

/* The patience with an exporter that does not answer is counted in time, not in signals: it is stopped for longer than they would allow. */
static void *wake(void *process)
{
    for (struct wait wait = {0}; (int)atomic_load(&heard) <= share_patience && wait_on(&wait);)
        ;
    kill((pid_t)(uintptr_t)process, SIGCONT);
    return NULL;
}

ENDS_WITH(a_timer_while_an_exporter_is_stopped, 0)
{
    struct other other;
    cenote_share share;
    uint64_t there;
    void *at = NULL;
    pthread_t waker;
    open_beside(&other);
    DONE(other_take(&other, 4 * MIB, 7, &share, &there));
    kill(other.process, SIGSTOP);
    EXPECT(waitpid(other.process, NULL, WUNTRACED) == other.process);
    share_patience = 10 * (int)patience(10);
    begin_signals();
    REQUIRE(!pthread_create(&waker, NULL, wake, (void *)(uintptr_t)other.process));
    DONE(cenote_import(&share, sizeof share, 0, &at));
    end_signals();
    pthread_join(waker, NULL);
    if (at)
        DONE(cenote_import_close(at));
    other_end(&other);
    scene_close(&scene);
}

/* -------------------------------------------------------------------------------------------------------------- which thread hears */

/* The line of /proc/self/task/<thread>/status that begins so, behind the colon; "" if the thread is gone. */
static void read_status(const char *thread, const char *what, char line[256])
{
    char path[300];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *file = fopen(path, "r");
    line[0] = 0;
    while (file && fgets(line, 256, file) && strncmp(line, what, strlen(what)) != 0)
        line[0] = 0;
    if (file)
        fclose(file);
    char *value = strchr(line, ':');
    memmove(line, value ? value + 1 : "", value ? strlen(value) : 1);
}

/* A signal to the process goes to any thread that does not block it; ours block all that can be. */
ENDS_WITH(our_threads_hear_none, 0)
{
    struct sigaction action = {.sa_handler = hear};
    unsigned ours = 0;
    char line[256];
    open_busy();
    DONE(sigaction(SIGUSR1, &action, NULL));
    DIR *tasks = opendir("/proc/self/task");
    REQUIRE(tasks);
    for (struct dirent *d; (d = readdir(tasks));) {
        read_status(d->d_name, "Name:", line);
        if (!strstr(line, "cenote"))
            continue;
        ours++;
        read_status(d->d_name, "SigBlk:", line);
        uint64_t blocked = strtoull(line, NULL, 16), wanted = ~(1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 3ull << 31);
        EXPECT_EQ(blocked & wanted, wanted); /* 32 and 33 are the C library's own */
        for (int i = 0; i < 64; i++)
            EXPECT(atomic_load(&heard_by[i]) != atoi(d->d_name));
    }
    closedir(tasks);
    EXPECT_EQ(ours, 2);
    for (int i = 0; i < 200; i++)
        kill(getpid(), SIGUSR1);
    EXPECT_EQ(atomic_load(&heard), 200);
    EXPECT_EQ(atomic_load(&heard_by[0]), this_thread());
    EXPECT_EQ(atomic_load(&heard_by[1]), 0);
    scene_close(&scene);
}

/* What signals do, and which of them the caller blocks, is the program's affair. */
ENDS_WITH(dispositions_and_masks_stay, 0)
{
    struct sigaction before[65], now;
    sigset_t mine, mask;
    struct sigaction action = {.sa_handler = hear};
    DONE(sigaction(SIGSEGV, &action, NULL));
    for (int number = 1; number < 65; number++)
        sigaction(number, NULL, &before[number]);
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR2);
    DONE(pthread_sigmask(SIG_SETMASK, &mine, NULL));
    open_busy();
    DONE(pthread_sigmask(SIG_SETMASK, NULL, &mask));
    scene_close(&scene);
    for (int number = 1; number < 65; number++) {
        memset(&now, 0, sizeof now);
        if (sigaction(number, NULL, &now))
            continue;
        EXPECT(now.sa_handler == before[number].sa_handler);
        EXPECT_EQ(now.sa_flags, before[number].sa_flags);
        EXPECT_EQ(sigismember(&mask, number), number == SIGUSR2);
    }
}

/* ------------------------------------------------------------------------------------------------------------- ended by a signal */

/* The number of a process stands in a name by itself: random letters of other names have digits, too. */
static bool has_number(const char *name, pid_t process)
{
    for (const char *at = strpbrk(name, "0123456789"); at; at = strpbrk(at, "0123456789")) {
        bool begins = at == name || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        char *end;
        long found = strtol(at, &end, 10);
        if (begins && found == process && !isalnum((unsigned char)*end) && *end != '_')
            return true;
        at = end;
    }
    return false;
}

/* Files that a process of that number has named after cenote and itself. */
static unsigned files_of(pid_t process, const char *path)
{
    DIR *folder = opendir(path);
    unsigned count = 0;
    for (struct dirent *d; folder && (d = readdir(folder));)
        count += strstr(d->d_name, "cenote") && has_number(d->d_name, process);
    if (folder)
        closedir(folder);
    return count;
}

/* SIGINT as it is: the process is gone at once, its name with it, and nothing lies around. */
static void ended_by(int number)
{
    struct other other;
    cenote_share share;
    uint64_t there;
    void *at = NULL;
    signal(number, SIG_DFL); /* what a shell starts in the background ignores SIGINT */
    open_busy();
    other_start(&other, "capacity:256MiB,context_bytes:0", CENOTE_VMM);
    DONE(other_take(&other, 4 * MIB, 7, &share, &there));
    kill(other.process, number);
    int status = 0;
    EXPECT(waitpid(other.process, &status, 0) == other.process && WIFSIGNALED(status) && WTERMSIG(status) == number);
    close(other.socket);
    EXPECT_EQ(cenote_import(&share, sizeof share, 0, &at), CENOTE_GONE);
    EXPECT(strstr(cenote_message(), "is gone"));
    EXPECT_EQ(files_of(other.process, "/tmp") + files_of(other.process, "/dev/shm"), 0);
    scene_close(&scene);
}

ENDS_WITH(an_interrupted_process_leaves_nothing, 0)
{
    ended_by(SIGINT);
}

ENDS_WITH(a_killed_process_leaves_nothing, 0)
{
    ended_by(SIGKILL);
}

static void exit_now(int number)
{
    (void)number;
    _exit(12);
}

static void *allocate_for_ever(void *number)
{
    while (!come_and_go(number))
        ;
    return NULL;
}

/* A handler that ends the process by _exit, at any moment. */
static void ends_itself(void)
{
    pthread_t threads[SCENE_STREAMS];
    struct sigaction action = {.sa_handler = exit_now};
    open_busy();
    DONE(sigaction(SIGTERM, &action, NULL));
    for (uintptr_t i = 0; i < SCENE_STREAMS; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, allocate_for_ever, (void *)i));
    usleep(2000 + (useconds_t)getpid() % 7 * 300);
    kill(getpid(), SIGTERM);
    pause();
}

CASE(a_handler_that_exits)
{
    for (int i = 0; i < 10; i++)
        EXPECT_EQ(status_of(ends_itself), 12);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], OTHER_WORD) == 0)
        return other_main(argv[2]);
    return test_run("processes: signals", argc > 1 ? argv[1] : "", NULL, process_after);
}
