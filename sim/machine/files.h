/*
 * files.h: what processes of one machine hand to each other: files in memory whose first page says what they hold; see files.c.
 * LOCKING: none; nothing here is remembered.
 */
#ifndef CENOTE_SIM_FILES_H
#define CENOTE_SIM_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define FILE_PAGE 4096u     /* the header has it; what the file holds comes after */

enum file_kind { FILE_CREATED_MEMORY = 1, FILE_PLAIN_MEMORY, FILE_EVENTS };

struct file_header {
    uint64_t magic;
    uint32_t version;
    uint32_t kind;
    uint64_t id;            /* random: no two files have the same */
    uint64_t size;          /* of the memory it stands for */
    uint64_t kept;          /* bytes of it that the file has: all or none */
    uint64_t machine;       /* id of the machine; 0: of a process that shares none */
    uint32_t record;        /* of this memory in the machine's books */
    int32_t  device;        /* area */
    int32_t  place, place_id;   /* CUmemLocation */
    uint32_t handle_types;
    int32_t  process;       /* that made it */
    uint64_t started;       /* when that process did */
    uint64_t check;         /* of all before */
};

uint64_t file_new_id(void);                                         /* 0: the system has no random numbers */
int   file_create(struct file_header *header);                      /* fills in which process and which file; -1: the system refused */
bool  file_read(int file, struct file_header *header);              /* false: not such a file, or not whole */
void *file_map(int file, uint64_t bytes);                           /* what follows the header; NULL: no room */
int   file_of_process(pid_t process, uint64_t started, int number); /* its file of that number, opened anew; -1: gone, or out of reach */

uint64_t file_check(const void *data, uint64_t bytes);              /* a sum that finds damage, not forgery */
uint64_t process_started(pid_t process);                            /* 0: there is none, or it has ended */
uint64_t process_own_start(void);

#endif
