/* abi.c: compiles only if the headers agree with abi.def. Of structs without holes (-Wpadded) whose members lie where they lay, others are behind. */
#include <cenote/cenote.h>
#include <cenote/share.h>
#include <cenote/report.h>
#include <cenote/host.h>

#define MEMBER(type, member, offset, bytes)                                                                   \
    _Static_assert(offsetof(type, member) == (offset), #type "." #member " has moved: append, never insert"); \
    _Static_assert(sizeof(((type *)0)->member) == (bytes), #type "." #member " has another size");
#define VALUE(name, number) _Static_assert((int)(name) == (number), #name " has another value: append, never insert");
#include "tools/check/abi.def"

_Static_assert(sizeof(cenote_level) == 32 && sizeof(cenote_share) == 64, "these two never change: cenote.h");
_Static_assert((int)CENOTE_KINDS <= (int)CENOTE_KINDS_MAX, "cenote_marked has no room for so many kinds");
