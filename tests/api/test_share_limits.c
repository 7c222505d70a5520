/*
 * test_share_limits.c: sharing where there is little: no descriptors, threads or host memory for it, an exporter that ends, devices and drivers
 * that cannot; and shares within one process, on one device or two. test_share.c has what goes well, test_share_peers.c processes that do not behave.
 */
#include "tests/api/scene.h"
#include "tests/patience.h"

#include "base/memory.h"
#include "share/share.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int import_on(const cenote_share *share, int device, void **at)
{
    return cenote_import(share, sizeof *share, device, at);
}

/* How many descriptors this process may have; what it had is returned. */
static rlim_t allow_files(rlim_t most)
{
    struct rlimit limit;
    DONE(getrlimit(RLIMIT_NOFILE, &limit));
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = most;
    DONE(setrlimit(RLIMIT_NOFILE, &limit));
    return before;
}

/* The call gets one more piece of host memory each time, and says that it was too little until it is enough. Returns how often it said so. */
#define REFUSED_UNTIL_DONE(call)                                                        \
    __extension__({                                                                     \
        int error = 1, refused = 0;                                                     \
        while (error && refused < 100) {                                                \
            memory_fail(refused ? 2 : 1, true);                                         \
            error = (call);                                                             \
            memory_fail(0, false);                                                      \
            EXPECT(!error || error == CENOTE_OUT_OF_HOST_MEMORY);                       \
            refused += error != 0;                                                      \
        }                                                                               \
        DONE(cenote_pool_check(scene.pool));                                            \
        refused;                                                                        \
    })

static void leave_by_exit(void) { exit(0); }

static bool child_is_well(void (*run)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        run();
        _exit(1);
    }
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status);
}

static void *imported;

static void close_at_exit(void)
{
    _exit(imported && !cenote_import_close(imported) && cenote_import_close(imported) == CENOTE_NOT_OURS ? 0 : 1);
}

static void import_and_exit(void)
{
    struct scene scene;
    struct held held;
    cenote_share share;
    atexit(close_at_exit); /* runs after the library's own handlers, which are registered later */
    scene_open(&scene, 64 * MIB);
    if (held_take(&held, scene.pool, 3 * MIB, scene.stream[A]) && !cenote_export(held.at, &share))
        import_on(&share, 0, &imported);
    exit(1);
}

/* An import that is closed when the process ends is bookkeeping: no driver call is made. Before the driver is loaded here. */
CASE(closed_while_the_process_exits)
{
    EXPECT(child_is_well(import_and_exit));
}

/* The socket that answers; -1: none. */
static int own_socket(void)
{
    int found = -1;
    for (int file = 0; file < 1024 && found < 0; file++) {
        struct sockaddr_un name = {0};
        socklen_t size = sizeof name;
        if (!getsockname(file, (struct sockaddr *)&name, &size) && name.sun_family == AF_UNIX && !strncmp(name.sun_path + 1, "cenote-share", 12))
            found = file;
    }
    return found;
}

/* A thread of this process that has the name of the one that answers. */
static bool answers(void)
{
    char path[300], name[32];
    bool found = false;
    DIR *threads = opendir("/proc/self/task");
    for (struct dirent *each; threads && !found && (each = readdir(threads));) {
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", each->d_name);
        FILE *file = fopen(path, "r");
        found = file && fgets(name, sizeof name, file) && !strcmp(name, "cenote share\n");
        if (file)
            fclose(file);
    }
    if (threads)
        closedir(threads);
    return found;
}

static void loses_its_socket(void)
{
    struct scene scene;
    struct held held;
    struct wait wait = {0};
    cenote_share share;
    void *at;
    scene_open(&scene, 64 * MIB);
    int null = held_take(&held, scene.pool, 3 * MIB, scene.stream[A]) ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    bool right = null >= 0 && !cenote_export(held.at, &share) && dup2(null, own_socket()) > 0;
    import_on(&share, 0, &at); /* the thread hears of it with the next letter */
    while (right && answers() && wait_on(&wait))
        ;
    right = right && !answers() && import_on(&share, 0, &at) == CENOTE_GONE;
    _exit(right ? 0 : 1);
}

