/*
 * error.c: what went wrong, in words, for each thread.
 *
 * The words are made where the failure is seen, because only there is known which block, which option, which driver call. They are kept
 * in the thread's own storage until its next failure; success never touches them. This is not a log: nothing is printed, but where the
 * option `abort` asks that a mistake of the program end it there and then, for debuggers.
 *
 * The storage is part of the thread and of fixed size: reporting that memory has run out takes none. (Where the library was loaded
 * late, with dlopen, the C library itself sets that storage aside when a thread first comes here.) It has to be small, so that explanations,
 * which are long, are in sheets that threads borrow: a sheet is its thread's until that fails again or ends. Where all are taken the
 * thread's own storage has the beginning.
 *
 * LOCKING: none; everything belongs to the calling thread, a sheet by its id.
 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MESSAGE_BYTES ERROR_WORDS /* our choice; longer words end in ... */

#define SHEET_BYTES   4096 /* enough for every explanation, see stats/text/explain.c */
#define SHEETS        16   /* our choice: threads whose last failure was a shortage */

static struct sheet {
    _Atomic(int) owner;    /* a thread of the system, 0: none. Of a process that forked: a thread that is not there */
    char         text[SHEET_BYTES];
} sheets[SHEETS];

static _Thread_local struct {
    char  text[MESSAGE_BYTES];
    char *sheet;           /* NULL: the words are in `text` */
    int   cuda_result;
    bool  is_aside;        /* of a failure that is not the program's */
} failure = {.text = "no call of this thread has failed"};

static atomic_bool aborts;

void error_abort_on_misuse(void)
{
    atomic_store(&aborts, true);
}

/* Which errors say that the program made a mistake. Not a device that is not there: that may be the machine's. */
static bool is_misuse(int code)
{
    switch (code) {
    case CENOTE_INVALID: case CENOTE_NOT_OURS: case CENOTE_INTERIOR: case CENOTE_DOUBLE_FREE: case CENOTE_WRONG_SIZE:
    case CENOTE_BUSY: case CENOTE_CAPTURE: case CENOTE_FORKED: case CENOTE_BAD_OPTION:
        return true;
    default:
        return false;
    }
}

/* No stdio: the mistake may have been made inside malloc. */
static void end_program(const char *words)
{
    char text[MESSAGE_BYTES + 32];
    int length = snprintf(text, sizeof text, "cenote: %s\n", words);
    (void)!write(STDERR_FILENO, text, (size_t)length); /* the stream may be closed */
    abort();
}

/* Only these three carry a result of the driver; others leave the last one as it is. */
static int has_driver_result(int code)
{
    return code == CENOTE_DRIVER || code == CENOTE_DEVICE_LOST || code == CENOTE_OUT_OF_MEMORY;
}

/* A sheet whose owner has ended is free. Ids of threads are used again: then it stays taken until that one ends too. */
static struct sheet *take_sheet(void)
{
    int me = (int)syscall(SYS_gettid);
    for (int i = 0; i < SHEETS; i++) {
        int owner = atomic_load(&sheets[i].owner);
        bool is_free = !owner || owner == me || (syscall(SYS_tgkill, getpid(), owner, 0) && errno == ESRCH);
        if (is_free && atomic_compare_exchange_strong(&sheets[i].owner, &owner, me))
            return &sheets[i];
    }
    return NULL;
}

static void give_sheet(void)
{
    if (failure.sheet)
        atomic_store(&((struct sheet *)(void *)(failure.sheet - offsetof(struct sheet, text)))->owner, 0);
    failure.sheet = NULL;
}

char *error_sheet(int code, int cuda_result, size_t *size)
{
    give_sheet();
    struct sheet *sheet = failure.is_aside ? NULL : take_sheet(); /* its own, laid aside, would be taken */
    failure.sheet = sheet ? sheet->text : NULL;
    if (has_driver_result(code))
        failure.cuda_result = cuda_result;
    *size = sheet ? sizeof sheet->text : sizeof failure.text;
    return sheet ? sheet->text : failure.text;
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
    give_sheet();
    if (is_misuse(code) && !failure.is_aside && atomic_load_explicit(&aborts, memory_order_relaxed))
        end_program(failure.text);
    code &= ~ERROR_ANSWER;
    if (has_driver_result(code))
        failure.cuda_result = cuda_result;
    return code;
}

void error_lay_aside(struct error_aside *aside)
{
    memcpy(aside->text, failure.text, sizeof aside->text);
    aside->sheet = failure.sheet;
    aside->cuda_result = failure.cuda_result;
    aside->is_inside = failure.is_aside;
    failure.sheet = NULL;
    failure.text[0] = 0;
    failure.is_aside = true;
}

void error_take_back(const struct error_aside *aside)
{
    memcpy(failure.text, aside->text, sizeof failure.text);
    failure.sheet = aside->sheet;
    failure.cuda_result = aside->cuda_result;
    failure.is_aside = aside->is_inside;
}

const char *cenote_message(void)
{
    return failure.sheet ? failure.sheet : failure.text;
}

int cenote_driver_result(void)
{
    return failure.cuda_result;
}

const char *cenote_error_name(int error)
{
    switch (error) {
#define CENOTE_ERROR(code, name, text) case code: return "CENOTE_" #name;
#include <cenote/errors.def>
#undef CENOTE_ERROR
    }
    return "CENOTE_UNKNOWN";
}

const char *cenote_error_text(int error)
{
    switch (error) {
#define CENOTE_ERROR(code, name, text) case code: return text;
#include <cenote/errors.def>
#undef CENOTE_ERROR
    }
    return "an error that this version of cenote does not know";
}
