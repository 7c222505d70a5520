/*
 * zlib.h: zlib's functions on gzip files, as a table. See zlib.c.
 */
#ifndef CENOTE_BASE_ZLIB_H
#define CENOTE_BASE_ZLIB_H

#include <stdbool.h>

#define ZLIB_LIBRARY "libz.so.1"

enum zlib_result { ZLIB_ERRNO = -1, ZLIB_DATA_ERROR = -3, ZLIB_BUF_ERROR = -5 }; /* as zlib.h has them */

struct zlib {
    void *(*open)(const char *path, const char *mode); /* reads plain files too */
    void *(*open_fd)(int fd, const char *mode);
    int (*read)(void *file, void *text, unsigned bytes);
    int (*write)(void *file, const void *text, unsigned bytes);
    const char *(*error)(void *file, int *result);
    int (*close)(void *file);
};

bool zlib_find(struct zlib *z);

#endif
