/* out.h: text on its way to a caller's buffer, as snprintf has it: what does not fit is counted and left out. */
#ifndef CENOTE_STATS_TEXT_OUT_H
#define CENOTE_STATS_TEXT_OUT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

struct out {
    char  *text;
    size_t size;
    size_t length;  /* counts on when the buffer is full */
};

__attribute__((format(printf, 2, 3))) static inline void out_print(struct out *out, const char *format, ...)
{
    size_t room = out->text && out->length < out->size ? out->size - out->length : 0;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(room ? out->text + out->length : NULL, room, format, arguments);
    va_end(arguments);
    if (length > 0)
        out->length += (size_t)length;
}

#endif
