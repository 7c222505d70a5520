/*
 * qualify.h: what the files of cenote-qualify share.
 *
 *     main.c          reads the arguments, and starts the children that run the steps
 *     steps.c         runs steps in a child: experiments, random programs, prices; sends messages to the parent
 *     card.c          the card in a child: kernels, streams, pages
 *     experiments.c   the experiments of experiments.def, except those on captures
 *     captures.c      the experiments on captures
 *     prices.c        measures the calls of prices.def
 *     crowd.c         other processes that call the driver while prices are measured
 *     programs.c      random programs on a pool of cenote
 *     verdict.c       what follows from the outcomes
 *     screen.c        the screen, the JSON file, the file of prices
 *
 * A step that fails may leave the card's context lost, or a thread waiting for ever. So steps run in a child process, which ends after a failure. The
 * parent never calls the driver; it starts another child with the next step.
 */
#ifndef CENOTE_QUALIFY_H
#define CENOTE_QUALIFY_H

#include <stdbool.h>
#include <sys/types.h>

#include "driver/driver.h"

#define QUALIFY_STREAMS 4
#define QUALIFY_NOTE 640    /* bytes of a note with its end: the longest message of the driver's table, and what to do */

enum weight { NEEDED, WANTED, OFFERED, TOLD };
enum when { FIRST, LATER };
enum outcome { NOT_RUN, HOLDS, FAILS, ABSENT };
enum cause { REFUSAL, SHORTAGE, CONTENTS, DEATH };   /* of FAILS: a call; one for want of memory; what was read; the child ended, or hangs */

enum step {
#define EXPERIMENT(name, rule, weight, when, sentence, without) STEP_##name,
#include "tools/qualify/experiments.def"
#undef EXPERIMENT
    EXPERIMENTS,
    STEP_programs = EXPERIMENTS,
    STEP_prices,
    STEP_crowd,     /* prices beside other processes: a child begins with it */
    STEPS
};

enum price {
#define PRICE(name) PRICE_##name,
#include "tools/qualify/prices.def"
#undef PRICE
    PRICES
};

struct more_calls {
#define CALL(name, version, parameters) CUresult (*name) parameters;
#include "tools/qualify/calls.def"
#undef CALL
};

enum kernel { PATTERN_WRITE, PATTERN_COUNT, PATTERN_WAIT, PATTERN_WRITE_EARLY, PATTERN_COUNT_LATE, KERNELS };

struct card {
    const struct driver *d;
    struct more_calls    more;      /* NULL: the driver lacks it */
    int         ordinal;
    CUdevice    device;
    CUcontext   context;
    size_t      granularity;        /* 0: no virtual memory management */
    CUfunction  kernels[KERNELS];   /* NULL: the card cannot run this kernel */
    CUstream    streams[QUALIFY_STREAMS];   /* not ordered with the default stream */
    CUdeviceptr sum;                /* device memory: how many words kernels have found different so far */
    uint64_t    sum_seen;           /* *sum at the last card_differences */
    uint64_t    pattern;            /* the last one that card_pattern returned */
    const char *call;               /* of the driver: the last that mapped_make or mapped_end made */
    enum cause  cause;              /* if the running step fails */
    char        note[QUALIFY_NOTE]; /* what the running step has to say */
};

/* What the driver says of the card before any step. */
struct card_facts {
    char     name[96];
    int      driver_version;
    int      major, minor;
    uint64_t bytes;
};

enum beside { ALONE, LAUNCHES, PROCESSES };  /* another thread launches kernels; other processes make and unmake pages */

struct price_row {
    uint64_t page;          /* bytes */
    uint32_t run;           /* pages in a run */
    enum beside beside;     /* what happened at the same time */
    uint64_t ns[PRICES];    /* median; 0: not measured */
    uint64_t launch_ns;     /* beside LAUNCHES: the longest of them */
};

#define PRICE_ROWS 27

struct programs_result {
    uint64_t programs, blocks, bytes;   /* blocks that were allocated, written and read */
};

struct report {             /* what the parent collects from its children */
    struct card_facts      card;
    struct {
        enum outcome outcome;
        enum cause   cause;
        char         note[QUALIFY_NOTE];
    } steps[STEPS];
    struct price_row       prices[PRICE_ROWS];
    bool                   is_first_use;    /* only the rows marked FIRST were run */
    unsigned               price_count;
    uint64_t               launch_alone_ns;     /* the longest launch while no other thread calls the driver */
    struct programs_result programs;
};

/* --- steps.c, in the child */
struct plan {
    int      ordinal;
    unsigned seconds;       /* of random programs; 0: one program */
    uint64_t seed;
    bool     aliases_off;   /* an experiment with aliases failed, so random programs run without them */
    bool     first_use;     /* only the rows that experiments.def marks FIRST are run */
};

