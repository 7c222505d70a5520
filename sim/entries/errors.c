/* errors.c: names and texts of the driver's results. */
#include "sim/entries/errors.h"

static const struct {
    int         code;
    const char *name;
    const char *text;
} errors[] = {
#define RESULT(code, name, text) {code, #name, text},
#include "sim/errors.def"
#undef RESULT
};

#define ERRORS (sizeof errors / sizeof errors[0])

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
    if (!result)
        *text = errors[i].text;
    return result;
}
