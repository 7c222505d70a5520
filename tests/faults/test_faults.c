/*
 * test_faults.c: fails every call on purpose: of the driver, and for our own memory.
 *
 * For each scenario of scenarios.def and each way to fail: the first call fails, then the second, and so on until the scenario passes
 * untouched; once alone, once with all calls after it, and once alone while a second thread works (other.c), which also comes to calls that
 * succeed. Each injection is a process of its own, forked before the driver is loaded, so that one that crashes or hangs is one lost, and that
 * nothing is left over from the one before. judge.c says what survived. Ways to fail are tried beside each other, each by a process of its own,
 * as many at a time as there are processors.
 *
 *     program             a selection, for every run of the tests: of later calls only some; fewer under AddressSanitizer, where a process takes long
 *                         to fork, and `make deep` says short
 *     program short       more of them
 *     program long        every single one
 *     program ... WORD    only the scenarios with WORD in their names
 *
 * The last line is "N injections survived, M lost".
 */
#include "tests/faults/scenarios.h"

#include "base/memory.h"
#include "tests/patience.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS_MAX 30         /* chosen: a run takes milliseconds */
#define INJECTIONS_MAX 5000    /* of one way to fail: none has so many calls */
#define LOST_SHOWN 20           /* of each scenario */

/* How a call fails. */
struct way {
    enum fault_kind kind;
    CUresult        error;
    bool            persistent;
    enum other      other;
};

#define BOTH(error) {FAULT_DRIVER, error, false, OTHER_NONE}, {FAULT_DRIVER, error, true, OTHER_NONE}
#define WHILE_OTHER_WORKS(error) {FAULT_DRIVER, error, false, OTHER_IN_POOL}, {FAULT_DRIVER, error, false, OTHER_IN_OWN}
static const struct way ways[] = {
    BOTH(CUDA_ERROR_OUT_OF_MEMORY),
    BOTH(CUDA_ERROR_UNKNOWN),
    BOTH(CUDA_ERROR_INVALID_VALUE),
    BOTH(CUDA_ERROR_NOT_SUPPORTED),
    BOTH(CUDA_ERROR_ILLEGAL_ADDRESS),
    BOTH(CUDA_ERROR_LAUNCH_FAILED),
    {FAULT_MEMORY, CUDA_SUCCESS, false, OTHER_NONE},
    {FAULT_MEMORY, CUDA_SUCCESS, true, OTHER_NONE},
    WHILE_OTHER_WORKS(CUDA_SUCCESS), /* the call is made */
    WHILE_OTHER_WORKS(CUDA_ERROR_OUT_OF_MEMORY),
    WHILE_OTHER_WORKS(CUDA_ERROR_UNKNOWN),
};
#undef BOTH
#undef WHILE_OTHER_WORKS
#define WAYS (sizeof ways / sizeof *ways)

/* Of calls of the driver every `stride`-th is tried, beginning elsewhere for each way and scenario; of demands for memory, which are few, a
   fourth of that; beside another thread, which takes longer, twice that. */
#ifdef __SANITIZE_ADDRESS__
static unsigned stride = 128;
#else
static unsigned stride = 16;
#endif
static unsigned survived, lost;

/* What the child tells. */
struct report {
    bool fired;
    bool judged;
    char call[48];
    char words[512];
};

/* Of one way to fail, told by the process that tries it. */
static struct outcome {
    struct report report;
    unsigned survived, lost;
} *outcomes;

static struct report *report;   /* of this process's way */

/* ---------------------------------------------------------------------------------------------------------------------- one injection */

/* The first check that failed, as file:line: words. */
static void remember_failures(unsigned before)
{
    CU_pFailureRecord failure = CU_get_failure_list();
    for (unsigned i = 0; failure && i < before; i++)
        failure = failure->pNext;
    if (!failure)
        return;
    const char *slash = strrchr(failure->strFileName, '/');
    snprintf(report->words, sizeof report->words, "%s:%u: %s", slash ? slash + 1 : failure->strFileName, failure->uiLineNumber,
             failure->strCondition);
}

/* In the child, which never returns. REQUIRE comes back here. */
static void inject(void (*scenario)(struct act *), const struct ground *ground, const struct injection *injection)
{
    static struct act act;
    jmp_buf out;
    unsigned before = CU_get_number_of_failure_records();
    alarm(patience(SECONDS_MAX));
    CU_get_current_test()->pJumpBuf = &out;
    if (!setjmp(out)) {
        act_begin(&act, ground, injection);
        scenario(&act);
        report->fired = judge(&act, scenario);
    }
    if (injection->kind == FAULT_DRIVER && fault_fired())
        snprintf(report->call, sizeof report->call, "%s", driver_call_name(fault_last()));
    remember_failures(before);
    report->judged = true;
    _exit(CU_get_number_of_failure_records() > before);
}

static const char *const others[] = {"", ", while another thread works in the pool", ", while another thread works in a pool of its own"};

