/* options.h: the options of a pool, checked. The rest of options.c is the public API of cenote.h. */
#ifndef CENOTE_STATS_TEXT_OPTIONS_H
#define CENOTE_STATS_TEXT_OPTIONS_H

#include <cenote/cenote.h>

/*
 * Copies what a program gave, the struct of an older or newer header with its size, or NULL, to a full struct of ours. What the program
 * cannot say comes from CENOTE_CONF, then from the defaults. CENOTE_INVALID or CENOTE_BAD_OPTION if something is wrong with it.
 */
int options_check(const cenote_options *given, size_t size, cenote_options *full);

/* The defaults of options.def, whatever CENOTE_CONF says. */
void options_presets(cenote_options *options);

/* CENOTE_VMM for "vmm"; -1 for what is no provider. */
int         options_provider(const char *name);
const char *options_provider_name(int provider);

#endif