enum message_kind { CARD, REFUSED, BEGUN, DONE, PRICE_MEASURED, LAUNCHES_ALONE, PROGRAMS };

struct message {            /* no longer than PIPE_BUF, so that one write and one read carry it whole */
    enum message_kind kind;
    enum step         step;
    enum outcome      outcome;
    enum cause        cause;
    union {
        char                   text[QUALIFY_NOTE];
        struct card_facts      card;
        struct price_row       price;
        uint64_t               ns;
        struct programs_result programs;
    } u;
};

/* Runs the steps from `first` on, until all are done or one has failed, and writes messages to `pipe`. */
void steps_run(const struct plan *plan, enum step first, int pipe);
void steps_tell(int pipe, const struct message *message);

/* --- card.c */
bool     card_open(struct card *card, int ordinal, struct card_facts *facts);
void     card_note(struct card *card, const char *format, ...) __attribute__((format(printf, 2, 3)));
enum outcome card_failed(struct card *card, const char *call, CUresult result); /* notes the call and its result; returns FAILS */
int      card_attribute(const struct card *card, CUdevice_attribute attribute);
uint64_t card_pattern(struct card *card);                                           /* a new one at each call */
CUresult card_write(struct card *card, CUstream stream, CUdeviceptr at, size_t bytes, uint64_t pattern);
CUresult card_count(struct card *card, CUstream stream, CUdeviceptr at, size_t bytes, uint64_t pattern);
CUresult card_wait(struct card *card, CUstream stream, uint64_t ns);
CUresult card_launch(struct card *card, enum kernel kernel, CUstream stream, uint64_t words, void **parameters, bool early);
enum outcome card_judge(struct card *card, uint64_t differences);                   /* FAILS, with a note, if there are any */
CUresult card_differences(struct card *card, uint64_t *found); /* words that kernels have found different since the last call */
CUmemAllocationProp card_prop(const struct card *card);
CUresult card_open_access(const struct card *card, CUdeviceptr at, size_t bytes);

/* A page that is mapped at `times` adjacent addresses. */
struct mapped {
    CUdeviceptr at;
    size_t      size;
    unsigned    times;
    CUmemGenericAllocationHandle page;
};

CUresult mapped_make(struct card *card, const CUmemAllocationProp *prop, unsigned times, struct mapped *out);
CUresult mapped_end(struct card *card, const struct mapped *mapped);

/* In an experiment: the first call that fails ends the experiment. What the experiment took goes back when its process ends. */
#define TRY(call)                                                      \
    do {                                                               \
        CUresult result_ = (call);                                     \
        if (result_)                                                   \
            return card_failed(card, #call, result_);                  \
    } while (0)

#define EXPERIMENT(name, rule, weight, when, sentence, without) enum outcome experiment_##name(struct card *card);
#include "tools/qualify/experiments.def"
#undef EXPERIMENT

enum outcome programs_run(struct card *card, const struct plan *plan, struct programs_result *result);
enum outcome prices_run(struct card *card, int pipe);
enum outcome prices_run_in_crowd(struct card *card, int pipe);   /* crowd.c has started other processes */
void         prices_keep_busy(struct card *card, int pipe);         /* makes and unmakes memory until a call fails; a byte says that it has begun */
const char  *price_name(enum price price);

/* --- crowd.c: in the parent */
#define CROWD 2

struct crowd {
    pid_t processes[CROWD];     /* 0: none */
};

bool crowd_start(struct crowd *crowd, const struct plan *plan, int limit_ms);   /* true: all of them are at work */
void crowd_end(struct crowd *crowd);

/* --- verdict.c */
enum verdict { FIT, FIT_WITHOUT, USE_PLAIN };

struct row {
    const char *name;
    int         rule;
    enum weight weight;
    enum when   when;
    const char *sentence;
    const char *without;
};

extern const struct row rows[STEPS];

bool         row_is_tried(const struct report *report, enum step step);         /* at the first use of a card, only rows marked FIRST are */
bool         row_is_missing(const struct report *report, enum step step);       /* whether the verdict names what the row stands for */
bool         row_is_first_without(const struct report *report, enum step step); /* and no row before it stands for the same */
bool         verdict_on_aliases(const struct report *report);                   /* false: an experiment with aliases failed */
enum verdict verdict_of(const struct report *report);
bool         verdict_is_open(const struct report *report);                      /* the first use of a card has no verdict: see verdict.c */
const char  *conf_of(const struct report *report);                              /* what CENOTE_CONF has to say; "": nothing */

/* --- screen.c */
void         screen_print(const struct report *report);
bool         screen_write_json(const struct report *report, const char *path);
bool         screen_write_prices(const struct report *report, const char *path);

#endif
