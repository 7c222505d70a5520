/* routes.h: what a program that looks for a function of the driver is given. See routes.c. */
#ifndef CENOTE_PRELOAD_ROUTES_H
#define CENOTE_PRELOAD_ROUTES_H

/* Ours, if `function` is one of the driver's that we serve; else `function` itself. */
void *route_instead(void *function);

/* For dlsym.S alone. */
void        *route_dlsym(void *handle, const char *name, const void *caller);
void        *route_dlvsym(void *handle, const char *name, const char *version, const void *caller);
extern void *route_next, *route_next_of_version;

#endif
