/*
 * errors.c: names and texts of the runtime's results. LOCKING: none.
 */
#include "sim/runtime/runtime.h"

static const struct {
    int         code;
    const char *name;
    const char *text;   /* "": that of the driver */
} errors[] = {
#define RESULT(code, name, text) {code, #name, text},
#include "sim/runtime/errors.def"
#undef RESULT
};

#define ERRORS (sizeof errors / sizeof errors[0])

static size_t find(cudaError_t error)
{
    size_t i = 0;
    while (i < ERRORS && errors[i].code != (int)error)
        i++;
    return i;
}

/* From the driver's table itself: a call of cuGetErrorString would be one that the program has not made. */
static const char *text_of_driver(int code)
{
    switch (code) {
#define RESULT(code, name, text) case code: return text;
#include "sim/errors.def"
#undef RESULT
    }
    return "";
}

const char *cudaGetErrorName(cudaError_t error)
{
    size_t i = find(error);
    return i < ERRORS ? errors[i].name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    size_t i = find(error);
    if (i == ERRORS)
        return "unrecognized error code";
    return *errors[i].text ? errors[i].text : text_of_driver(errors[i].code);
}
