/*
 * ends.c: what ends in the driver and matters to cenote: streams.
 *
 * LOCKING: none.
 */
#include "plugins/preload/captures.h"
#include "plugins/preload/hooks.h"
#include "plugins/preload/place.h"

/* Every pool is told: the stream may have used memory of other devices. A pool that does not know it says OK, and one that cannot be told now keeps
   what the stream freed until another call names the stream, which none will: that memory is lost to the program, not unsafe. */
CUresult serve_cuStreamDestroy_v2(CUstream stream)
{
    for (int i = 0; i < PLACES_MAX; i++)
        if (place_at(i))
            cenote_stream_retire(place_at(i)->pool, stream);
    captures_forget_stream(stream);
    return real()->cuStreamDestroy_v2(stream);
}
