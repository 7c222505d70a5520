/* test_record.c: what a pool wrote down is what happened, whole, whatever the ring has lost and whichever threads were at work meanwhile. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "stats/records/records.h"
#include "tests/api/scene.h"

#define EVENTS_MAX 20000
#define LIVE_MAX 300

static char path[96];

static void make_path(void)
{
    snprintf(path, sizeof path, "%s/cenote-record-%d.csv.gz", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
}

static void remove_file(void)
{
    unlink(path);
    scene_after();
}

/* ------------------------------------------------------------------------------------------------------------ a program, and its shadow */

struct event {
    char     op;
    uint64_t bytes;
    uint64_t live;      /* bytes after it */
    uint64_t blocks;    /* live ones after it */
};

struct program {
    struct scene  scene;
    cenote_group *group;
    void         *block[LIVE_MAX];
    uint64_t      bytes[LIVE_MAX];
    uint32_t      count;
    uint64_t      random;
    struct event  event[EVENTS_MAX];   /* [0]: nothing has happened yet */
    uint32_t      events;
};

static struct program p;

static uint64_t pick(uint64_t below)
{
    uint64_t z = p.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % below;
}

static void note(char op, uint64_t bytes, int64_t live, int blocks)
{
    const struct event *last = &p.event[p.events];
    REQUIRE(p.events + 1 < EVENTS_MAX);
    p.event[++p.events] = (struct event){op, bytes, last->live + (uint64_t)live, last->blocks + (uint64_t)blocks};
}

static void take(void)
{
    static const uint64_t most[] = {600, 9000, 300 * KIB, 5 * MIB};
    uint64_t bytes = 1 + pick(most[pick(4)]);
    CUstream stream = p.scene.stream[pick(SCENE_STREAMS)];
    void **block = &p.block[p.count];
    int error = pick(4) ? cenote_alloc(p.scene.pool, bytes, stream, block) : group_alloc(p.group, bytes, 512, stream, block);
    if (error)
        return;
    p.bytes[p.count++] = bytes;
    note('a', bytes, (int64_t)bytes, 1);
}

static void give(uint32_t i)
{
    DONE(cenote_free(p.block[i]));
    note('f', p.bytes[i], -(int64_t)p.bytes[i], -1);
    p.block[i] = p.block[--p.count];
    p.bytes[i] = p.bytes[p.count];
}

/* The work is long: the block stays pending when it is freed. */
static void use(uint32_t i)
{
    CUstream stream = p.scene.stream[pick(SCENE_STREAMS)];
    DONE(sim_launch_wait(stream, 3 * MSEC));
    DONE(cenote_use(p.block[i], stream));
    note('u', p.bytes[i], 0, 0);
}

static void act(void)
{
    uint64_t what = pick(100);
    if (!p.count || (what < 48 && p.count < LIVE_MAX))
        take();
    else if (what < 90)
        give((uint32_t)pick(p.count));
    else if (what < 97)
        use((uint32_t)pick(p.count));
    else {
        DONE(cenote_pool_step(p.scene.pool));
        note('s', 0, 0, 0);
    }
    if (what == 55)
        DONE(cenote_pool_trim(p.scene.pool, 0, pick(2) ? CENOTE_TRIM_WAIT : 0));
}

static void open_program(uint64_t seed, uint32_t record)
{
    struct sim_shape shape = scene_card(2 * GIB);
    cenote_options options = scene_options();
    shape.lag = MSEC;
    options.record = record;
    options.trim_every = 3;
    memset(&p, 0, sizeof p);
    p.random = seed;
    scene_open_with(&p.scene, &shape, &options);
    DONE(cenote_group_create(p.scene.pool, "others", 0, NULL, &p.group));
}

static void close_program(void)
{
    while (p.count)
        give(p.count - 1);
    DONE(cenote_group_destroy(p.group));
    scene_close(&p.scene);
}

