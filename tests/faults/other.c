/*
 * other.c: a second thread, which works while a call of the scenario's thread is in the driver: what that looked up before it asked the driver may be
 * another thread's by then. It takes blocks of several sizes, uses and frees them, and trims. What it is refused it goes on without.
 *
 *     the n-th call comes    the other thread begins, and the call waits until that is done, or asleep because the scenario's thread has the turn
 *     the call fails, or is made                  a sleeping thread goes on beside the scenario's
 *     the pool ends, or the judge looks           the other thread is done, and holds nothing
 *
 * LOCKING: none; what the threads share are the library's pools.
 */
#include "tests/faults/act.h"
#include "tests/patience.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OTHER_BLOCKS 24

static struct act *act_of;
static pthread_t   thread;
static bool        is_begun;
static atomic_bool is_done;
static atomic_int  number;      /* the system's, of the other thread; 0: it has not begun */

static void *work(void *unused)
{
    void *at[OTHER_BLOCKS];
    int count = 0;
    const struct scene *scene = &act_of->scene;
    atomic_store(&number, (int)syscall(SYS_gettid));
    DONE(cuCtxSetCurrent(scene->context));
    for (int i = 0; i < OTHER_BLOCKS; i++)
        count += !cenote_alloc(scene->pool, (size_t)512 << i % 13, scene->stream[A], &at[count]);
    for (int i = 0; i < count; i += 3)
        (void)cenote_use(at[i], scene->stream[B]);
    while (count--)
        DONE(cenote_free(at[count]));
    (void)cenote_pool_trim(scene->pool, 0, 0);
    atomic_store(&is_done, true);
    return unused;
}

static bool other_sleeps(void)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", atomic_load(&number));
    FILE *file = atomic_load(&number) ? fopen(path, "r") : NULL;
    if (!file)
        return false;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    const char *name_ends = strrchr(text, ')');
    return name_ends && name_ends[2] == 'S';
}

static void visit(void)
{
    is_begun = !pthread_create(&thread, NULL, work, NULL);
    REQUIRE(is_begun);
    while (!atomic_load(&is_done) && !other_sleeps())
        sched_yield();
}

void other_begin(struct act *act)
{
    act_of = act;
    fault_meanwhile(visit);
}

void other_end(void)
{
    fault_meanwhile(NULL);
    if (is_begun)
        pthread_join(thread, NULL);
    is_begun = false;
}
