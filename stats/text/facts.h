/*
 * facts.h: everything that an explanation is made from, as plain numbers. The pool fills them in (stats/report/explain.c); the text and the advice
 * are made from them alone (explain.c, advice.def), so that every state can be made up by a test.
 */
#ifndef CENOTE_STATS_TEXT_FACTS_H
#define CENOTE_STATS_TEXT_FACTS_H

#include <cenote/cenote.h>
#include <cenote/report.h>
#include <stdbool.h>

#define FACTS_UNKNOWN   UINT64_MAX  /* of a number of bytes */
#define FACTS_PROCESSES 8           /* that are named; others are summed up */
#define FACTS_STEPS     5           /* steps in a row that have to grow before we speak of it */

/* What could not be asked any more. */
enum facts_gap { FACTS_WHOLE, FACTS_LOST, FACTS_EXITING };

enum facts_kin { KIN_STRANGER, KIN_CHILD, KIN_LEFT /* the run that started it has ended */ };

struct facts_process {
    unsigned       pid;
    enum facts_kin kin;
    bool           is_others;       /* another user's */
    bool           is_gone;         /* it has ended, and the driver lists it all the same */
    uint64_t       bytes;
    const char    *command;         /* "": not known */
};

struct facts {
    /* what was asked, of which pool */
    uint64_t       bytes;           /* 0: nothing failed */
    int            device;
    const char    *user;            /* "PyTorch" */
    enum facts_gap gap;
    uint64_t       capacity;        /* of the device */
    uint64_t       left;            /* free, says the driver */
    uint64_t       before;          /* in use when the first pool of the device was opened */
    bool           capturing;

    /* the pool: what is cached is the sum of the parts below and of what lies between blocks */
    bool           moves;           /* its memory comes in pages */
    uint64_t       limit;           /* 0: none */
    uint64_t       page;
    uint64_t       reserved, allocated, blocks;
    uint64_t       asleep;          /* of `allocated`: its memory is with the driver */
    uint64_t       harvestable;     /* any stream may have it */
    uint64_t       waiting;         /* freed, but streams may be at work on it */
    bool           is_unannounced;  /* announced:0: only a word of the program shows that a stream has ended */
    uint64_t       frozen;          /* in private pools, or pinned */
    uint64_t       immovable;       /* in segments that are partly used */
    uint64_t       whole;           /* beside blocks that share nothing with others */
    uint64_t       idle;            /* of `frozen`: in private pools without a live block */
    uint64_t       private_pools, idle_pools;
    uint64_t       in_groups;       /* of `allocated`: in groups of any kind */

    /* the process, and others */
    uint64_t       pools, elsewhere; /* other pools of the process on this device, and what they hold */
    const char    *unlisted;        /* why other processes on the device are not known; NULL: it is known */
    bool           are_strangers;   /* the list has ids of another namespace: which of them is this process is not known */
    uint64_t       own;             /* what this process has of the device */
    struct facts_process processes[FACTS_PROCESSES]; /* others, those with most first */
    unsigned       listed;
    unsigned       more;            /* others, not named */
    uint64_t       more_bytes;
    uint64_t       empty;           /* one bit for each other device that nearly nothing is held of */

    /* the program */
    uint64_t       steps;           /* that are over */
    uint64_t       growing;         /* of these, the last ones in a row that each left more behind */
    uint64_t       grown;           /* bytes, in all of them */
    uint64_t       activations;     /* bytes; 0: none, or not known, as in the next line */
    cenote_moment  moment;

    /* facts_derive */
    uint64_t       cached, between;
    uint64_t       available;       /* all that could serve the request if nothing stood in its way */
    uint64_t       lacking;         /* what it asks for beyond that; 0 also where it is not known what is free */
    uint64_t       short_by;        /* what it asks for beyond what any stream may have now: at least `lacking`, likewise */
    uint64_t       used, ours, others, left_behind, children, strangers;
    uint64_t       context, beside, unexplained; /* context and beside: of this process; both FACTS_UNKNOWN if they cannot be told apart */
    uint64_t       overhead;        /* both together */
};

/* Fills in the members at the end. */
void facts_derive(struct facts *f);

enum advice {
#define ADVICE(name, condition, ...) ADVICE_##name,
#include "stats/text/advice.def"
#undef ADVICE
    ADVICES
};

/* Which advice fits best, at most `most` of it, the best first. How many. */
int         advice_choose(const struct facts *f, enum advice *chosen, int most);
const char *advice_name(enum advice advice);

/* The explanation as text, like snprintf. */
size_t explain_print(const struct facts *f, char *text, size_t size);

#endif
