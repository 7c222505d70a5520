/*
 * replay.c: runs a fuzz target over files, in order, without libFuzzer: any compiler, any build. `target FILE-or-FOLDER...`
 *
 * Each file's name is printed before it runs, so that the last line before an abort says which input it was.
 */
#include "fuzz/judge.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define INPUT_BYTES (1 << 20)

static int replay_file(const char *path)
{
    static uint8_t data[INPUT_BYTES];
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        exit(2);
    }
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    printf("%s (%zu bytes)\n", path, size);
    fflush(stdout);

    uint8_t *exact = malloc(size ? size : 1); /* a sanitizer sees a read behind the end */
    if (!exact)
        exit(2);
    for (size_t i = 0; i < size; i++)
        exact[i] = data[i];
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    return 1;
}

static int is_no_dot_file(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static int replay_folder(const char *folder)
{
    struct dirent **names;
    char path[4096];
    int count = scandir(folder, &names, is_no_dot_file, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        replay_file(path);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    return count;
}

int main(int argc, char **argv)
{
    int inputs = 0;
    for (int i = 1; i < argc; i++) {
        struct stat about;
        bool folder = stat(argv[i], &about) == 0 && S_ISDIR(about.st_mode);
        inputs += folder ? replay_folder(argv[i]) : replay_file(argv[i]);
    }
    printf("%d inputs, nothing found\n", inputs);
    return inputs > 0 ? 0 : 2;
}
