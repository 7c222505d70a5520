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
 * Of all that the context was given so far: captures_mark records the event behind it, captures_wait waits for it. Both are calls that would end a
 * capture. False, and nothing was done: a capture is open, or the driver has no such event. Else *result is the driver's answer.
 */
bool captures_mark(CUcontext context, CUevent event, CUresult *result);
bool captures_wait(CUcontext context, CUresult *result);
bool captures_can_mark(void);
bool captures_are_open(void);

/* The stream is destroyed next; the context has ended, or ends next. Captures that began there are over. */
void captures_forget_stream(CUstream stream);
void captures_forget_context(CUcontext context);

/* The context ends next, which the driver allows while it captures: its captures end now, and if need be the streams that they began on. */
void captures_end_in(CUcontext context);

/*
 * From now on captures are announced for the place of this number: by a private group of its pool and a stream of ours, neither of which memory is
 * taken with.
 * `all_are_seen`: none begins by a route past our hooks. A CENOTE_ error: it was not possible. After captures_leave the place is told nothing more.
 */
int  captures_join(int number, cenote_group *group, CUstream mark, bool all_are_seen);
void captures_leave(int number);

#endif
