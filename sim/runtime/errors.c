/*
 * errors.c: names and texts of the runtime's results. LOCKING: none; the texts are made once.
 */
#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "sim/runtime/runtime.h"

static const struct {
    int         code;
    const char *name;
    const char *text;   /* "": the name in words */
} errors[] = {
#define RESULT(code, name, text) {code, #name, text},
#include "sim/runtime/errors.def"
#undef RESULT
};

#define ERRORS (sizeof errors / sizeof errors[0])
#define TEXT_MAX 96

static char texts[ERRORS][TEXT_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* cudaErrorInvalidSource: "invalid source" */
static void make_text(char *text, const char *name)
{
    size_t used = 0;
    for (const char *c = name + strlen("cudaError"); *c && used + 2 < TEXT_MAX; c++) {
        if (isupper((unsigned char)*c) && used)
            text[used++] = ' ';
        text[used++] = (char)tolower((unsigned char)*c);
    }
    text[used] = 0;
}

static void make_texts(void)
{
    for (size_t i = 0; i < ERRORS; i++) {
        if (*errors[i].text)
            snprintf(texts[i], TEXT_MAX, "%s", errors[i].text);
        else
            make_text(texts[i], errors[i].name);
    }
}

static size_t find(cudaError_t error)
{
    size_t i = 0;
    while (i < ERRORS && errors[i].code != (int)error)
        i++;
    return i;
}

const char *cudaGetErrorName(cudaError_t error)
{
    size_t i = find(error);
    return i < ERRORS ? errors[i].name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    size_t i = find(error);
    pthread_once(&once, make_texts);
    return i < ERRORS ? texts[i] : "unrecognized error code";
}
