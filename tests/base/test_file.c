/*
 * test_file.c: files that are written whole or not at all, in a folder where other users may have put something under any name that can be
 * guessed.
 */
#include "base/file.h"

#include "tests/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#define OTHER_USER 65534
#define GUESSES 100
#define SECRET "what the other user wants to have overwritten\n"

static char folder[64];

static const char *at(const char *name)
{
    static char paths[4][PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, PATH_MAX, "%s/%s", folder, name);
    return path;
}

static void begin(void)
{
    snprintf(folder, sizeof folder, "/tmp/cenote-test-file-XXXXXX");
    REQUIRE(mkdtemp(folder));
}

static unsigned names_here(bool remove_them)
{
    unsigned count = 0;
    DIR *open = opendir(folder);
    REQUIRE(open);
    for (struct dirent *entry; (entry = readdir(open));)
        if (entry->d_name[0] != '.') {
            count++;
            if (remove_them)
                EXPECT(!unlink(at(entry->d_name)));
        }
    closedir(open);
    return count;
}

static void end(void)
{
    names_here(true);
    EXPECT(!rmdir(folder));
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    REQUIRE(file && fputs(text, file) >= 0 && !fclose(file));
}

static bool holds(const char *path, const char *text)
{
    char found[256] = "";
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t length = fread(found, 1, sizeof found - 1, file);
    fclose(file);
    return length == strlen(text) && !memcmp(found, text, length);
}

static bool write_line(const char *path, const char *line)
{
    struct file *file = file_create(path);
    if (!file)
        return false;
    file_write(file, line, strlen(line));
    return file_finish(file);
}

CASE(a_file_takes_its_place_when_it_is_whole)
{
    begin();
    put(at("x"), "before\n");
    struct file *file = file_create(at("x"));
    REQUIRE(file);
    file_print(file, "after %d\n", 1);
    EXPECT(holds(at("x"), "before\n"));
    EXPECT_EQ(names_here(false), 2);
    EXPECT(file_finish(file));
    EXPECT(holds(at("x"), "after 1\n"));
    EXPECT_EQ(names_here(false), 1);
    end();
}

CASE(nothing_is_left_of_a_file_that_is_abandoned)
{
    begin();
    put(at("x"), "before\n");
    struct file *file = file_create(at("x"));
    REQUIRE(file);
    file_print(file, "after\n");
    file_abandon(file);
    EXPECT(holds(at("x"), "before\n"));
    EXPECT_EQ(names_here(false), 1);
    end();
}

/* The name was PATH.PROCESS-COUNT.part. */
CASE(links_under_names_that_can_be_guessed_are_not_followed)
{
    begin();
    put(at("secret"), SECRET);
    for (int i = 0; i < GUESSES; i++) {
        char name[64];
        snprintf(name, sizeof name, "x.%d-%d.part", (int)getpid(), i);
        REQUIRE(!symlink("secret", at(name)));
    }
    EXPECT(write_line(at("x"), "a line\n"));
    EXPECT(holds(at("secret"), SECRET));
    EXPECT(holds(at("x"), "a line\n"));
    struct stat found;
    EXPECT(!lstat(at("x"), &found) && S_ISREG(found.st_mode));
    EXPECT_EQ(names_here(false), GUESSES + 2);
    end();
}

CASE(no_two_names_are_the_same)
{
    begin();
    struct file *files[GUESSES];
    for (int i = 0; i < GUESSES; i++)
        REQUIRE((files[i] = file_create(at("x"))));
    EXPECT_EQ(names_here(false), GUESSES);
    for (int i = 0; i < GUESSES; i++)
        file_abandon(files[i]);
    EXPECT_EQ(names_here(false), 0);
    end();
}

CASE(a_link_of_another_user_is_refused)
{
    begin();
    put(at("secret"), SECRET);
    REQUIRE(!symlink("secret", at("x")));
    if (!geteuid()) {
        REQUIRE(!lchown(at("x"), OTHER_USER, OTHER_USER));
        EXPECT(!write_line(at("x"), "a line\n"));
        EXPECT_EQ(errno, ELOOP);
        EXPECT(holds(at("secret"), SECRET));
    }
    EXPECT_EQ(names_here(false), 2);
    end();
}

CASE(links_of_our_own_are_followed)
{
    begin();
    REQUIRE(!symlink("near", at("relative")) && !symlink(at("far"), at("absolute")) && !symlink("relative", at("second")));
    EXPECT(write_line(at("relative"), "1\n") && holds(at("near"), "1\n"));
    EXPECT(write_line(at("absolute"), "2\n") && holds(at("far"), "2\n"));
    EXPECT(write_line(at("second"), "3\n") && holds(at("near"), "3\n"));
    REQUIRE(!chdir(folder));
    EXPECT(write_line("relative", "4\n") && holds(at("near"), "4\n"));
    REQUIRE(!chdir("/"));
    EXPECT_EQ(names_here(false), 5);
    end();
}

