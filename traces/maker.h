/* maker.h: the hand that writes a synthetic trace: blocks, time, chance. See maker.c. */
#ifndef CENOTE_TRACES_MAKER_H
#define CENOTE_TRACES_MAKER_H

#include <stdbool.h>
#include <stdint.h>

#include "stats/records/records.h"

struct maker {
    struct records_writer *writer;
    uint64_t               t_us;
    uint64_t               next_id;
    uint64_t               chance; /* state of the random numbers; not 0 */
    uint32_t               stream, device, tag; /* of what is taken next */
};

struct tensor {
    uint64_t id; /* 0: none */
    uint64_t bytes;
    uint32_t device;
};

struct tensor maker_take(struct maker *m, uint64_t bytes);
void          maker_give(struct maker *m, struct tensor *tensor); /* nothing for "none"; leaves none */
void          maker_use(struct maker *m, const struct tensor *tensor, uint32_t stream);
void          maker_step(struct maker *m, uint64_t us); /* the iteration took so much longer than its records say */
uint64_t      maker_between(struct maker *m, uint64_t least, uint64_t most); /* both included */

/* scenes.c: what is played. Each names itself in traces/README.md. */
#define SCENES(SCENE) SCENE(train_transformer) SCENE(train_convnet) SCENE(serve_llm) SCENE(pipeline)
#define SCENE(name) void scene_##name(struct maker *m);
SCENES(SCENE)
#undef SCENE

#endif
