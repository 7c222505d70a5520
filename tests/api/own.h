/*
 * own.h: a process that exports a block to itself, for tests of the other end of shared memory, and what a refused import looks like.
 */
#ifndef CENOTE_TESTS_API_OWN_H
#define CENOTE_TESTS_API_OWN_H

#include "share/share.h"
#include "tests/api/other.h"

#include <dirent.h>

static char shape_text[128];

static inline int import(const cenote_share *share, void **at)
{
    return cenote_import(share, sizeof *share, 0, at);
}

static inline bool others_are_asleep(void)
{
    int awake = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        int thread = atoi(task->d_name);
        awake += thread && thread != gettid() && !is_asleep(thread);
    }
    if (tasks)
        closedir(tasks);
    return !awake;
}

/* The server's thread opens and closes some on its own time: it is at rest when it sleeps and nothing has changed. */
static inline uint64_t settled_files(void)
{
    uint64_t files = files_open();
    struct wait wait = {0};
    for (int same = 0; same < 3 && wait_on(&wait); same++) {
        bool rest = others_are_asleep();
        uint64_t now = files_open();
        same = rest && now == files ? same : -1;
        files = now;
    }
    return files;
}

static inline void expect_files(uint64_t files)
{
    for (struct wait wait = {0}; files_open() != files && wait_on(&wait);)
        ;
    EXPECT_EQ(settled_files(), files);
}

/* An error in words, and nothing was opened. */
static inline void expect_refusal(const cenote_share *share, int expected, const char *words)
{
    void *at = &shape_text;
    uint64_t files = settled_files();
    EXPECT_EQ(import(share, &at), expected);
    if (!strstr(cenote_message(), words))
        fprintf(stderr, "    \"%s\" is not in \"%s\"\n", words, cenote_message());
    EXPECT(strstr(cenote_message(), words) != NULL);
    EXPECT_EQ((void *)at, (void *)&shape_text);
    expect_files(files);
}

struct own {
    struct scene scene;
    struct held  held;
    cenote_share share;
};

static inline void open_own(struct own *own)
{
    struct sim_shape shape = scene_card(256 * MIB);
    cenote_options options = scene_options();
    snprintf(shape.machine, sizeof shape.machine, "cenote-peers-%d", (int)getpid());
    snprintf(shape_text, sizeof shape_text, "capacity:256MiB,context_bytes:0,machine:%s", shape.machine);
    scene_open_with(&own->scene, &shape, &options);
    REQUIRE(held_take(&own->held, own->scene.pool, 5 * MIB, NULL));
    DONE(cenote_export(own->held.at, &own->share));
}

static inline void close_own(struct own *own)
{
    void *at;
    DONE(import(&own->share, &at)); /* whatever was done, it works */
    DONE(cenote_import_close(at));
    held_give(&own->held);
    scene_close(&own->scene);
}

static inline struct share_message message_of(const cenote_share *share)
{
    struct share_message m;
    memcpy(&m, share, sizeof m);
    return m;
}

static inline cenote_share sealed(struct share_message m)
{
    cenote_share share;
    share_seal(&m);
    memcpy(&share, &m, sizeof share);
    return share;
}

#endif
