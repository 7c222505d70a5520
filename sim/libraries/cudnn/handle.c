/*
 * handle.c: the library as a whole: versions, errors in words, and the start of kernels. Handles are library.c's.
 *
 * LOCKING: none. The last error is the thread's own.
 */
#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sim/libraries/cudnn/cudnn.h"
#include "sim/sim.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

static _Thread_local char last_error[256];

int cudnn_fail(int error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return error;
}

int cudnn_check_handle(const void *handle)
{
    return handle_is_valid(handle) ? 0 : cudnn_fail(CUDNN_BAD_PARAM, "%p is not a handle", handle);
}

int cudnn_launch(const void *handle, const char *name)
{
    int error = cudnn_check_handle(handle);
    if (error)
        return error;
    const struct handle *h = handle;
    if (library_launch_on(h->stream, name))
        return cudnn_fail(CUDNN_EXECUTION_FAILED, "%s: the stream takes no kernel", name);
    return 0;
}

int cudnn_occupy(const void *handle, uint64_t ns)
{
    int error = cudnn_check_handle(handle);
    if (error || !ns)
        return error;
    const struct handle *h = handle;
    return sim_launch_wait(h->stream, ns) ? cudnn_fail(CUDNN_EXECUTION_FAILED, "the stream takes no work") : 0;
}

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

/* Of the runtime it was built with. */
size_t cudnnGetCudartVersion(void)
{
    return CUDART_VERSION;
}

int cudnnGetProperty(int which, int *value)
{
    static const int parts[] = {CUDNN_VERSION / 10000, CUDNN_VERSION / 100 % 100, CUDNN_VERSION % 100};
    if (!value || which < 0 || which > 2)
        return cudnn_fail(CUDNN_BAD_PARAM, "property %d", which);
    *value = parts[which];
    return 0;
}

const char *cudnnGetErrorString(int error)
{
    switch (error) {
#define ERROR(name, number) case number: return "CUDNN_STATUS_" #name;
#include "sim/libraries/cudnn/errors.def"
#undef ERROR
    default: return "CUDNN_UNKNOWN_STATUS";
    }
}

/* What this thread's last failure was, and forgets it. */
void cudnnGetLastErrorString(char *message, size_t size)
{
    if (!message || !size)
        return;
    snprintf(message, size, "%s", last_error);
    last_error[0] = 0;
}
