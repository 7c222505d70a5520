/*
 * lookup.c: cuGetProcAddress: from a name and a CUDA version to a function, as far as the simulated driver's version goes and nothing was
 * hidden. The names are searched one after the other: a program asks a few hundred times in its life. And what calls answer of which there is
 * no more than the name.
 */
#include <stdio.h>
#include <string.h>

#include "sim/entries/entries.h"

#define HIDDEN_MAX 64
#define HIDDEN_NAME_MAX 64
#define NOT_THERE_MAX 256   /* calls that are named once */

static char hidden[HIDDEN_MAX][HIDDEN_NAME_MAX];
static int hidden_count;

void lookup_reset(void)
{
    hidden_count = 0;
}

bool lookup_hide(const char *name)
{
    if (hidden_count == HIDDEN_MAX || strlen(name) >= HIDDEN_NAME_MAX)
        return false;
    strcpy(hidden[hidden_count++], name);
    return true;
}

static bool is_hidden(const char *name)
{
    for (int i = 0; i < hidden_count; i++)
        if (strcmp(hidden[i], name) == 0)
            return true;
    return false;
}

CUresult lookup_driver_version(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = model.shape.driver_version;
    return CUDA_SUCCESS;
}

/* The newest variant that `version` knows, and whether the driver has the name at all. */
static const struct entry_address *find(const struct entry_address *table, size_t count, const char *symbol, int version, bool *known)
{
    const struct entry_address *best = NULL;
    *known = false;
    if (is_hidden(symbol))
        return NULL;
    for (size_t i = 0; i < count; i++) {
        const struct entry_address *e = &table[i];
        if (strcmp(e->name, symbol) || e->since > model.shape.driver_version)
            continue;
        *known = true;
        if (e->since <= version && (!best || best->since < e->since))
            best = e;
    }
    return best;
}

CUresult lookup_find(const struct entry_address *table, size_t count, const char *symbol, void **function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status)
{
    bool known;
    if (!symbol || !function || version > model.shape.driver_version || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    const struct entry_address *e = find(table, count, symbol, version, &known);
    *function = NULL;
    if (e)
        *function = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? e->per_thread : e->legacy;
    if (status)
        *status = e ? CU_GET_PROC_ADDRESS_SUCCESS : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return e || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/*
 * Names each call once, because the program will only say that it failed. `what` NULL: programs try that call, and do without it.
 */
CUresult not_there(const char *call, const char *what)
{
    static const char *named[NOT_THERE_MAX];
    int i = 0;
    model_lock();
    while (i < NOT_THERE_MAX && named[i] && named[i] != call)
        i++;
    if (what && i < NOT_THERE_MAX && !named[i] && !model.quiet) {
        named[i] = call;
        fprintf(stderr, "simulated GPU: %s: the simulated GPU has no %s: not supported\n", call, what);
    }
    model_unlock();
    return CUDA_ERROR_NOT_SUPPORTED;
}
