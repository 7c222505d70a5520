/*
 * files.h: libcenote_files.so, which `cenote dry-run` preloads into each process of a program: no file of before is overwritten, changed or removed.
 *
 * An entry is a name in a folder. An entry that was there before the command, and that the program would overwrite, remove or rename, is kept: the
 * file system does not change. The program sees a stand-in from then on, which lies beside it under another name, or nothing.
 *
 *                 removed, renamed away                  made anew
 *     untouched ------------------------> gone <---------------------> stand-in
 *          `-------------------------------------------------------------^
 *                 overwritten, renamed over, changed in place
 *
 *   calls.c    the functions of the C library that take a path, as the program calls them
 *   change.c   what becomes of an entry: open, remove, rename
 *   rename.c   rename, which keeps two entries
 *   folder.c   what a program sees in a folder
 *   find.c     from a path to an entry, and to where it really is
 *   table.c    which files the command has made, and which entries it keeps: shared by all processes of all its runs
 *   tell.c     rows for the verdict, and the list of stand-ins, which `cenote dry-run` removes at its end
 *
 * Not seen: system calls that a program makes past the C library (static programs), and what the C library opens within others of its functions
 * (dlopen, exec, fts, glob): these see the files of before.
 *
 * LOCKING: none but that of tell.c. Processes and threads that change one entry at the same time are ordered by the file system, as they would be
 * without us. Calls of the C library may come at any time, also in a child before exec: nothing here allocates memory.
 */
#ifndef CENOTE_PLUGINS_FILES_H
#define CENOTE_PLUGINS_FILES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#define STAND_IN_PREFIX ".cenote-dry-" /* launch/kept.py says it, too */

enum state { UNTOUCHED, GONE, STAND_IN };

/* An entry, and where the system finds what the program means by it. */
struct spot {
    int        at;             /* the folder that `path` starts at, or AT_FDCWD */
    char       path[PATH_MAX]; /* of the stand-in if there is one */
    size_t     name;           /* where the last name begins in it */
    uint64_t   key;            /* of the entry; 0: not asked for, or the path ends in no name (".", "/") */
    enum state state;
};

/* table.c */
extern bool files_on; /* the rest may be called only then */

uint64_t entry_key(const struct stat *folder, const char *name, size_t length);
bool     name_may_be_kept(const char *name, size_t length);
bool     any_is_kept(void);
bool     folders_are_kept(void);
void     folder_is_kept(void);
enum state entry_state(uint64_t key);
bool     entry_set(uint64_t key, const char *name, size_t length, enum state state);
bool     is_made(const struct stat *file);
void     made(const struct stat *file);
void     unmade(const struct stat *file);
bool     is_our_link(uint64_t key);
void     our_link(uint64_t key, bool is_there);
bool     may_tell(bool is_folder);

/* find.c */
bool find(struct spot *s, int at, const char *path, bool follow, bool changes);
bool look(struct spot *s, int at, const char *path, bool follow);
bool spot_stat(const struct spot *s, struct stat *status);
void put_stand_in(struct spot *s);
bool whole_path(const struct spot *s, char *path);
bool is_left_alone(const struct spot *s);
void read_caches(void);

/* change.c: as the system calls, with -1 and errno */
int file_open(int at, const char *path, int flags, mode_t mode);
int file_remove(int at, const char *path);
int folder_remove(int at, const char *path);
int file_truncate(int file, long length);
int entry_link(int from_at, const char *from, int to_at, const char *to, int flags);
void made_by(int file);
bool is_of_before(const struct spot *s, const struct stat *status);
bool may_change_folder(const struct spot *s);
void unlinked(const struct spot *s, const struct stat *status);
bool copy_to(const struct spot *from, const struct stat *status, const struct spot *to, bool replaces);
bool turn(const struct spot *s, enum state state);
bool take_place(const struct spot *own);
bool place(struct spot *s, struct spot *own, int at, const char *path);
int  placed(const struct spot *s, const struct spot *own, int result);

extern const char *const OVERWRITES, *const REMOVES, *const RENAMES, *const CHANGES, *const LOSES; /* for tell() */

/* rename.c */
int entry_rename(int from_at, const char *from, int to_at, const char *to, unsigned flags);

/* tell.c */
void tell_folder(const char *folder);
void tell_stacks(void);
void tell(const char *how, const struct spot *s, bool is_folder);
void tell_stand_in(const struct spot *s);

/* folder.c */
enum state seen_in(int folder, const char *name);
bool is_empty_folder(const struct spot *s);
bool each_entry(const struct spot *s, bool (*act)(const char *name, void *with), void *with);

#endif
