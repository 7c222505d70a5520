/* judge.c: the end of a run that found something. */
#include "fuzz/judge.h"

#include "sim/sim.h"

#include <cenote/cenote.h>
#include <stdio.h>
#include <stdlib.h>

void judge_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    fprintf(stderr, "  cenote: \"%s\"\n  simulated GPU: \"%s\"\n", cenote_message(), sim_last_violation());
    abort();
}
