/*
 * owner.c: whose is the datagram socket with that name? The kernel answers (sock_diag, the way of `ss`) with a list of all sockets of the network
 * namespace and their users, which takes microseconds for some and a millisecond for thousands: an importer asks only where no answer comes.
 *
 * It is not known before Linux 5.3, or where the program may ask no such questions.
 *
 * LOCKING: none; no state.
 */
#include "share/share.h"

#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <string.h>
#include <unistd.h>

#define DUMP_BYTES 8192 /* no message of a list is larger (NLMSG_GOODSIZE) */

/* Of that kind and at least that long; NULL: the socket has none. */
static const void *attribute(const struct nlmsghdr *h, uint16_t kind, size_t least, size_t *length)
{
    const char *at = (const char *)NLMSG_DATA(h) + NLMSG_ALIGN(sizeof(struct unix_diag_msg)), *end = (const char *)h + h->nlmsg_len;
    while (end - at >= (ptrdiff_t)sizeof(struct nlattr)) {
        const struct nlattr *a = (const struct nlattr *)at;
        if (a->nla_len < NLA_HDRLEN || a->nla_len > end - at)
            break;
        *length = (size_t)a->nla_len - NLA_HDRLEN;
        if (a->nla_type == kind && *length >= least)
            return at + NLA_HDRLEN;
        at += NLA_ALIGN(a->nla_len);
    }
    return NULL;
}

/* Is this the socket, and whose? */
static bool look(const struct nlmsghdr *h, const char *name, size_t length, uid_t *user)
{
    const struct unix_diag_msg *m = NLMSG_DATA(h);
    size_t has = 0;
    if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY || h->nlmsg_len < NLMSG_LENGTH(sizeof *m) || m->udiag_type != SOCK_DGRAM)
        return false;
    const void *named = attribute(h, UNIX_DIAG_NAME, length, &has);
    if (!named || has != length || memcmp(named, name, length) != 0)
        return false;
    const void *of = attribute(h, UNIX_DIAG_UID, sizeof *user, &has);
    if (of)
        memcpy(user, of, sizeof *user);
    return of != NULL;
}

/* The whole list is in the socket. */
static bool find(int s, const char *name, size_t length, uid_t *user)
{
    _Alignas(struct nlmsghdr) char part[DUMP_BYTES];
    for (ssize_t came; (came = recv(s, part, sizeof part, 0)) > 0;) {
        size_t left = (size_t)came;
        for (const struct nlmsghdr *h = (const struct nlmsghdr *)part; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
            if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR)
                return false;
            if (look(h, name, length, user))
                return true;
        }
    }
    return false;
}

/* The name as it lies in sun_path. False: there is no such socket, or it is not known whose it is. */
bool share_owner(const char *name, size_t length, uid_t *user)
{
    const struct {
        struct nlmsghdr      h;
        struct unix_diag_req q;
    } question = {{.nlmsg_len = sizeof question, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
                  {.sdiag_family = AF_UNIX, .udiag_states = UINT32_MAX, .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID}};
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    bool known = s >= 0 && send(s, &question, sizeof question, MSG_NOSIGNAL) == (ssize_t)sizeof question && find(s, name, length, user);
    if (s >= 0)
        close(s);
    return known;
}
