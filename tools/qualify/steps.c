/* steps.c: runs steps in a child process, and sends their results to the parent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/qualify/qualify.h"

void steps_tell(int pipe, const struct message *message)
{
    if (write(pipe, message, sizeof *message) != sizeof *message)
        _exit(EXIT_FAILURE); /* the parent is gone */
}

static void tell_text(int pipe, struct message *m, const char *text)
{
    snprintf(m->u.text, sizeof m->u.text, "%s", text);
    steps_tell(pipe, m);
}

static enum outcome run_programs(struct card *card, const struct plan *plan, int pipe)
{
    struct message m = {.kind = PROGRAMS};
    enum outcome outcome = programs_run(card, plan, &m.u.programs);
    steps_tell(pipe, &m);
    return outcome;
}

static enum outcome run_step(struct card *card, const struct plan *plan, enum step step, int pipe)
{
    static enum outcome (*const experiments[EXPERIMENTS])(struct card *) = {
#define EXPERIMENT(name, rule, weight, when, sentence, without) experiment_##name,
#include "tools/qualify/experiments.def"
#undef EXPERIMENT
    };
    card->note[0] = 0;
    card->cause = REFUSAL;
    if (step == STEP_programs)
        return run_programs(card, plan, pipe);
    if (step == STEP_crowd)
        return prices_run_in_crowd(card, pipe);
    return step == STEP_prices ? prices_run(card, pipe) : experiments[step](card);
}

void steps_run(const struct plan *plan, enum step first, int pipe)
{
    struct card card = {0};
    struct message m = {.kind = CARD};
    if (!card_open(&card, plan->ordinal, &m.u.card)) {
        m.kind = REFUSED;
        tell_text(pipe, &m, card.note);
        return;
    }
    steps_tell(pipe, &m);
    for (enum step step = first; step < STEPS && m.outcome != FAILS; step++) {
        if (plan->first_use && rows[step].when == LATER)
            continue;
        if (step == STEP_crowd && step != first)
            return; /* the parent starts the other processes first */
        m = (struct message){.kind = BEGUN, .step = step};
        steps_tell(pipe, &m);
        m.kind = DONE;
        m.outcome = run_step(&card, plan, step, pipe);
        m.cause = card.cause;
        tell_text(pipe, &m, card.note);
    }
}
