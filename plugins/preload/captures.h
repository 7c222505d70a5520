/* captures.h: the captures of streams in the process. See captures.c. */
#ifndef CENOTE_PRELOAD_CAPTURES_H
#define CENOTE_PRELOAD_CAPTURES_H

#include "plugins/preload/real.h"

#include <cenote/cenote.h>

/*
 * This stream is being captured; where a capture may be open the driver is asked. Also true where it cannot tell, because a call on this stream would
 * end a capture.
 */
bool captures_have(CUstream stream);

/*
 * Records the event behind all that the context was given so far, a call that would end a capture. False, and nothing was done: a capture is open, or
 * the driver has no such event, as before CUDA 12.5. Else *result is the driver's answer.
 */
bool captures_mark(CUcontext context, CUevent event, CUresult *result);
bool captures_can_mark(void);
bool captures_are_open(void);
bool captures_may_be_open(void); /* also past our hooks */

/* The stream is destroyed next; the context has ended, or ends next. Captures that began there are over. */
void captures_forget_stream(CUstream stream);
void captures_forget_context(CUcontext context);

/* The context ends next, which the driver allows while it captures: its captures end now, and if need be the streams that they began on. */
void captures_end_in(CUcontext context);

/*
 * From now on captures are announced for the place of this number: for a stream of ours, on which no memory is taken.
 * `all_are_seen`: none begins by a route past our hooks. A CENOTE_ error: it was not possible. After captures_leave the place is told nothing more.
 */
int  captures_join(int number, cenote_pool *pool, CUstream mark, bool all_are_seen);
void captures_leave(int number);

#endif
