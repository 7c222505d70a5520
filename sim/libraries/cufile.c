/*
 * cufile.c: the simulated cuFile, as the real one is without its kernel driver ("compatible mode"): files are read and written by the
 * CPU, through a buffer, and copied to and from the device. All contents are real, as far as the device keeps them.
 *
 * LOCKING: none: a handle is a file descriptor of the program's, and remembers nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "sim/libraries/library.h"

#define BOUNCE_BYTES (4u << 20)
#define HANDLE_FD 1

enum cufile { SUCCESS = 0, INVALID_FILE_TYPE = 5018, CUDA_DRIVER_ERROR = 5011, CUDA_POINTER_INVALID = 5012, INVALID_VALUE = 5022,
              INTERNAL_ERROR = 5030 };

struct error {
    int file;
    int cuda;       /* if `file` is CUDA_DRIVER_ERROR */
};

struct description {
    int kind;
    union {
        int   fd;
        void *handle;
    };
    const void *operations;
};

struct file {
    int fd;
};

static bool is_memory(const void *at, size_t bytes)
{
    CUdeviceptr start;
    size_t size;
    return at && !cuMemGetAddressRange(&start, &size, (CUdeviceptr)at) && bytes <= size - ((CUdeviceptr)at - start);
}

/* One buffer full at a time, until `bytes` are done or the file ends. Bytes done, or minus what went wrong. */
static ssize_t move(const struct file *file, CUdeviceptr at, size_t bytes, off_t from, bool reading)
{
    char *bounce = malloc(BOUNCE_BYTES);
    size_t done = 0;
    ssize_t moved = 1;
    if (!bounce)
        return -INTERNAL_ERROR;
    while (done < bytes && moved > 0) {
        size_t part = bytes - done < BOUNCE_BYTES ? bytes - done : BOUNCE_BYTES;
        CUresult failed = reading ? CUDA_SUCCESS : cuMemcpyDtoH(bounce, at + done, part);
        if (!failed)
            moved = reading ? pread(file->fd, bounce, part, from + (off_t)done) : pwrite(file->fd, bounce, part, from + (off_t)done);
        if (!failed && moved > 0 && reading)
            failed = cuMemcpyHtoD(at + done, bounce, (size_t)moved);
        if (failed || moved < 0)
            moved = failed ? -CUDA_DRIVER_ERROR : -errno;
        else
            done += (size_t)moved;
    }
    free(bounce);
    return moved < 0 ? moved : (ssize_t)done;
}

static ssize_t check_and_move(const struct file *file, const void *base, size_t bytes, off_t from, off_t offset, bool reading)
{
    const char *at = base;
    if (!file || from < 0 || offset < 0)
        return -INVALID_VALUE;
    return is_memory(at + offset, bytes) ? move(file, (CUdeviceptr)(at + offset), bytes, from, reading) : -CUDA_POINTER_INVALID;
}

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

struct error cuFileHandleRegister(struct file **made, const struct description *what)
{
    if (!made || !what)
        return (struct error){INVALID_VALUE, 0};
    if (what->kind != HANDLE_FD || fcntl(what->fd, F_GETFL) < 0)
        return (struct error){INVALID_FILE_TYPE, 0};
    *made = malloc(sizeof **made);
    if (!*made)
        return (struct error){INTERNAL_ERROR, 0};
    (*made)->fd = what->fd;
    return (struct error){SUCCESS, 0};
}

void cuFileHandleDeregister(struct file *file)
{
    free(file);
}

struct error cuFileBufRegister(const void *at, size_t bytes, int flags)
{
    (void)flags;
    return (struct error){bytes && is_memory(at, bytes) ? SUCCESS : CUDA_POINTER_INVALID, 0};
}

struct error cuFileBufDeregister(const void *at)
{
    return (struct error){is_memory(at, 1) ? SUCCESS : CUDA_POINTER_INVALID, 0};
}

ssize_t cuFileRead(const struct file *file, void *base, size_t bytes, off_t from, off_t offset)
{
    return check_and_move(file, base, bytes, from, offset, true);
}

ssize_t cuFileWrite(const struct file *file, const void *base, size_t bytes, off_t from, off_t offset)
{
    return check_and_move(file, base, bytes, from, offset, false);
}
