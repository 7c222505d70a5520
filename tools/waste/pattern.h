/* pattern.h: a program that allocates, as a few numbers that can be changed one at a time. See pattern.c. */
#ifndef CENOTE_TOOLS_WASTE_PATTERN_H
#define CENOTE_TOOLS_WASTE_PATTERN_H

#include <stdio.h>

#include "tools/replay/trace.h"

#define PHASES_MAX 10
#define PATTERN_RECORDS 10000 /* a pattern has at most so many allocations, frees and uses */
#define PATTERN_STEP_NS 10000 /* between two of them */

enum sizes { SIZES_ONE, SIZES_TWO, SIZES_SPREAD, SIZES_GROWING, SIZES_KINDS }; /* `least` alone; both in turns; any between; from one to the other */
enum order { ORDER_FIRST, ORDER_LAST, ORDER_RANDOM, ORDER_KINDS };             /* which block is freed first */

/* Fills, frees. */
struct phase {
    uint64_t least, most;   /* bytes of its blocks */
    uint64_t pin;           /* bytes of the small blocks among them, which stay */
    uint32_t pin_every;     /* one of those after so many blocks; 0: none */
    uint32_t pin_phases;    /* so many phases longer */
    uint32_t fill;          /* percent of the live limit up to which it allocates */
    uint32_t window;        /* while it fills, a block is freed after so many further ones; 0: none is */
    uint32_t keep;          /* at the end one in so many of its blocks stays; 0: none */
    uint32_t thin;          /* and one in so many of those that earlier phases left; 0: none, 1: all */
    uint32_t use;           /* one in so many blocks is used by the next stream, too; 0: none */
    uint32_t stream;        /* from 0; as many as there are streams: all in turns */
    enum sizes sizes;
    enum order order;
};

struct pattern {
    struct phase phases[PHASES_MAX];
    uint32_t     count;     /* of phases, 1 or more */
    uint64_t     seed;      /* of sizes and orders at random */
};

/* The limits of patterns. */
struct bounds {
    uint64_t live;          /* no more bytes are live at any time */
    uint32_t streams;
};

void pattern_random(struct pattern *pattern, const struct bounds *bounds, uint64_t *random);
void pattern_change(struct pattern *pattern, const struct bounds *bounds, uint64_t *random);

/* Writes the program to `trace`, which holds a trace or zeros; it frees everything at its end. False: no host memory. */
bool pattern_play(const struct pattern *pattern, const struct bounds *bounds, struct trace *trace);

/* Prints a line for each phase. */
void pattern_print(FILE *file, const struct pattern *pattern, const struct bounds *bounds);

#endif
