/*
 * sized.c: structs that pass between a program and a library of different versions: rule 10 of docs/design.md.
 *
 * `size` is what the program's header gives the struct, `known` what ours gives it. Members are only appended, so both agree on the
 * shorter of the two. Beyond it are members that the other side does not have: at their defaults where the program lacks them, zero where
 * the library does.
 *
 * LOCKING: none; no state.
 */
#include "base/sized.h"

#include "base/error.h"

#include <string.h>

int sized_check(size_t size, const char *type)
{
    if (size > sizeof(void *) && size <= SIZED_MAX && size % sizeof(void *) == 0)
        return CENOTE_OK;
    return error_set(CENOTE_INVALID, 0, "no %s has %zu bytes: the last argument is its size, sizeof(%s), which the macros of the header add", type,
                     size, type);
}

int sized_in(void *full, size_t known, const void *given, size_t size, const char *type)
{
    int error = sized_check(size, type);
    if (error)
        return error;
    if (!given)
        return error_set(CENOTE_INVALID, 0, "there is no %s: the pointer is NULL", type);
    for (size_t i = known; i < size; i++)
        if (((const char *)given)[i])
            return error_set(CENOTE_INVALID, 0, "the program sets byte %zu of its %s; this version of cenote knows %zu: use a newer one, or leave "
                             "it zero", i, type, known);
    memcpy(full, given, size < known ? size : known);
    return CENOTE_OK;
}

void sized_out(void *to, size_t size, const void *full, size_t known)
{
    memcpy(to, full, size < known ? size : known);
    if (size > known)
        memset((char *)to + known, 0, size - known);
}

void sized_add(struct sized_list *list, const void *full, size_t known)
{
    if (list->count < list->room)
        sized_out((char *)list->items + list->count * list->size, list->size, full, known);
    list->count++;
}
