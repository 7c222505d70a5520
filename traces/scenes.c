/*
 * scenes.c: programs that allocate as training and serving do. README.md of this folder says what each one stands for.
 *
 * They are written down from how such programs work (weights that stay, activations that live from their forward to their backward pass,
 * gradients, optimizer state, caches that grow, sizes that change from step to step), not recorded from a run. The tags name the kind
 * of memory.
 */
#include "traces/maker.h"

enum tag { PARAMETERS = 1, GRADIENTS, OPTIMIZER, ACTIVATIONS, WORKSPACES, CACHES };

static struct tensor take_as(struct maker *m, enum tag tag, uint64_t bytes)
{
    m->tag = tag;
    return maker_take(m, bytes);
}

/* ------------------------------------------------------------------------------------------------------- a transformer in training */

#define HIDDEN 1536u
#define LAYERS 24u
#define WORDS 50304u
#define BATCH 8u
#define SAVED 7 /* activations a layer keeps for its backward pass */

/* The matrices of a layer in parts of HIDDEN squared; 0 is a vector. */
static const unsigned matrices[] = {3, 1, 4, 4, 0, 0};
#define MATRICES (sizeof(matrices) / sizeof(matrices[0]))

static uint64_t matrix_elements(unsigned parts)
{
    return parts ? (uint64_t)parts * HIDDEN * HIDDEN : HIDDEN;
}

struct transformer {
    struct tensor saved[LAYERS][SAVED];
    struct tensor gradients[LAYERS][MATRICES];
};

static void forward_layer(struct maker *m, struct transformer *t, unsigned layer, uint64_t tokens)
{
    static const unsigned widths[SAVED] = {1, 3, 1, 1, 1, 4, 4}; /* in parts of HIDDEN */
    for (unsigned i = 0; i < SAVED; i++) {
        struct tensor workspace = i % 3 == 1 ? take_as(m, WORKSPACES, 8519680) : (struct tensor){0};
        t->saved[layer][i] = take_as(m, ACTIVATIONS, tokens * widths[i] * HIDDEN * 2);
        maker_give(m, &workspace);
    }
}

static void backward_layer(struct maker *m, struct transformer *t, unsigned layer, uint64_t tokens)
{
    struct tensor incoming = take_as(m, ACTIVATIONS, tokens * HIDDEN * 2);
    for (unsigned i = SAVED; i-- > 0;) {
        struct tensor gradient = take_as(m, ACTIVATIONS, t->saved[layer][i].bytes);
        if (i < MATRICES && !t->gradients[layer][i].id)
            t->gradients[layer][i] = take_as(m, GRADIENTS, matrix_elements(matrices[i]) * 2);
        maker_give(m, &t->saved[layer][i]);
        maker_give(m, &incoming);
        incoming = gradient;
    }
    maker_give(m, &incoming);
}

void scene_train_transformer(struct maker *m)
{
    static struct transformer t;
    for (unsigned layer = 0; layer < LAYERS; layer++)
        for (unsigned i = 0; i < MATRICES; i++)
            take_as(m, PARAMETERS, matrix_elements(matrices[i]) * 2);
    take_as(m, PARAMETERS, (uint64_t)WORDS * HIDDEN * 2);

    for (unsigned step = 0; step < 6; step++) {
        uint64_t tokens = BATCH * maker_between(m, 2, 16) * 64; /* sequences of 128 to 1024 */
        struct tensor input = take_as(m, ACTIVATIONS, tokens * 8);
        for (unsigned layer = 0; layer < LAYERS; layer++)
            forward_layer(m, &t, layer, tokens);
        struct tensor logits = take_as(m, ACTIVATIONS, tokens * WORDS * 2);
        struct tensor loss = take_as(m, ACTIVATIONS, tokens * WORDS * 4);
        maker_give(m, &logits);
        for (unsigned layer = LAYERS; layer-- > 0;)
            backward_layer(m, &t, layer, tokens);
        maker_give(m, &loss);
        for (unsigned layer = 0; layer < LAYERS; layer++)
            for (unsigned i = 0; i < MATRICES; i++) {
                if (step == 0) { /* two moments, kept for good */
                    take_as(m, OPTIMIZER, matrix_elements(matrices[i]) * 4);
                    take_as(m, OPTIMIZER, matrix_elements(matrices[i]) * 4);
                }
                maker_give(m, &t.gradients[layer][i]);
            }
        maker_give(m, &input);
        maker_step(m, 400000);
    }
}

/* --------------------------------------------------------------------------------- a convolutional net, training and evaluation in turn */

#define STAGES 4u
#define BLOCKS_IN_STAGE 6u

static uint64_t feature_bytes(uint64_t images, uint64_t side, unsigned stage)
{
    uint64_t edge = side >> (stage + 2);
    return images * edge * edge * (256u << stage) * 2;
}

static void convolution_workspace(struct maker *m)
{
    struct tensor workspace = take_as(m, WORKSPACES, maker_between(m, 1, 96) << 20);
    maker_give(m, &workspace);
}

static void train_convnet_step(struct maker *m, uint64_t images, uint64_t side)
{
    struct tensor saved[STAGES * BLOCKS_IN_STAGE * 3];
    unsigned count = 0;
    for (unsigned stage = 0; stage < STAGES; stage++)
        for (unsigned i = 0; i < BLOCKS_IN_STAGE; i++) {
            convolution_workspace(m);
            saved[count++] = take_as(m, ACTIVATIONS, feature_bytes(images, side, stage) / 4);
            saved[count++] = take_as(m, ACTIVATIONS, feature_bytes(images, side, stage) / 4);
            saved[count++] = take_as(m, ACTIVATIONS, feature_bytes(images, side, stage));
        }
    while (count) {
        struct tensor gradient = take_as(m, GRADIENTS, saved[--count].bytes);
        if (count % 3 == 0)
            convolution_workspace(m);
        maker_give(m, &saved[count]);
        maker_give(m, &gradient);
    }
}

