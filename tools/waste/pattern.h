/* pattern.h: a program that allocates, as a few numbers that can be changed one at a time. See pattern.c. */
#ifndef CENOTE_TOOLS_WASTE_PATTERN_H
#define CENOTE_TOOLS_WASTE_PATTERN_H

#include "tools/replay/trace.h"

#define PHASES_MAX 10

enum sizes { SIZES_ONE, SIZES_TWO, SIZES_SPREAD, SIZES_GROWING, SIZES_KINDS }; /* LEAST alone; both in turns; any between; from one to the other */
enum order { ORDER_FIRST, ORDER_LAST, ORDER_RANDOM, ORDER_KINDS };             /* which block is freed first */

/* Of a phase, which fills, and then frees. */
enum number {
    LEAST, MOST,    /* bytes of its blocks */
    PIN,            /* bytes of the small blocks among them, which stay */
    PIN_EVERY,      /* one of those after so many blocks; 0: none */
    PIN_PHASES,     /* so many phases longer */
    FILL,           /* percent of the live limit up to which it allocates */
    WINDOW,         /* while it fills, a block is freed after so many further ones; 0: none is */
    KEEP,           /* at the end one in so many of its blocks stays; 0: none */
    THIN,           /* and one in so many of those that earlier phases left; 0: none, 1: all */
    USE,            /* one in so many blocks is used by the next stream, too; 0: none */
    STREAM,         /* from 0; as many as there are streams: all in turns */
    SIZES, ORDER,
    NUMBERS
};

struct phase {
    uint64_t n[NUMBERS];
};

struct pattern {
    struct phase phases[PHASES_MAX];
    uint32_t     count;     /* of phases, 1 or more */
    uint64_t     seed;      /* of sizes and orders at random */
};

/* The limits of patterns. */
struct bounds {
    uint64_t live;          /* no more bytes are live at any time */
    uint64_t streams;
};

void pattern_random(struct pattern *pattern, const struct bounds *bounds, uint64_t *random);
void pattern_change(struct pattern *pattern, const struct bounds *bounds, uint64_t *random);

/* Writes the program to `trace`, which holds a trace or zeros; it frees everything at its end. Ends the process if the host has no memory. */
void pattern_play(const struct pattern *pattern, const struct bounds *bounds, struct trace *trace);

#endif
