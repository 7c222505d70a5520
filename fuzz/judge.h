/* judge.h: what a fuzz target and its runner agree on: one entry, and an abort with a reason when something is wrong. */
#ifndef CENOTE_FUZZ_JUDGE_H
#define CENOTE_FUZZ_JUDGE_H

#include <stddef.h>
#include <stdint.h>

/* Called by libFuzzer, or by replay.c. Everything it does is undone when it returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Says what did not hold, what cenote and the simulated GPU said last, and aborts. */
__attribute__((noreturn)) void judge_failed(const char *what, const char *file, int line);

#define JUDGE(x) ((x) ? (void)0 : judge_failed(#x, __FILE__, __LINE__))

#endif
