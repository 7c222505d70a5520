/*
 * room.c: calls that stay the driver's and take memory of the device, beside allocations: rows ROOM of hooks.def. Where the driver has none left,
 * cenote gives back what no block uses, and the driver is asked once more.
 *
 * LOCKING: none.
 */
#include "plugins/preload/hooks.h"
#include "plugins/preload/place.h"

#define HOOK(name, symbol, version, parameters, arguments)
#define HOOK_STREAM(name, symbol, version, parameters, arguments)
#define ROOM(name, symbol, version, parameters, arguments)                     \
    CUresult serve_##symbol parameters                                         \
    {                                                                          \
        CUresult result = real()->symbol arguments;                            \
        return place_lacks_room(result) ? real()->symbol arguments : result;   \
    }
#define ROOM_STREAM ROOM
#define REAL(symbol, parameters)
#define UNTOUCHED(symbol, why)
#include "plugins/preload/hooks.def"
