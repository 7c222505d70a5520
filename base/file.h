/*
 * file.h: a text file that is written whole or not at all. See file.c.
 */
#ifndef CENOTE_BASE_FILE_H
#define CENOTE_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#define FILE_PRINT_MAX 4096    /* bytes of one file_print */

struct file;

/* gzip if `path` ends in .gz. NULL: errno says why, see file_error. */
struct file *file_create(const char *path);
__attribute__((format(printf, 2, 3))) void file_print(struct file *f, const char *format, ...);
void file_write(struct file *f, const char *text, size_t bytes);
bool file_finish(struct file *f);       /* false: errno says why; what was at `path` before is there still */
void file_abandon(struct file *f);      /* the same, without a new file */

int file_error(const char *path);       /* errno of one of these functions, told to error_set */

#endif