static void tell_loss(const char *name, const struct injection *i, int status)
{
    fprintf(stderr, "LOST %s: ", name);
    if (i->kind == FAULT_DRIVER)
        fprintf(stderr, "driver call %llu, %s, %s%s", (unsigned long long)i->nth, report->call, driver_result_name(i->error), others[i->other]);
    else if (i->kind == FAULT_MEMORY)
        fprintf(stderr, "no memory at demand %llu", (unsigned long long)i->nth);
    else
        fprintf(stderr, "nothing injected");
    fprintf(stderr, "%s: ", i->persistent ? ", and all after it" : "");
    if (WIFSIGNALED(status))
        fprintf(stderr, "killed by signal %d\n", WTERMSIG(status));
    else
        fprintf(stderr, "%s\n", report->judged ? report->words : "exited before the judge");
}

/* True: it survived. report->fired says whether anything failed at all. */
static bool try_one(const char *name, void (*scenario)(struct act *), const struct ground *ground, const struct injection *injection,
                    unsigned *shown)
{
    int status = 0;
    memset(report, 0, sizeof *report);
    pid_t child = fork();
    if (!child)
        inject(scenario, ground, injection);
    if (child < 0 || waitpid(child, &status, 0) != child)
        snprintf(report->words, sizeof report->words, "there was no process for it");
    else if (WIFEXITED(status) && !WEXITSTATUS(status) && report->judged)
        return true;
    if ((*shown)++ < LOST_SHOWN)
        tell_loss(name, injection, status);
    return false;
}

/* ------------------------------------------------------------------------------------------------------------------------ one scenario */

struct trial {
    const char *name;
    void (*scenario)(struct act *);
    const struct ground *ground;
    unsigned number;            /* of the scenario */
};

static void sweep_way(const struct trial *t, unsigned way, struct outcome *outcome)
{
    unsigned shown = 0, wide = ways[way].other && stride > 1 ? 2 * stride : stride, step = ways[way].kind == FAULT_MEMORY ? (stride + 3) / 4 : wide;
    struct injection injection = {ways[way].kind, ways[way].error, ways[way].persistent, 1 + (way + t->number) % step, ways[way].other};
    *outcome = (struct outcome){0};
    report = &outcome->report;
    do {
        if (try_one(t->name, t->scenario, t->ground, &injection, &shown))
            outcome->survived += report->fired;
        else
            outcome->lost++;
        injection.nth += step;
    } while ((report->fired || !report->judged) && injection.nth < INJECTIONS_MAX);
    outcome->lost += injection.nth >= INJECTIONS_MAX;
}

static void wait_for_one(void)
{
    int status = 0;
    EXPECT(wait(&status) > 0);
    EXPECT_EQ(status, 0);
}

/* The scenario is its own measure: it must pass as it is before anything is injected. */
static void sweep(const char *name, void (*scenario)(struct act *), const struct ground *ground)
{
    static unsigned scenarios;
    unsigned shown = 0, running = 0, lost_before = lost;
    struct trial trial = {name, scenario, ground, ++scenarios};
    report = &outcomes->report;
    bool passes = try_one(name, scenario, ground, &(struct injection){.kind = FAULT_NONE}, &shown);
    lost += !passes;
    REQUIRE(passes);
    for (unsigned way = 0; way < WAYS; way++) {
        if (ground->no_pool && ways[way].other == OTHER_IN_POOL)
            continue;
        if (running == (unsigned)sysconf(_SC_NPROCESSORS_ONLN)) {
            wait_for_one();
            running--;
        }
        pid_t child = fork();
        REQUIRE(child >= 0);
        if (!child) {
            sweep_way(&trial, way, &outcomes[way]);
            _exit(0);
        }
        running++;
    }
    while (running--)
        wait_for_one();
    for (unsigned way = 0; way < WAYS; way++) {
        survived += outcomes[way].survived;
        lost += outcomes[way].lost;
    }
    EXPECT_EQ(lost - lost_before, 0);
}

#define SCENARIO(name, ...) \
    CASE(name) \
    { \
        static const struct ground ground = {__VA_ARGS__}; \
        sweep(#name, scenario_##name, &ground); \
    }
#include "tests/faults/scenarios.def"
#undef SCENARIO

int main(int argc, char **argv)
{
    int word = 1;
    setenv("CENOTE_CONF", "announced:1", 0); /* for pools with default options: streams end without a word */
    if (argc > word && (!strcmp(argv[word], "short") || !strcmp(argv[word], "long")))
        stride = argv[word++][0] == 's' ? 4 : 1;
    (void)patience(1); /* measured here, and not in each process again */
    outcomes = mmap(NULL, WAYS * sizeof *outcomes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (outcomes == MAP_FAILED)
        return 2;
    int failed = test_run("faults", argc > word ? argv[word] : "", NULL, NULL);
    printf("%u injections survived, %u lost\n", survived, lost);
    return failed || lost;
}