/* ----------------------------------------------------------------------------------------------------------------- the trace against it */

static struct records_reader *open_trace(void)
{
    struct records_reader *reader = records_open(path);
    REQUIRE(reader != NULL);
    return reader;
}

/* The trace tells the last `kept` events, and before them what was live then. */
static void expect_trace(uint32_t kept)
{
    struct records_reader *reader = open_trace(); /* of what was saved last */
    const struct event *before = &p.event[p.events - kept];
    struct record r;
    uint64_t live = 0, blocks = 0, different = 0, records = 0, last_id = 0, last_ns = 0;
    for (; blocks < before->blocks && records_next(reader, &r) == RECORDS_ONE; blocks++) {
        different += r.op != RECORD_ALLOC || r.t_ns != 0 || r.id != ++last_id;
        live += r.bytes;
    }
    EXPECT_EQ(blocks, before->blocks);
    EXPECT_EQ(live, before->live);
    while (records_next(reader, &r) == RECORDS_ONE) {
        const struct event *e = before + ++records;
        REQUIRE(records <= kept);
        live += r.op == RECORD_ALLOC ? r.bytes : r.op == RECORD_FREE ? -r.bytes : 0;
        different += r.op != (enum record_op)e->op || r.bytes != e->bytes || live != e->live || r.t_ns < last_ns;
        different += r.op == RECORD_ALLOC && r.id != ++last_id;
        last_ns = r.t_ns;
    }
    EXPECT_TEXT_EQ(records_message(reader), "");
    EXPECT_EQ(records, kept);
    EXPECT_EQ(different, 0);
    records_close(reader);
}

static void save_and_expect(uint32_t kept)
{
    DONE(cenote_pool_record_save(p.scene.pool, path));
    expect_trace(kept);
}

CASE(a_trace_tells_what_happened)
{
    open_program(1, 100000);
    save_and_expect(0);
    for (int part = 0; part < 5; part++) {
        for (int i = 0; i < 600; i++)
            act();
        save_and_expect(p.events);
    }
    close_program();
}

CASE(a_ring_that_has_wrapped_gives_a_whole_trace)
{
    static const uint32_t rings[] = {1, 2, 7, 64, 500, 2000};
    for (unsigned i = 0; i < sizeof rings / sizeof rings[0]; i++) {
        open_program(10 + i, rings[i]);
        for (int part = 0; part < 4; part++) {
            for (int n = 0; n < 700; n++)
                act();
            save_and_expect(p.events < rings[i] ? p.events : rings[i]);
        }
        close_program();
    }
}

CASE(recording_begins_and_ends_at_any_time)
{
    open_program(3, 0);
    for (int i = 0; i < 500; i++)
        act();
    EXPECT_EQ(cenote_pool_record_save(p.scene.pool, path), CENOTE_INVALID);
    EXPECT(strstr(cenote_message(), "nothing is recorded") != NULL);
    DONE(cenote_pool_record(p.scene.pool, 5000));
    uint32_t begun = p.events;
    for (int i = 0; i < 500; i++)
        act();
    save_and_expect(p.events - begun);
    DONE(cenote_pool_record(p.scene.pool, 100)); /* anew */
    begun = p.events;
    for (int i = 0; i < 50; i++)
        act();
    save_and_expect(p.events - begun);
    DONE(cenote_pool_record(p.scene.pool, 0));
    for (int i = 0; i < 50; i++)
        act();
    EXPECT_EQ(cenote_pool_record_save(p.scene.pool, path), CENOTE_INVALID);
    close_program();
}