/* A program that closes all descriptors, or has given the number to another file, has no thread that asks it in vain, again and again. */
CASE(a_program_that_closes_all_files)
{
    EXPECT(child_is_well(loses_its_socket));
}

/* The first exports and imports of this process. When there is room again they work. */
CASE(no_descriptors_threads_or_memory)
{
    struct scene scene;
    struct held held;
    cenote_share share;
    void *at = NULL;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    rlim_t files = allow_files(0);
    EXPECT_EQ(cenote_export(held.at, &share), CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT(strstr(cenote_message(), "no socket") != NULL);
    allow_files(files);
    EXPECT(child_is_well(leave_by_exit)); /* there is nothing that a fork would have to close */
    EXPECT(REFUSED_UNTIL_DONE(cenote_export(held.at, &share)) >= 2);
    EXPECT(child_is_well(leave_by_exit));
    files = allow_files(0);
    EXPECT_EQ(import_on(&share, 0, &at), CENOTE_OUT_OF_HOST_MEMORY);
    EXPECT(strstr(cenote_message(), "no socket") != NULL);
    allow_files(files);
    EXPECT(REFUSED_UNTIL_DONE(import_on(&share, 0, &at)) >= 4);
    held_expect(&(struct held){at, held.bytes, held.pattern, NULL}, NULL);
    DONE(cuCtxSynchronize());
    DONE(cenote_import_close(at));
    held_give(&held);
    scene_close(&scene);
}

/* One view for each device, both of the same bytes. */
CASE(one_share_on_two_devices)
{
    struct scene scene;
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_options options = scene_options();
    struct held held;
    cenote_share share;
    void *at[2] = {NULL, NULL};
    shape.devices = 2;
    scene_open_with(&scene, &shape, &options);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    DONE(cuCtxSynchronize());
    DONE(cenote_export(held.at, &share));
    for (int device = 0; device < 2; device++)
        DONE(import_on(&share, device, &at[device]));
    EXPECT(at[0] && at[1] && at[0] != at[1]);
    DONE(cenote_import_close(at[0]));
    DONE(cenote_import_close(at[1]));
    EXPECT_EQ(cenote_import_close(at[1]), CENOTE_NOT_OURS);
    held_give(&held);
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------------- kinds of memory */

static int export_of_group(unsigned provider, unsigned flags, const cenote_source *source)
{
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_share share;
    cenote_group *group;
    void *block = NULL;
    options.provider = provider;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_group_create(scene.pool, "group", flags, source, &group));
    DONE(group_alloc(group, MIB, 512, scene.stream[A], &block));
    int error = cenote_export(block, &share);
    DONE(cenote_free(block));
    DONE(cenote_group_destroy(group));
    scene_close(&scene);
    return error;
}

/* Segments of cuMemAlloc can be shared, whosever group they are of; an async pool has such ones in its private groups. */
CASE(segments_of_groups)
{
    const cenote_source source = {take_source, give_source, NULL};
    EXPECT_EQ(export_of_group(CENOTE_PLAIN, 0, NULL), CENOTE_OK);
    EXPECT_EQ(export_of_group(CENOTE_PLAIN, 0, &source), CENOTE_NOT_SUPPORTED);
    EXPECT_EQ(export_of_group(CENOTE_ASYNC, CENOTE_GROUP_PRIVATE, NULL), CENOTE_OK);
    EXPECT_EQ(export_of_group(CENOTE_ASYNC, 0, NULL), CENOTE_NOT_SUPPORTED);
}

/* A segment has no pages to ask for one by one. */
CASE(a_page_of_a_segment)
{
    struct scene scene;
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    cenote_share share;
    struct share_message m;
    struct share_reply reply;
    void *block = NULL;
    int file;
    options.provider = CENOTE_PLAIN;
    scene_open_with(&scene, &shape, &options);
    DONE(cenote_alloc(scene.pool, MIB, scene.stream[A], &block));
    DONE(cenote_export(block, &share));
    memcpy(&m, &share, sizeof m);
    struct share_request q = {
        .key = m.exporter[1], .magic = SHARE_MAGIC, .version = SHARE_VERSION, .block = m.block, .generation = m.generation, .page = 0};
    share_answer(&q, sizeof q, &reply, &file);
    EXPECT(!reply.error && !reply.shift && file == -1);
    q.page = 1;
    share_answer(&q, sizeof q, &reply, &file);
    EXPECT_EQ(reply.error, CENOTE_INVALID);
    EXPECT_EQ(file, -1);
    DONE(cenote_free(block));
    scene_close(&scene);
}

/* ------------------------------------------------------------------------------------------------------------ no answer from the exporter */

/* A socket with the name of an exporter that does not exist, and a share of its. */
static int open_impostor(cenote_share *share, struct sockaddr_un *address, socklen_t *size)
{
    struct share_message m = {.magic = SHARE_MAGIC, .version = SHARE_VERSION, .exporter = {(uint64_t)getpid(), 77}, .block = 512};
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "cenote-share-%016llx", (unsigned long long)m.exporter[0]);
    int s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    DONE(bind(s, (struct sockaddr *)address, *size));
    share_seal(&m);
    memcpy(share, &m, sizeof m);
    return s;
}