static void evaluate_convnet_step(struct maker *m, uint64_t images, uint64_t side)
{
    struct tensor before = take_as(m, ACTIVATIONS, images * side * side * 3 * 2);
    for (unsigned stage = 0; stage < STAGES; stage++)
        for (unsigned i = 0; i < BLOCKS_IN_STAGE; i++) {
            struct tensor after = take_as(m, ACTIVATIONS, feature_bytes(images, side, stage));
            maker_give(m, &before);
            before = after;
        }
    maker_give(m, &before);
}

void scene_train_convnet(struct maker *m)
{
    for (unsigned i = 0; i < 160; i++)
        take_as(m, PARAMETERS, (64u << maker_between(m, 0, 5)) * (64u << maker_between(m, 0, 5)) * 4ull);
    for (unsigned step = 0; step < 18; step++) {
        uint64_t side = maker_between(m, 10, 18) * 16; /* images of 160 to 288 */
        if (step % 6 < 4)
            train_convnet_step(m, 64, side);
        else
            evaluate_convnet_step(m, 256, 288);
        maker_step(m, 150000);
    }
}

/* ------------------------------------------------------------------------------------------------ a language model that serves requests */

#define REQUESTS 24u
#define CACHE_PARTS 8u     /* tensors in which a request's cache lies */
#define TOKEN_BYTES 524288ull /* of all parts together, per token: 32 layers of 4096 in half precision, keys and values */

struct request {
    uint64_t      tokens, until; /* 0: none */
    struct tensor cache[CACHE_PARTS];
};

/* A cache grows by a copy into a larger one, which the copying stream still reads when the old one is freed. */
static void grow_cache(struct maker *m, struct request *r, uint64_t tokens)
{
    for (unsigned i = 0; i < CACHE_PARTS; i++) {
        struct tensor larger = take_as(m, CACHES, tokens * TOKEN_BYTES / CACHE_PARTS);
        if (r->cache[i].id && i == 0)
            maker_use(m, &r->cache[i], 1);
        maker_give(m, &r->cache[i]);
        r->cache[i] = larger;
    }
    r->tokens = tokens;
}

static void decode_once(struct maker *m, uint64_t running)
{
    struct tensor hidden = take_as(m, ACTIVATIONS, running * 4096 * 2 + 512);
    struct tensor scores = take_as(m, WORKSPACES, running * 131072 + 512);
    maker_give(m, &hidden);
    struct tensor logits = take_as(m, ACTIVATIONS, running * 128256 * 2 + 512);
    maker_give(m, &scores);
    maker_use(m, &logits, 2); /* sampled tokens travel to the host on another stream */
    maker_give(m, &logits);
}

void scene_serve_llm(struct maker *m)
{
    static struct request requests[REQUESTS];
    for (unsigned layer = 0; layer < 32; layer++)
        for (unsigned i = 0; i < 4; i++)
            take_as(m, PARAMETERS, (i < 2 ? 4096ull * 4096 : 4096ull * 11008) * 2);
    for (unsigned step = 0; step < 300; step++) {
        uint64_t running = 0;
        for (unsigned i = 0; i < REQUESTS; i++) {
            struct request *r = &requests[i];
            if (!r->tokens && maker_between(m, 0, 15) == 0) {
                grow_cache(m, r, maker_between(m, 1, 16) * 64);
                r->until = r->tokens + maker_between(m, 2, 8) * 64;
            } else if (r->tokens && r->tokens >= r->until) {
                for (unsigned part = 0; part < CACHE_PARTS; part++)
                    maker_give(m, &r->cache[part]);
                r->tokens = 0;
            } else if (r->tokens && (step + i) % 16 == 0) {
                grow_cache(m, r, r->tokens + 64);
            }
            running += r->tokens != 0;
        }
        decode_once(m, running);
        maker_step(m, 20000);
    }
}

/* --------------------------------------------------------------------------------------------- two devices, each with copying streams */

#define STAGES_IN_FLIGHT 4u

/* A micro-batch arrives on the copying stream 1, is worked on on stream 0 and its result leaves on stream 2. */
void scene_pipeline(struct maker *m)
{
    struct tensor results[2][STAGES_IN_FLIGHT] = {0};
    for (m->device = 0; m->device < 2; m->device++)
        for (unsigned i = 0; i < 24; i++)
            take_as(m, PARAMETERS, maker_between(m, 1, 40) << 20);
    for (unsigned batch = 0; batch < 200; batch++) {
        uint64_t tokens = maker_between(m, 4, 64) * 16;
        for (m->device = 0; m->device < 2; m->device++) {
            struct tensor *result = &results[m->device][batch % STAGES_IN_FLIGHT];
            maker_give(m, result);
            m->stream = 1;
            struct tensor input = take_as(m, ACTIVATIONS, tokens * 16384);
            maker_use(m, &input, 0);
            m->stream = 0;
            struct tensor inner = take_as(m, ACTIVATIONS, tokens * 65536);
            *result = take_as(m, ACTIVATIONS, tokens * 16384);
            maker_use(m, result, 2);
            maker_give(m, &inner);
            maker_give(m, &input);
        }
        m->device = 0;
        maker_step(m, 5000);
    }
}