/* A pipe that no process reads would hold the writer for ever, a link behind a link lead to where the other user wants. */
CASE(what_another_user_has_put_in_the_place_is_refused)
{
    begin();
    put(at("secret"), SECRET);
    REQUIRE(!mkfifo(at("pipe"), 0666) && !symlink("secret", at("theirs")) && !symlink("theirs", at("ours")) && !symlink("pipe", at("to_pipe")));
    REQUIRE(!symlink("loop", at("loop")));
    EXPECT(!write_line(at("loop"), "1\n") && errno == ELOOP);
    if (!geteuid()) {
        REQUIRE(!chown(at("pipe"), OTHER_USER, OTHER_USER) && !lchown(at("theirs"), OTHER_USER, OTHER_USER));
        EXPECT(!write_line(at("pipe"), "2\n") && errno == EUSERS);
        EXPECT(!write_line(at("to_pipe"), "3\n") && errno == EUSERS);
        EXPECT(!write_line(at("ours"), "4\n") && errno == ELOOP);
        EXPECT(holds(at("secret"), SECRET));
    }
    EXPECT_EQ(names_here(false), 6);
    end();
}

/* In /tmp the kernel lets no user replace another's file: it is found out before the run, not after it. */
CASE(a_file_that_cannot_be_replaced_is_refused_before_it_is_written)
{
    begin();
    put(at("x"), "theirs\n");
    put(at("y"), "ours\n");
    if (!geteuid()) {
        REQUIRE(!chown(at("x"), OTHER_USER, OTHER_USER) && !chmod(at("x"), 0666));
        REQUIRE(!chown(folder, OTHER_USER - 1, OTHER_USER) && !chmod(folder, 01777));
        EXPECT(!file_create(at("x")) && errno == EUSERS);
        EXPECT(holds(at("x"), "theirs\n"));
        REQUIRE(!chmod(folder, 0777)); /* a folder that users share: there the kernel lets each replace what there is */
        EXPECT(write_line(at("x"), "1\n") && holds(at("x"), "1\n"));
        REQUIRE(!chmod(folder, 01777));
    }
    EXPECT(write_line(at("y"), "2\n") && holds(at("y"), "2\n"));
    EXPECT_EQ(names_here(false), 2);
    end();
}

CASE(a_folder_that_moves_or_goes_meanwhile_keeps_no_part)
{
    begin();
    char moved[sizeof folder + 8];
    snprintf(moved, sizeof moved, "%s-moved", folder);
    REQUIRE(!chdir(folder));
    struct file *file = file_create("x");
    REQUIRE(file && !chdir("/"));
    file_print(file, "a line\n");
    REQUIRE(!rename(folder, moved));
    EXPECT(file_finish(file));
    REQUIRE(!rename(moved, folder));
    EXPECT(holds(at("x"), "a line\n"));
    EXPECT_EQ(names_here(false), 1);
    REQUIRE((file = file_create(at("x"))));
    file_print(file, "another line\n");
    REQUIRE(!unlink(at("x")) && !mkdir(at("x"), 0700)); /* no file takes the place of a folder */
    EXPECT(!file_finish(file) && errno == EISDIR);
    EXPECT_EQ(names_here(false), 1);
    REQUIRE(!rmdir(at("x")));
    REQUIRE((file = file_create(at("x"))));
    end(); /* removes the .part file, and the folder */
    EXPECT(!file_finish(file) && errno == ENOENT);
}

/* As /dev/stdout is one: a link to /proc/self/fd/1, which is a link without a text that leads anywhere. */
CASE(pipes_are_written_as_they_are)
{
    begin();
    int ends[2];
    char name[64], found[16] = "";
    REQUIRE(!pipe(ends));
    snprintf(name, sizeof name, "/proc/self/fd/%d", ends[1]);
    REQUIRE(!symlink(name, at("out")));
    EXPECT(write_line(name, "1\n") && read(ends[0], found, sizeof found) == 2 && found[0] == '1');
    EXPECT(write_line(at("out"), "2\n") && read(ends[0], found, sizeof found) == 2 && found[0] == '2');
    close(ends[0]), close(ends[1]);
    REQUIRE(!mkfifo(at("pipe"), 0600));
    int reader = open(at("pipe"), O_RDWR | O_CLOEXEC);
    EXPECT(write_line(at("pipe"), "3\n") && read(reader, found, sizeof found) == 2 && found[0] == '3');
    close(reader);
    EXPECT(write_line("/dev/null", "4\n"));
    EXPECT(!write_line("/dev/full", "5\n") && errno == ENOSPC);
    EXPECT(!write_line(folder, "6\n") && errno == EISDIR);
    EXPECT_EQ(names_here(false), 2);
    end();
}

SUITE_MAIN("file")
