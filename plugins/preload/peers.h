/* peers.h: which devices may use memory of which. See peers.c. */
#ifndef CENOTE_PRELOAD_PEERS_H
#define CENOTE_PRELOAD_PEERS_H

#include <cenote/cenote.h>
#include <stdint.h>

/* A pool of the device opens: it is granted to all devices whose contexts the program has let in. A CENOTE_ error. */
int peers_grant(int device, cenote_pool *pool);

/*
 * A pool of another device lets these in, a bit each, or one has a context again: cenote knows that one as one that ends. LOCKING: none, and no place
 * is visited: a place may open.
 */
void peers_let_in(uint64_t devices);
void peers_retained(int device);

/* The context of the pool ends, and no block of it is live: kernels of other devices are not waited for. */
void peers_are_done(cenote_pool *pool);

/* The context of the device ends: it lets none in, and is let in nowhere. */
void peers_forget(int device);

#endif
