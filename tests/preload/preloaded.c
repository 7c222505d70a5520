/*
 * preloaded.c: starts each program of this folder again with libcenote_preload.so in LD_PRELOAD, as a user would start it, before main.
 *
 * A sanitizer wants to be the first library of a program: then it is named in LD_PRELOAD, too, before ours. The dynamic linker splits LD_PRELOAD at
 * spaces and colons and knows no quotes: a folder that has some is named by a descriptor that the programs inherit.
 *
 * LOCKING: none.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DONE_ALREADY "CENOTE_TEST_PRELOADED"
#define DESCRIPTORS  200    /* above those that tests count on */

static int find_sanitizer(struct dl_phdr_info *object, size_t size, void *path)
{
    const char *file = strrchr(object->dlpi_name, '/');
    (void)size;
    if (file && (!strncmp(file, "/libasan.", 9) || !strncmp(file, "/libtsan.", 9)))
        snprintf(path, 512, "%s:", object->dlpi_name);
    return 0;
}

/* Another name of the folder, if its own has a character at which LD_PRELOAD is split. */
static void name_plainly(char folder[512])
{
    if (!strpbrk(folder, " :\t\n"))
        return;
    int here = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC), kept = here < 0 ? -1 : fcntl(here, F_DUPFD, DESCRIPTORS);
    if (kept >= 0)
        snprintf(folder, 512, "/proc/self/fd/%d", kept);
    close(here);
}

__attribute__((constructor)) static void start_again(int count, char **arguments)
{
    char self[512] = "", sanitizer[512] = "", all[1800];
    (void)count;
    if (getenv(DONE_ALREADY) || readlink("/proc/self/exe", self, sizeof self - 1) <= 0)
        return;
    for (int i = 0; i < 2; i++)
        *strrchr(self, '/') = 0; /* the folder of the build */
    name_plainly(self);
    dl_iterate_phdr(find_sanitizer, sanitizer);
    snprintf(all, sizeof all, "%s%s/libcenote_preload.so", sanitizer, self);
    setenv("LD_PRELOAD", all, 1);
    setenv(DONE_ALREADY, "1", 1);
    execv("/proc/self/exe", arguments);
    perror("the program could not be started again");
    _exit(2);
}
