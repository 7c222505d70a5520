/* clib.h: the dlsym and the dlvsym of the C library, past ours. See clib.c. */
#ifndef CENOTE_PRELOAD_CLIB_H
#define CENOTE_PRELOAD_CLIB_H

void *clib_dlsym_function(void);
void *clib_dlvsym_function(void);
void *clib_dlvsym(void *handle, const char *name, const char *version);

#endif
