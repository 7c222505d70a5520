/* verdict.c: the rows of experiments.def, and what follows from their outcomes: the verdict, what there is not, and what to set. */
#include <stdio.h>
#include <string.h>

#include "tools/qualify/qualify.h"

const struct row rows[STEPS] = {
#define EXPERIMENT(name, rule, weight, when, sentence, without) {#name, rule, weight, when, sentence, without},
#include "tools/qualify/experiments.def"
#undef EXPERIMENT
    [STEP_programs] = {"programs", 1, NEEDED, LATER, "random programs on several streams read what they wrote", "memory that holds what is written"},
    [STEP_prices] = {"prices", 0, TOLD, LATER, "what the driver's calls cost", ""},
    [STEP_crowd] = {"crowd", 0, TOLD, LATER, "what these calls cost while two other processes make them, too", ""},
};

bool row_is_tried(const struct report *report, enum step step)
{
    return !report->is_first_use || rows[step].when == FIRST;
}

bool row_is_missing(const struct report *report, enum step step)
{
    enum outcome outcome = report->steps[step].outcome;
    if (!row_is_tried(report, step) || (report->is_first_use && outcome == NOT_RUN))
        return false;
    switch (rows[step].weight) {
    case NEEDED:
    case WANTED:
        return outcome != HOLDS;
    case OFFERED:
        return outcome == FAILS;
    case TOLD:
        break;
    }
    return false;
}

enum verdict verdict_of(const struct report *report)
{
    enum verdict verdict = FIT;
    for (enum step step = 0; step < STEPS; step++) {
        if (!row_is_missing(report, step))
            continue;
        if (rows[step].weight == NEEDED)
            return USE_PLAIN;
        verdict = FIT_WITHOUT;
    }
    return verdict;
}

/* Several rows may have the same `without`, which the verdict names once. */
bool row_is_first_without(const struct report *report, enum step step)
{
    if (!row_is_missing(report, step))
        return false;
    for (enum step before = 0; before < step; before++)
        if (row_is_missing(report, before) && strcmp(rows[before].without, rows[step].without) == 0)
            return false;
    return true;
}

bool verdict_on_aliases(const struct report *report)
{
    static const enum step tried[] = {STEP_alias_stream, STEP_alias_event, STEP_alias_fence, STEP_alias_dependent};
    for (unsigned i = 0; i < sizeof tried / sizeof *tried; i++)
        if (report->steps[tried[i]].outcome == FAILS)
            return false;
    return true;
}

static bool are_refused(const struct report *report, enum step step)
{
    return step == STEP_pages && report->steps[step].outcome == FAILS && report->steps[step].cause == REFUSAL;
}

/*
 * Only contents that differ are a verdict on a card at its first use, because it is remembered. Memory may be short for a moment, a process may have
 * been killed, a card may be used exclusively. Pages that a call refuses are no question at all: libcenote asks the same each time (driver/probe.c).
 */
bool verdict_is_open(const struct report *report)
{
    for (enum step step = 0; step < STEPS && report->is_first_use; step++) {
        if (report->steps[step].outcome != FAILS || report->steps[step].cause == CONTENTS || are_refused(report, step))
            continue;
        fprintf(stderr, "cenote qualify: no verdict: %s: %s\n", rows[step].sentence, report->steps[step].note);
        return true;
    }
    return false;
}

const char *conf_of(const struct report *report)
{
    if (report->is_first_use && are_refused(report, STEP_pages))
        return "";
    if (verdict_of(report) == USE_PLAIN)
        return "provider:plain";
    return verdict_on_aliases(report) ? "" : "aliases:off";
}
