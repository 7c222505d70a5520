/*
 * files.c: files in memory (memfd) that hold the bytes of shared memory and the state of shared events, for other processes to map.
 *
 * The size of a file is sealed: no process can cut it short under a mapping of ours, which would kill us at the next access. Everything in the header
 * is checked before it is believed, and what follows the header is data only, never an index or a size. A process that holds the file can still write
 * nonsense into it: then it reads nonsense.
 */
#include "sim/machine/files.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAGIC 0x63656e6f74652066ull
#define FILE_VERSION 1
#define FILE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define FIELD_STATE 3       /* of /proc/PID/stat, from 1 */
#define FIELD_STARTED 22

/* FNV-1a by 8 bytes. */
uint64_t file_check(const void *data, uint64_t bytes)
{
    uint64_t sum = 0xcbf29ce484222325ull;
    for (uint64_t i = 0, word; i + 8 <= bytes; i += 8) {
        memcpy(&word, (const char *)data + i, 8);
        sum = (sum ^ word) * 0x100000001b3ull;
        sum ^= sum >> 29;
    }
    return sum;
}

/* The name of the program may hold anything: the fields are counted from its last bracket. */
static bool read_process(pid_t process, char *state, unsigned long long *started)
{
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0)
        return false;
    text[got] = 0;
    const char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %c", state) != 1)
        return false;
    for (int field = FIELD_STATE - 1; at && field < FIELD_STARTED; field++)
        at = strchr(at + 1, ' ');
    return at && sscanf(at, "%llu", started) == 1;
}

uint64_t process_started(pid_t process)
{
    char state;
    unsigned long long started;
    if (process <= 0 || !read_process(process, &state, &started) || state == 'Z' || state == 'X')
        return 0;
    return started;
}

/* Asked of the system once for each process: a child of a fork is another one. */
uint64_t process_own_start(void)
{
    static pid_t known;
    static uint64_t started;
    if (known != getpid()) {
        started = process_started(getpid());
        known = getpid();
    }
    return started;
}

uint64_t file_new_id(void)
{
    uint64_t id;
    return getrandom(&id, sizeof id, 0) == (ssize_t)sizeof id ? id : 0;
}

int file_create(struct file_header *header)
{
    header->magic = FILE_MAGIC;
    header->version = FILE_VERSION;
    header->process = getpid();
    header->started = process_own_start();
    header->check = file_check(header, offsetof(struct file_header, check));
    int file = memfd_create("simulated-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0)
        return -1;
    if (ftruncate(file, (off_t)(FILE_PAGE + header->kept)) || pwrite(file, header, sizeof *header, 0) != (ssize_t)sizeof *header ||
        fcntl(file, F_ADD_SEALS, FILE_SEALS)) {
        close(file);
        return -1;
    }
    return file;
}

bool file_read(int file, struct file_header *header)
{
    struct stat status;
    if (fstat(file, &status) || !S_ISREG(status.st_mode))
        return false;
    int seals = fcntl(file, F_GET_SEALS);
    if (seals < 0 || (seals & FILE_SEALS) != FILE_SEALS)
        return false;
    if (pread(file, header, sizeof *header, 0) != (ssize_t)sizeof *header)
        return false;
    if (header->magic != FILE_MAGIC || header->version != FILE_VERSION)
        return false;
    if (header->check != file_check(header, offsetof(struct file_header, check)))
        return false;
    return (!header->kept || header->kept == header->size) && header->kept < INT64_MAX - FILE_PAGE &&
           (uint64_t)status.st_size == FILE_PAGE + header->kept;
}

void *file_map(int file, uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, FILE_PAGE);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_DONTDUMP);
    return memory;
}

/* Only a plain file is opened: to open a pipe or a device is to do something to it. */
int file_of_process(pid_t process, uint64_t started, int number)
{
    char path[64];
    struct stat status;
    if (!started || number < 0 || process_started(process) != started)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)process, number);
    if (stat(path, &status) || !S_ISREG(status.st_mode))
        return -1;
    return open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}
