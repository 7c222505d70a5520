/*
 * error.c: what went wrong, in words, for each thread.
 *
 * The words are made where the failure is seen, because only there is known which block, which option, which driver call. They are kept
 * in the thread's own storage until its next failure; success never touches them. This is not a log: nothing is printed.
 *
 * The storage is part of the thread and of fixed size: reporting that memory has run out takes none. (Where the library was loaded
 * late, with dlopen, the C library itself sets that storage aside when a thread first comes here.)
 *
 * LOCKING: none; everything belongs to the calling thread.
 */
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 512 /* our choice; longer words end in ... */

static _Thread_local struct {
    char text[MESSAGE_BYTES];
    int  cuda_result;
} failure = {.text = "no call of this thread has failed"};

/* Only these three carry a result of the driver; others leave the last one as it is. */
static int has_driver_result(int code)
{
    return code == CENOTE_DRIVER || code == CENOTE_DEVICE_LOST || code == CENOTE_OUT_OF_MEMORY;
}

int error_set(int code, int cuda_result, const char *format, ...)
{
    char text[MESSAGE_BYTES]; /* apart, because an argument may be the message so far */
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);

    if (length >= (int)sizeof(text))
        memcpy(text + sizeof(text) - 4, "...", 4);

    strcpy(failure.text, text);
    if (has_driver_result(code))
        failure.cuda_result = cuda_result;
    return code;
}

const char *cenote_message(void)
{
    return failure.text;
}

int cenote_driver_result(void)
{
    return failure.cuda_result;
}

const char *cenote_error_name(int error)
{
    switch (error) {
#define ERROR(code, name, text) case code: return "CENOTE_" #name;
#include <cenote/errors.def>
#undef ERROR
    }
    return "CENOTE_UNKNOWN";
}

const char *cenote_error_text(int error)
{
    switch (error) {
#define ERROR(code, name, text) case code: return text;
#include <cenote/errors.def>
#undef ERROR
    }
    return "an error that this version of cenote does not know";
}
