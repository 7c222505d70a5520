/*
 * check.h: assertions, in two prices.
 *
 * CHECK       debug builds (CENOTE_DEBUG >= 1): costs a comparison
 * CHECK_SLOW  debug builds with CENOTE_DEBUG >= 2: walks whole structures
 *
 * A failing check prints the expression and aborts. Neither is a way to report an error of the caller: those are results.
 *
 * BREAKS(n) is false, but in a debug build with CENOTE_BREAK=n in its environment, where rule n of docs/design.md is broken on purpose: a
 * test of that rule has to fail then, or it tests nothing. Nothing of it is in release builds.
 */
#ifndef CENOTE_BASE_CHECK_H
#define CENOTE_BASE_CHECK_H

#include <stdbool.h>

#ifndef CENOTE_DEBUG
#define CENOTE_DEBUG 0
#endif

__attribute__((noreturn)) void check_failed(const char *expression, const char *file, int line);

#if CENOTE_DEBUG >= 1
#define CHECK(x) ((x) ? (void)0 : check_failed(#x, __FILE__, __LINE__))
#else
#define CHECK(x) ((void)sizeof(x))
#endif

#if CENOTE_DEBUG >= 1
bool check_breaks(int rule);
#define BREAKS(rule) check_breaks(rule)
#else
#define BREAKS(rule) false
#endif

#if CENOTE_DEBUG >= 2
#define CHECK_SLOW(x) CHECK(x)
#else
#define CHECK_SLOW(x) ((void)sizeof(x))
#endif

#endif
