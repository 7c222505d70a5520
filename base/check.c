/* check.c: the end of a program that found itself broken. It uses no stdio: the program may be broken inside malloc. */
#include "base/check.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void put(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* no stream to write to */
}

void check_failed(const char *expression, const char *file, int line)
{
    char digits[12];
    char *digit = digits + sizeof(digits) - 1;
    *digit = 0;
    do
        *--digit = (char)('0' + line % 10);
    while (line /= 10);

    put("cenote: ");
    put(file);
    put(":");
    put(digit);
    put(": check failed: ");
    put(expression);
    put("\n");
    abort();
}

#if CENOTE_DEBUG >= 1
bool check_breaks(int rule)
{
    static atomic_int broken = -1; /* read once */
    int number = atomic_load_explicit(&broken, memory_order_relaxed);
    if (number < 0) {
        const char *text = secure_getenv("CENOTE_BREAK");
        number = text ? atoi(text) : 0;
        atomic_store_explicit(&broken, number, memory_order_relaxed);
    }
    return number == rule;
}
#endif
