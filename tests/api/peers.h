/* peers.h: a scene with a pool on device 0, and a second device with a stream: what tests of kernels on memory of another device share. */
#ifndef CENOTE_TESTS_API_PEERS_H
#define CENOTE_TESTS_API_PEERS_H

#include "tests/api/scene.h"

#define CARD (128 * MIB)

struct peers {
    struct scene scene;
    CUcontext    other;     /* of device 1 */
    CUstream     stream;    /* there */
    CUevent      back;      /* there */
};

static inline void open_peers(struct peers *p, unsigned provider, int devices)
{
    struct sim_shape shape = scene_card(CARD);
    cenote_options options = scene_options();
    options.provider = provider;
    shape.devices = devices;
    scene_open_with(&p->scene, &shape, &options);
    DONE(cuDevicePrimaryCtxRetain(&p->other, 1));
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING));
    DONE(cuCtxPopCurrent(NULL));
}

static inline void close_peers(struct peers *p)
{
    scene_judge(&p->scene);
    scene_destroy_pool(&p->scene);
    DONE(cuCtxPushCurrent(p->other));
    DONE(cuStreamDestroy(p->stream));
    DONE(cuCtxPopCurrent(NULL));
    DONE(cuDevicePrimaryCtxRelease(1));
    scene_close(&p->scene);
}

static const unsigned providers[] = {CENOTE_VMM, CENOTE_ASYNC, CENOTE_PLAIN};

#endif
