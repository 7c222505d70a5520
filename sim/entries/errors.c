/* errors.c: names of the driver's results; their texts are the names in words ("out of memory"), where a real driver has sentences. */
#include "sim/entries/errors.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int         code;
    const char *name;
} errors[] = {
#define RESULT(code, name) {code, #name},
#include "sim/entries/errors.def"
#undef RESULT
};

#define ERRORS (sizeof errors / sizeof errors[0])
#define TEXT_MAX 64

static char texts[ERRORS][TEXT_MAX];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_texts(void)
{
    for (size_t i = 0; i < ERRORS; i++) {
        const char *words = strncmp(errors[i].name, "CUDA_ERROR_", 11) == 0 ? errors[i].name + 11 : errors[i].name + 5;
        snprintf(texts[i], TEXT_MAX, "%s", words);
        for (char *c = texts[i]; *c; c++)
            *c = *c == '_' ? ' ' : (char)tolower((unsigned char)*c);
    }
}

static CUresult find(CUresult error, const char **text, size_t *found)
{
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < ERRORS; i++) {
        if (errors[i].code == (int)error) {
            *found = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult error_name(CUresult error, const char **text)
{
    size_t i;
    CUresult result = find(error, text, &i);
    if (!result)
        *text = errors[i].name;
    return result;
}

CUresult error_string(CUresult error, const char **text)
{
    size_t i;
    CUresult result = find(error, text, &i);
    if (result)
        return result;
    pthread_once(&once, make_texts);
    *text = texts[i];
    return result;
}