/* Its queue is full: the question itself does not get there, and is not asked for ever. */
CASE(an_exporter_that_hears_nothing_more)
{
    struct scene scene;
    struct sockaddr_un address;
    socklen_t size;
    cenote_share share;
    void *at = NULL;
    int patience = share_patience;
    scene_open(&scene, 64 * MIB);
    int s = open_impostor(&share, &address, &size), sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    while (sendto(sender, "", 1, MSG_DONTWAIT, (struct sockaddr *)&address, size) == 1) {}
    EXPECT_EQ(errno, EAGAIN);
    share_patience = 3;
    EXPECT_EQ(import_on(&share, 0, &at), CENOTE_GONE);
    EXPECT_EQ(at, NULL);
    share_patience = patience;
    close(sender);
    close(s);
    scene_close(&scene);
}

/* Says once that the block lies on a page of 2 MiB. */
static void *answer_with_a_page(void *arg)
{
    struct share_reply reply = {.magic = SHARE_MAGIC, .shift = 21, .pages = 1, .serial = 1, .bytes = MIB};
    struct share_request q = {0};
    struct sockaddr_un from;
    socklen_t size = sizeof from;
    int s = *(int *)arg;
    bool asked = recvfrom(s, &q, sizeof q, 0, (struct sockaddr *)&from, &size) == sizeof q;
    reply.key = q.key_back;
    bool answered = asked && sendto(s, &reply, sizeof reply, 0, (struct sockaddr *)&from, size) == sizeof reply;
    return answered ? arg : NULL;
}

CASE(pages_for_a_device_that_maps_none)
{
    struct scene scene;
    struct sim_shape shape = scene_card(64 * MIB);
    cenote_options options = scene_options();
    struct sockaddr_un address;
    socklen_t size;
    cenote_share share;
    pthread_t thread;
    void *at = NULL, *answered;
    shape.vmm = false;
    options.provider = CENOTE_PLAIN;
    scene_open_with(&scene, &shape, &options);
    int s = open_impostor(&share, &address, &size);
    REQUIRE(!pthread_create(&thread, NULL, answer_with_a_page, &s));
    EXPECT_EQ(import_on(&share, 0, &at), CENOTE_NOT_SUPPORTED);
    EXPECT(strstr(cenote_message(), "cannot import this kind") != NULL);
    DONE(pthread_join(thread, &answered));
    EXPECT_EQ(answered, &s);
    EXPECT_EQ(at, NULL);
    close(s);
    scene_close(&scene);
}

/* The last case: a process that has begun to exit answers nothing any more, and never again. */
CASE(an_exporter_that_ends)
{
    struct scene scene;
    struct held held;
    cenote_share share;
    void *at = NULL;
    scene_open(&scene, 64 * MIB);
    REQUIRE(held_take(&held, scene.pool, 3 * MIB, scene.stream[A]));
    DONE(cenote_export(held.at, &share));
    DONE(import_on(&share, 0, &at));
    DONE(cenote_import_close(at));
    share_stop();
    EXPECT_EQ(import_on(&share, 0, &at), CENOTE_GONE);
    EXPECT(strstr(cenote_message(), "shares it no more") != NULL);
    held_give(&held);
    scene_close(&scene);
}

SCENES_MAIN("share: limits")
