/*
 * letters.c: datagrams between processes of one user, over sockets with abstract names.
 *
 * Whose process is at the other end is the kernel's word (SCM_CREDENTIALS); both sides hear their own user alone. Any process may write to a socket
 * whose name it reads in /proc/net/unix, so a letter begins with a key, and a filter has the kernel throw away all others, before they take room in
 * a queue. A socket that hears everybody, with no key, has a name that others are to find.
 *
 * LOCKING: none.
 */
#include "share/letters.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Only letters that begin with the key. Where the kernel has no such filter the key is looked at all the same, but others can fill the queue. */
static void hear_only(int s, uint64_t key)
{
    uint32_t word[2];
    memcpy(word, &key, sizeof word);
    struct sock_filter is_ours[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* in the order of the network; a letter that is too short ends here */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word[0]), 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(word[1]), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog filter = {sizeof is_ours / sizeof *is_ours, is_ours};
    setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

/* A socket that learns which process writes to it. It gets a name of its own when it first writes. */
int letters_socket(uint64_t key)
{
    int yes = 1, s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s >= 0) {
        setsockopt(s, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
        if (key)
            hear_only(s, key);
    }
    return s;
}

bool letters_listen(struct ear *ear, uint64_t key)
{
    struct stat made;
    ear->number = letters_socket(key);
    ear->inode = ear->number >= 0 && !fstat(ear->number, &made) ? made.st_ino : 0;
    return ear->inode != 0;
}

/* Is the number still that of the socket? Else what lies there is the program's: nothing is to be read from it, and it is not ours to close. */
bool letters_is_there(const struct ear *ear)
{
    struct stat now;
    return ear->inode && !fstat(ear->number, &now) && S_ISSOCK(now.st_mode) && now.st_ino == ear->inode;
}

void letters_leave(struct ear *ear)
{
    if (letters_is_there(ear))
        close(ear->number);
    ear->inode = 0;
}

bool letters_has_key(const void *data, ssize_t length, uint64_t key)
{
    return length >= (ssize_t)sizeof key && !memcmp(data, &key, sizeof key);
}

static unsigned read_number(const char *path, const char *format, unsigned otherwise)
{
    unsigned number = otherwise;
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, format, &number) != 1)
        number = otherwise;
    if (file)
        fclose(file);
    return number;
}

/*
 * In a user namespace that does not know all users the kernel gives one number to those it does not know, and getuid() says it where it does not know
 * this process's. So that number is no user there. A user with another number is known, which stays so while getuid() says it: it is remembered.
 */
bool letters_is_our_user(uid_t user)
{
    static _Atomic uint64_t known; /* and 1; 0: none */
    if (user != getuid())
        return false;
    if (atomic_load_explicit(&known, memory_order_relaxed) == user + 1ull)
        return true;
    unsigned unknown = read_number("/proc/sys/kernel/overflowuid", "%u", 65534);
    if (user != unknown)
        atomic_store_explicit(&known, user + 1ull, memory_order_relaxed);
    return user != unknown || read_number("/proc/self/uid_map", "%*u %*u %u", 0) == UINT32_MAX;
}

/* `files`: how many descriptors are wanted, 0 or 1. Where there is no room for them the kernel closes those that came. */
struct letter letters_receive(int s, void *data, size_t room, unsigned files)
{
    union {
        char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct letter letter = {.file = -1, .from_size = sizeof letter.from};
    struct iovec part = {data, room};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = &letter.from, .msg_namelen = sizeof letter.from,
                       .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof(struct ucred)) + files * CMSG_SPACE(sizeof(int))};
    letter.length = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *c = letter.length < 0 ? NULL : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        int came[2] = {-1, -1}; /* by alignment there is room for two */
        struct ucred who;
        if (c->cmsg_type == SCM_CREDENTIALS) {
            memcpy(&who, CMSG_DATA(c), sizeof who);
            letter.trusted = letters_is_our_user(who.uid);
        } else { /* SCM_RIGHTS: nothing else was asked for */
            memcpy(came, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0) < sizeof came ? c->cmsg_len - CMSG_LEN(0) : sizeof came);
            letter.file = came[0];
            if (came[1] >= 0)
                close(came[1]);
        }
    }
    letter.from_size = m.msg_namelen;
    return letter;
}