CASE(during_a_capture)
{
    cenote_group *graph;
    CUgraph captured;
    void *block;
    open_program(4, 1000);
    for (int i = 0; i < 200; i++)
        act();
    DONE(cenote_group_create(p.scene.pool, "graph", CENOTE_GROUP_PRIVATE, NULL, &graph));
    DONE(cenote_capture_begin(p.scene.pool, graph, p.scene.stream[A]));
    DONE(cuStreamBeginCapture(p.scene.stream[A], CU_STREAM_CAPTURE_MODE_GLOBAL));
    DONE(cenote_alloc(p.scene.pool, 3 * MIB, p.scene.stream[A], &block));
    note('a', 3 * MIB, 3 * MIB, 1);
    save_and_expect(p.events);
    DONE(cuStreamEndCapture(p.scene.stream[A], &captured));
    DONE(cenote_capture_end(p.scene.pool, graph, p.scene.stream[A]));
    DONE(cenote_free(block));
    note('f', 3 * MIB, -(int64_t)(3 * MIB), -1);
    save_and_expect(p.events);
    DONE(cuGraphDestroy(captured));
    DONE(cenote_group_destroy(graph));
    close_program();
}

/* ------------------------------------------------------------------------------------------------------------------------- its columns */

static void expect_line(const char *text)
{
    static char contents[1 << 16];
    FILE *file = fopen(path, "rb");
    REQUIRE(file != NULL);
    size_t size = fread(contents, 1, sizeof contents - 1, file);
    fclose(file);
    contents[size] = 0;
    EXPECT(strstr(contents, text) != NULL);
    if (!strstr(contents, text))
        fprintf(stderr, "no \"%s\" in\n%s", text, contents);
}

CASE(what_a_ring_has_lost)
{
    make_path();
    path[strlen(path) - 3] = 0; /* no .gz */
    scene_open(&p.scene, 64 * MIB);
    DONE(cenote_pool_record(p.scene.pool, 4));
    for (int lost = 0; lost < 3; lost++) {
        for (int i = lost ? 3 : 0; i < 4; i++) /* four at first, which fill it, then one at a time */
            DONE(cenote_pool_step(p.scene.pool));
        DONE(cenote_pool_snapshot(p.scene.pool, path));
        char text[64];
        snprintf(text, sizeof text, "\"records\":4,\"records_lost\":%d}", lost);
        expect_line(text);
    }
    scene_close(&p.scene);
}

static void expect_record(const char *start, const void *address, const char *label, size_t reserved)
{
    char line[200];
    snprintf(line, sizeof line, "%s,%" PRIuPTR ",%s,%zu\n", start, (uintptr_t)address, label, reserved);
    expect_line(line);
}

CASE(streams_and_tags_have_numbers_and_names)
{
    void *block[4];
    open_program(5, 100);
    path[strlen(path) - 3] = 0; /* no .gz */
    DONE(cenote_tag_push("train"));
    DONE(cenote_tag_push("a,b \"50%\" \xc3\xa9"));
    DONE(cenote_alloc(p.scene.pool, 1000, NULL, &block[0]));
    DONE(cenote_alloc(p.scene.pool, 2000, p.scene.stream[B], &block[1]));
    DONE(cenote_tag_pop());
    DONE(cenote_alloc(p.scene.pool, 3000, p.scene.stream[C], &block[2]));
    DONE(cenote_tag_pop());
    DONE(cenote_alloc(p.scene.pool, 3 * MIB, p.scene.stream[B], &block[3]));
    DONE(cenote_use(block[3], p.scene.stream[C]));
    DONE(cenote_pool_record_save(p.scene.pool, path));
    expect_line("t_us,op,id,bytes,stream,device,tag,address,label,reserved\n");
    expect_record(",a,1,1000,0,0,2", block[0], "train/a%2Cb %2250%25%22 \xc3\xa9", 2 * MIB);
    expect_record(",a,2,2000,1,0,2", block[1], "", 4 * MIB);
    expect_record(",a,3,3000,2,0,1", block[2], "train", 6 * MIB);
    expect_record(",a,4,3145728,1,0,0", block[3], "", 8 * MIB);
    expect_record(",u,4,3145728,2,0,0", block[3], "", 8 * MIB);
    for (int i = 0; i < 4; i++)
        DONE(cenote_free(block[i]));
    close_program();
}

