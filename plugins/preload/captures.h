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

/* Waits until the device is done with all that the context was given; *result is the driver's answer. False, at once: a capture is open. */
bool captures_wait(CUcontext context, CUresult *result);

/* The stream is destroyed next; the context has ended, or ends next. Captures that began there are over. Is one open in the context? */
void captures_forget_stream(CUstream stream);
void captures_forget_context(CUcontext context);
bool captures_are_in(CUcontext context);

/*
 * From now on captures are announced for this device: by a private group of its pool and a stream of ours, neither of which memory is taken with.
 * `all_are_seen`: none begins by a route past our hooks. A CENOTE_ error: it was not possible. After captures_leave the device is told nothing more.
 */
int  captures_join(int device, cenote_group *group, CUstream mark, bool all_are_seen);
void captures_leave(int device);

#endif
