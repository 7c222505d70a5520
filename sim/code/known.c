/* known.c: the kernels that are run, from kernels.def. Their code is not read: the name says what they do. */
#include <string.h>

#include "sim/code/kernel.h"
#include "sim/memory/memory.h"

#define PARAMETERS_MAX 4

static const struct {
    const char *name;
    unsigned    parameters;
} known[] = {
    {"", 0},
#define KERNEL(name, parameters, ...) {name, parameters},
#include "sim/code/kernels.def"
#undef KERNEL
};

static bool is_name(const char *wanted, const char *name)
{
    size_t length = strlen(name), end = strlen(wanted) - (*wanted == '*');
    return *wanted == '*' ? length >= end && !strcmp(wanted + 1, name + length - end) : !strcmp(wanted, name);
}

unsigned known_kernel(const char *name)
{
    unsigned i = sizeof known / sizeof known[0] - 1;
    while (i && !is_name(known[i].name, name))
        i--;
    return i;
}

struct work known_work(unsigned number, void **parameters)
{
    uint64_t p[PARAMETERS_MAX] = {0};
    for (unsigned i = 0; i < known[number].parameters; i++)
        memcpy(&p[i], parameters[i], sizeof p[i]);
    const struct work works[] = {
        {.kind = &work_kernel},
#define KERNEL(name, parameters, ...) {__VA_ARGS__},
#include "sim/code/kernels.def"
#undef KERNEL
    };
    struct work work = works[number];
    work.name = known[number].name;
    work.pinned = true; /* a kernel reaches no other host memory: what lies nowhere is an illegal address */
    return work;
}
