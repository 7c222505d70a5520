/* relay.h: streams of ours in the place of what cenote cannot be told of. See relay.c. */
#ifndef CENOTE_PRELOAD_RELAY_H
#define CENOTE_PRELOAD_RELAY_H

#include "plugins/preload/place.h"

/* Opens one that waits for the event, which may be of another context and may be used again afterwards. Inside the place (place_enter). */
CUresult relay_open(CUevent event, CUstream *relay);
void     relay_close(struct place *p, CUstream relay);

/* The block is also used on a stream that cenote does not serve: when it is freed it waits for what that stream was given so far. */
CUresult relay_use(struct place *p, void *block, CUstream stream);

#endif
