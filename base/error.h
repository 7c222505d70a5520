/* error.h: how every layer reports a failure: a code to return, and words for cenote_message(). See error.c. */
#ifndef CENOTE_BASE_ERROR_H
#define CENOTE_BASE_ERROR_H

#include <stdbool.h>

#include <cenote/cenote.h>

/*
 * Keeps the words and the driver's result for this thread and returns `code`, so that a failing path ends in `return error_set(...)`.
 * `cuda_result` is the CUresult behind it, 0 if there is none.
 */
__attribute__((format(printf, 3, 4), cold)) int error_set(int code, int cuda_result, const char *format, ...);

/* Added to the code where the error is the answer to a question, and no mistake. It is not in what error_set returns. */
#define ERROR_ANSWER 0x100

/* From now on a mistake of the program prints its words to stderr and aborts, on every thread. Shortages and what the driver refuses do not. */
void error_abort_on_misuse(void);

/*
 * A sheet for words that are longer than a message, and for nothing else until the thread's next failure: the caller that gets it writes them there,
 * and they are the message. Its size is in *size.
 */
char *error_sheet(int code, int cuda_result, size_t *size);

/*
 * A thread calls these around what it does for another process inside a call of its program: a failure there is neither that call's nor a mistake
 * of the program. In between, cenote_message() has the words of that failure; afterwards it has those of the program's last failing call again.
 */
#define ERROR_WORDS 512
struct error_aside {
    char  text[ERROR_WORDS];
    char *sheet;
    int   cuda_result;
    bool  is_inside;    /* of another: a function of the program may call cenote meanwhile */
};
void error_lay_aside(struct error_aside *aside);
void error_take_back(const struct error_aside *aside);

#endif
