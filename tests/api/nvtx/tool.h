/* tool.h: what a test asks the tool of NVTX; see tool.c. */
#ifndef CENOTE_TESTS_API_NVTX_TOOL_H
#define CENOTE_TESTS_API_NVTX_TOOL_H

#include <stdbool.h>

bool        nvtx_tool_is_foreign(const void *byte);
const char *nvtx_tool_name(const void *region);     /* NULL: there is no such region */
int         nvtx_tool_regions(void);
int         nvtx_tool_heaps(void);
int         nvtx_tool_faults(void);

#endif