/* ----------------------------------------------------------------------------------------------------------------------- what cannot be */

static void expect_refused(int error, int expected, const char *words)
{
    EXPECT_EQ(error, expected);
    EXPECT(strstr(cenote_message(), words) != NULL);
    if (!strstr(cenote_message(), words))
        fprintf(stderr, "no \"%s\" in \"%s\"\n", words, cenote_message());
}

CASE(mistakes_are_told_and_nothing_is_lost)
{
    cenote_options options = scene_options();
    cenote_pool *other;
    open_program(6, 1000);
    for (int i = 0; i < 300; i++)
        act();
    expect_refused(cenote_pool_record_save(p.scene.pool, NULL), CENOTE_INVALID, "name of a file");
    expect_refused(cenote_pool_record_save(p.scene.pool, ""), CENOTE_INVALID, "name of a file");
    expect_refused(cenote_pool_record_save(p.scene.pool, "/no/such/folder/x.csv"), CENOTE_FILE, "/no/such/folder/x.csv: No such file");
    expect_refused(cenote_pool_record_save(p.scene.pool, "/"), CENOTE_FILE, "/: Is a directory");
    expect_refused(cenote_pool_record_save(p.scene.pool, "/dev/full"), CENOTE_FILE, "No space left on device");
    expect_refused(cenote_pool_record_save(NULL, path), CENOTE_INVALID, "NULL");
    expect_refused(cenote_pool_record(NULL, 1), CENOTE_INVALID, "NULL");
    expect_refused(cenote_pool_record(p.scene.pool, 1000000001), CENOTE_INVALID, "up to 1000000000");
    expect_refused(cenote_pool_record(p.scene.pool, UINT64_MAX), CENOTE_INVALID, "up to 1000000000");
    options.record = 1000000001;
    expect_refused(cenote_pool_create(0, &options, &other), CENOTE_BAD_OPTION, "record");
    char longer[5000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    expect_refused(cenote_pool_record_save(p.scene.pool, longer), CENOTE_FILE, "too long");
    save_and_expect(p.events); /* the ring is as it was */
    close_program();
}

/* Host memory for a trace is asked for in many pieces. Without one of them there is no trace, and the next try has all it needs. */
CASE(a_trace_without_host_memory)
{
    int refused = 0, error = 1;
    open_program(8, 100);
    for (int i = 0; i < 6000; i++)
        act();
    for (; error && refused < 100; refused += error != 0) {
        memory_fail((uint64_t)refused + 1, false);
        error = cenote_pool_record_save(p.scene.pool, path);
        memory_fail(0, false);
        EXPECT(!error || error == CENOTE_OUT_OF_HOST_MEMORY);
        EXPECT_EQ(access(path, F_OK), error ? -1 : 0);
    }
    EXPECT(refused >= 5);
    save_and_expect(100);
    close_program();
}

/* A trace is asked for when the pool is opened, and written by the process that opened it unless the name has gone. */
CASE(an_environment_that_changes)
{
    struct scene scene;
    int status;
    scene_open(&scene, 64 * MIB);
    setenv("CENOTE_TRACE", path, 1);
    scene_close(&scene);
    EXPECT_EQ(access(path, F_OK), -1);
    scene_open(&scene, 64 * MIB);
    fflush(NULL);
    pid_t child = fork();
    if (!child)
        exit(0); /* runs what is registered for the end */
    REQUIRE(waitpid(child, &status, 0) == child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(access(path, F_OK), -1);
    setenv("CENOTE_TRACE", "", 1);
    scene_close(&scene);
    EXPECT_EQ(access(path, F_OK), -1);
    unsetenv("CENOTE_TRACE");
}

/* A disk that fills up leaves the trace that was there, and nothing beside it. */
CASE(a_full_disk_keeps_what_was_there)
{
    struct rlimit before, small;
    open_program(7, 5000);
    path[strlen(path) - 3] = 0;
    for (int i = 0; i < 500; i++)
        act();
    save_and_expect(p.events);
    struct stat was, is;
    REQUIRE(!stat(path, &was));
    for (int i = 0; i < 2000; i++)
        act();
    DONE(getrlimit(RLIMIT_FSIZE, &before));
    small = before;
    small.rlim_cur = 30000;
    signal(SIGXFSZ, SIG_IGN);
    DONE(setrlimit(RLIMIT_FSIZE, &small));
    expect_refused(cenote_pool_record_save(p.scene.pool, path), CENOTE_FILE, "File too large");
    DONE(setrlimit(RLIMIT_FSIZE, &before));
    REQUIRE(!stat(path, &is));
    EXPECT_EQ(is.st_size, was.st_size);
    EXPECT_EQ(is.st_ino, was.st_ino);
    char beside[200];
    snprintf(beside, sizeof beside, "ls %s.*part >/dev/null 2>&1", path);
    EXPECT(system(beside) != 0);
    save_and_expect(p.events);
    close_program();
}

/* --------------------------------------------------------------------------------------------------------------------------- threads */

struct hammer {
    pthread_t    thread;
    cenote_pool *pool;
    CUcontext    context;
    CUstream     stream, other;
    uint64_t     random;
    unsigned     failures;
};

static _Atomic bool over;

static void *hammer(void *arg)
{
    struct hammer *h = arg;
    void *block[32] = {NULL};
    h->failures += cuCtxPushCurrent(h->context) != 0;
    for (uint64_t i = 0; !atomic_load(&over); i++) {
        void **b = &block[i * 7 % 32];
        h->random = h->random * 6364136223846793005u + 1442695040888963407u;
        h->failures += cenote_free(*b) != 0;
        h->failures += cenote_alloc(h->pool, 1 + (h->random >> 40) % (i % 3 ? 9000 : 2 * MIB), h->stream, b) != 0;
        h->failures += i % 5 == 0 && cenote_use(*b, h->other);
        h->failures += i % 50 == 0 && cenote_pool_step(h->pool);
    }
    for (int i = 0; i < 32; i++)
        h->failures += cenote_free(block[i]) != 0;
    h->failures += cuCtxPopCurrent(NULL) != 0;
    return NULL;
}

/* Each trace is read to its end: what it frees was live, what it allocates was not, and time goes on. */
static unsigned expect_sound(void)
{
    struct records_reader *reader = open_trace();
    struct record r;
    enum records_result got;
    unsigned count = 0;
    while ((got = records_next(reader, &r)) == RECORDS_ONE)
        count++;
    EXPECT_EQ(got, RECORDS_END);
    EXPECT_TEXT_EQ(records_message(reader), "");
    records_close(reader);
    return count;
}

CASE(while_threads_are_at_work)
{
    struct hammer h[3];
    unsigned records = 0;
    open_program(8, 3000);
    atomic_store(&over, false);
    for (int i = 0; i < 3; i++) {
        h[i] = (struct hammer){.pool = p.scene.pool, .context = p.scene.context, .stream = p.scene.stream[i], .other = p.scene.stream[(i + 1) % 3],
                               .random = (uint64_t)i};
        DONE(pthread_create(&h[i].thread, NULL, hammer, &h[i]));
    }
    for (int i = 0; i < 40; i++) {
        DONE(cenote_pool_record_save(p.scene.pool, path));
        records += expect_sound();
        if (i % 10 == 9)
            DONE(cenote_pool_record(p.scene.pool, i == 19 ? 50 : 20000));
    }
    atomic_store(&over, true);
    for (int i = 0; i < 3; i++) {
        DONE(pthread_join(h[i].thread, NULL));
        EXPECT_EQ(h[i].failures, 0);
    }
    EXPECT(records > 1000);
    close_program();
}

SUITE_MAIN_AROUND("record", make_path, remove_file)
