/* identities.h: numbers that tell blocks apart which lie at one address one after the other. See identities.c. */
#ifndef CENOTE_PRELOAD_IDENTITIES_H
#define CENOTE_PRELOAD_IDENTITIES_H

#include <stdint.h>

/* Of the live block that starts there. 0: no host memory. */
unsigned long long identity_of(const void *block);

/* The block is freed next. */
void identity_forget(const void *block);

#endif
