/* careful.h: before the first pool without announced captures opens; see careful.c. */
#ifndef CENOTE_POOL_CAREFUL_H
#define CENOTE_POOL_CAREFUL_H

int careful_begin(void);

#endif
