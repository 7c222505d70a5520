/* sized.h: structs that pass between a program and a library of different versions. See sized.c. */
#ifndef CENOTE_BASE_SIZED_H
#define CENOTE_BASE_SIZED_H

#include <stddef.h>

/*
 * A larger struct is no later version: the caller left the size out, or gave something else. Our choice. Each struct has a member of eight bytes, and
 * so a size of whole words; a caller that gives one word has taken the size of a pointer.
 */
#define SIZED_MAX 4096

/* CENOTE_INVALID, unless a struct of that type can have so many bytes. */
int sized_check(size_t size, const char *type);

/*
 * Reads the program's struct into `full`, which is ours and has the defaults. CENOTE_INVALID, and `full` is as it was: the program sets a
 * member that only later versions have, or gives no such struct.
 */
int sized_in(void *full, size_t known, const void *given, size_t size, const char *type);

/* Fills the program's struct, whose size has been checked. */
void sized_out(void *to, size_t size, const void *full, size_t known);

/* An array with elements of that size. `count` goes on where there is no room, so that the program can ask again. */
struct sized_list {
    void  *items;
    size_t room, size, count;
};

void sized_add(struct sized_list *list, const void *full, size_t known);

#endif
