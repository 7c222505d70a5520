/* test_lock.c: locks exclude, and debug builds stop at a wrong order, a second take and a give by another. */
#include "base/lock.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

#include "tests/base/child.h"
#include "tests/membarrier.h"
#include "tests/patience.h"

#define THREADS 4
#define ROUNDS  20000

static struct lock global = LOCK_INITIALIZER(LOCK_GLOBAL);
static struct lock pool_lock;
static struct lock other_pool;
static uint64_t counter; /* guarded by `pool_lock` */

static void open_locks(void)
{
    lock_open(&pool_lock, LOCK_POOL);
    lock_open(&other_pool, LOCK_POOL);
}

static void close_locks(void)
{
    lock_close(&pool_lock);
    lock_close(&other_pool);
}

static void *count(void *unused)
{
    (void)unused;
    for (int i = 0; i < ROUNDS; i++) {
        lock_take(&pool_lock);
        counter++;
        lock_give(&pool_lock);
    }
    return NULL;
}

static void all_count(void *unused)
{
    pthread_t threads[THREADS];
    (void)unused;
    alarm(patience(20));
    counter = 0;
    for (int i = 0; i < THREADS; i++)
        REQUIRE_EQ(pthread_create(&threads[i], NULL, count, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        REQUIRE_EQ(pthread_join(threads[i], NULL), 0);
    REQUIRE_EQ(counter, THREADS * ROUNDS);
    alarm(0);
}

CASE(one_thread_at_a_time)
{
    all_count(NULL);
}

/* As old systems answer, and some sandboxes. */
static void count_without_membarrier(void *unused)
{
    if (!membarrier_forbid())
        _exit(1);
    all_count(unused);
}

CASE(one_at_a_time_without_membarrier)
{
    struct child_end end = child_run(count_without_membarrier, NULL);
    EXPECT_EQ(end.signal, 0);
    EXPECT_EQ(end.status, 0);
}

/* Threads of this process that sleep, as the system says. */
static int sleeping(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    REQUIRE(tasks != NULL);
    for (const struct dirent *task; (task = readdir(tasks));) {
        char path[PATH_MAX], state = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", task->d_name);
        FILE *stat = fopen(path, "r");
        count += stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1 && state == 'S';
        if (stat)
            fclose(stat);
    }
    closedir(tasks);
    return count;
}

/* All sleep before the lock is given once: each wakes the next. */
CASE(every_thread_that_waits_is_woken)
{
    pthread_t threads[THREADS];
    struct wait wait = {0};
    counter = 0;
    alarm(patience(20));
    lock_take(&pool_lock);
    for (int i = 0; i < THREADS; i++)
        REQUIRE_EQ(pthread_create(&threads[i], NULL, count, NULL), 0);
    while ((atomic_load(&pool_lock.state) != LOCK_WAITED_FOR || sleeping() < THREADS) && wait_on(&wait))
        ;
    EXPECT_EQ(atomic_load(&pool_lock.waiting), THREADS);
    lock_give(&pool_lock);
    for (int i = 0; i < THREADS; i++)
        REQUIRE_EQ(pthread_join(threads[i], NULL), 0);
    alarm(0);
    EXPECT_EQ(counter, THREADS * ROUNDS);
    EXPECT_EQ(atomic_load(&pool_lock.waiting), 0);
}

static void take_in_rising_order(void *unused)
{
    (void)unused;
    lock_take(&global);
    lock_take(&pool_lock);
    lock_give(&global); /* giving has no order */
    lock_give(&pool_lock);
    lock_take(&other_pool);
    lock_give(&other_pool);
}

static void take_in_falling_order(void *unused)
{
    (void)unused;
    lock_take(&pool_lock);
    lock_take(&global);
}

static void take_two_of_a_rank(void *unused)
{
    (void)unused;
    lock_take(&pool_lock);
    lock_take(&other_pool);
}

static void *take_and_keep(void *lock)
{
    lock_take(lock);
    return NULL;
}

static void give_what_another_holds(void *unused)
{
    (void)unused;
    pthread_t thread;
    pthread_create(&thread, NULL, take_and_keep, &pool_lock);
    pthread_join(thread, NULL);
    lock_give(&pool_lock);
}

static void take_an_unopened_lock(void *unused)
{
    (void)unused;
    static struct lock unopened;
    lock_take(&unopened);
}

/* Release builds make none of these checks, and none of these children waits for itself there. */
CASE(debug_builds_stop_at_a_mistake)
{
    int stops = CENOTE_DEBUG >= 1 ? SIGABRT : 0;
    EXPECT_EQ(child_run(take_in_rising_order, NULL).signal, 0);
    EXPECT_EQ(child_run(take_in_falling_order, NULL).signal, stops);
    EXPECT_EQ(child_run(take_two_of_a_rank, NULL).signal, stops);
    EXPECT_EQ(child_run(give_what_another_holds, NULL).signal, stops);
    EXPECT_EQ(child_run(take_an_unopened_lock, NULL).signal, stops);
}

#if CENOTE_DEBUG >= 1

static void *holds_nothing(void *answer)
{
    *(bool *)answer = !lock_is_mine(&pool_lock) && lock_none_above(0);
    return NULL;
}

CASE(who_holds_what)
{
    pthread_t thread;
    bool other_holds_nothing = false;
    EXPECT(!lock_is_mine(&pool_lock));
    EXPECT(lock_none_above(0));

    lock_take(&pool_lock);
    EXPECT(lock_is_mine(&pool_lock));
    EXPECT(!lock_is_mine(&other_pool));
    EXPECT(!lock_none_above(LOCK_TURN));
    EXPECT(lock_none_above(LOCK_POOL));
    REQUIRE_EQ(pthread_create(&thread, NULL, holds_nothing, &other_holds_nothing), 0);
    REQUIRE_EQ(pthread_join(thread, NULL), 0);
    EXPECT(other_holds_nothing);
    lock_give(&pool_lock);

    EXPECT(!lock_is_mine(&pool_lock));
    EXPECT(lock_none_above(0));
}

#endif

#if CENOTE_DEBUG >= 1
/* Spends so much of the processor's time, whatever other programs have. */
static void spend(uint64_t ns)
{
    struct timespec t;
    uint64_t begin = 0, now = 0;
    while (!begin || now - begin < ns) {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
        begin = begin ? begin : now;
    }
}

/* Of one rank, from and to each pair of functions the longest; where others could have had the lock a hold ends. */
CASE(holds_are_timed)
{
    struct lock_hold holds[LOCK_HOLDS_MAX];
    open_locks();
    lock_time_holds(LOCK_POOL);
    lock_take(&pool_lock);
    spend(3000000);
    lock_give(&pool_lock);
    lock_take(&global);
    spend(1000000);
    lock_give(&global);
    lock_take(&pool_lock);
    spend(2000000);
    EXPECT(!lock_pass(&pool_lock));
    spend(1000000);
    lock_give(&pool_lock);
    REQUIRE_EQ(lock_holds(holds), 2);
    EXPECT(!strcmp(holds[0].taken_in, __func__) && !strcmp(holds[0].given_in, __func__) && holds[0].ns >= 3000000);
    EXPECT(!strcmp(holds[1].taken_in, __func__) && !strcmp(holds[1].given_in, "lock_pass") && holds[1].ns >= 2000000);
    lock_time_holds(0);
    lock_take(&pool_lock);
    lock_give(&pool_lock);
    EXPECT_EQ(lock_holds(holds), 0);
    close_locks();
}
#endif

SUITE_MAIN_AROUND("lock", open_locks, close_locks)
