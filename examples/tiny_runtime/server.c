/*
 * server.c: requests come, are prefilled, answer one token a step in a batch, and go.
 *
 *     waiting ---> running ---> served | cancelled by its client
 *        |  <------- evicted: prompt and answer so far are prefilled again
 *        '--> refused: too large for this server, even alone
 *
 * If memory runs out, nothing is broken, and what happens depends on who asks. A sequence that grows is in the middle of an answer: the pool calls
 * make_room, which evicts the youngest sequence. A prompt has not begun: the server admits none until a sequence leaves. So the oldest sequence
 * always comes to its end.
 */
#include "runtime.h"

enum state { WAITING, RUNNING, SERVED, CANCELLED, REFUSED };

struct request {
    int        arrives, prompt, answer, patience;   /* step; tokens; tokens; tokens after which the client goes away, 0: never */
    enum state state;
    int        answered;
    struct kv  kv;
};

struct server {
    struct runtime *runtime;
    struct decoder  decoder;
    struct request *requests;   /* the oldest first */
    struct request *growing;    /* it asks for memory for its next tokens; NULL: none does */
    int             count;
    bool            is_full;    /* a prompt found no room: wait for a sequence to leave */
    struct outcome  outcome;
};

static uint32_t number_of(const struct server *s, const struct request *q)
{
    return (uint32_t)(q - s->requests) + 1;
}

static int running(const struct server *s)
{
    int count = 0;
    for (int i = 0; i < s->count; i++)
        count += s->requests[i].state == RUNNING;
    return count;
}

/* ------------------------------------------------------------------------------------------------------------------------- leaving */

static void leave(struct server *s, struct request *q, enum state state)
{
    kv_drop(s->runtime, &q->kv);
    q->state = state;
    s->is_full = false;
    s->outcome.served += state == SERVED;
    s->outcome.cancelled += state == CANCELLED;
    s->outcome.refused += state == REFUSED;
}

static void evict(struct server *s, struct request *q)
{
    kv_drop(s->runtime, &q->kv);
    q->state = WAITING;
    s->is_full = true; /* it would come back at once, and be evicted again */
    s->outcome.evictions++;
}

/* The pool is about to fail an allocation: 1 if something was freed, so that it looks again. No lock of cenote is held. */
static int make_room(cenote_pool *pool, size_t bytes, void *arg)
{
    struct server *s = arg;
    (void)pool, (void)bytes;
    struct request *q = s->requests + s->count - 1;
    while (q > s->requests && q->state != RUNNING)
        q--;
    if (!s->growing || q <= s->growing)
        return 0;
    evict(s, q);
    return 1;
}

/* --------------------------------------------------------------------------------------------------------------------------- a step */

/* Not even the cache of the prompt finds room once the device is done with what was freed: then there is no need to try. */
static bool may_fit(const struct server *s, int tokens)
{
    cenote_available left;
    DONE(cenote_pool_available(s->runtime->pool, &left));
    return (uint64_t)tokens * TOKEN_BYTES <= left.free_later;
}

/* At most one prompt a step, so that those that answer do not wait for long. */
static void admit(struct server *s, int step)
{
    struct request *q = s->requests, *end = q + s->count;
    while (q < end && (q->state != WAITING || q->arrives > step))
        q++;
    if (q == end || s->is_full || running(s) == BATCH_MAX)
        return;
    int tokens = q->prompt + q->answered;
    if (may_fit(s, tokens) && !prefill(s->runtime, &q->kv, tokens, number_of(s, q))) {
        s->outcome.recomputed += q->answered ? tokens : 0;
        q->state = RUNNING;
    } else if (running(s)) {
        s->is_full = true;
    } else {
        leave(s, q, REFUSED); /* nothing else is there that could go */
    }
}

/* Room for one more token of each sequence. One that finds none, although all younger ones were evicted, is evicted itself. */
static void grow(struct server *s)
{
    for (struct request *q = s->requests; q < s->requests + s->count; q++) {
        if (q->state != RUNNING || q->kv.tokens < q->kv.room)
            continue;
        s->growing = q;
        int error = kv_grow(s->runtime, &q->kv, SPAN_TOKENS, s->runtime->decode);
        s->growing = NULL;
        if (error && running(s) > 1)
            evict(s, q);
        else if (error)
            leave(s, q, REFUSED);
    }
}

static void finish(struct server *s, struct request *q)
{
    bool is_over = q->answered == q->answer, is_cancelled = q->patience && q->answered == q->patience;
    if (is_over)
        kv_check(&q->kv, number_of(s, q), s->runtime->decode);
    if (is_over || is_cancelled)
        leave(s, q, is_over ? SERVED : CANCELLED);
}

/* The sequences that run get one token each. */
static void decode(struct server *s)
{
    struct request *batch[BATCH_MAX];
    uint32_t tokens[BATCH_MAX];
    int count = 0;
    for (struct request *q = s->requests; q < s->requests + s->count; q++)
        if (q->state == RUNNING)
            batch[count++] = q;
    for (int i = 0; i < count; i++)
        tokens[i] = number_of(s, batch[i]) * 1000 + (uint32_t)batch[i]->answered;
    if (count)
        decoder_step(&s->decoder, s->runtime, tokens, count);
    for (int i = 0; i < count; i++) {
        kv_write(&batch[i]->kv, 1, number_of(s, batch[i]), s->runtime->decode);
        batch[i]->answered++;
        finish(s, batch[i]);
    }
}

static bool is_over(const struct server *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->requests[i].state <= RUNNING)
            return false;
    return true;
}

/* Serves the requests below, all of them. */
struct outcome serve(struct runtime *r)
{
    struct request requests[] = {
        {.arrives = 0, .prompt = 310, .answer = 200},
        {.arrives = 0, .prompt = 150, .answer = 300},
        {.arrives = 1, .prompt = 470, .answer = 120, .patience = 40},
        {.arrives = 2, .prompt = 60, .answer = 320},
        {.arrives = 3, .prompt = 255, .answer = 260},
        {.arrives = 4, .prompt = 410, .answer = 180},
        {.arrives = 5, .prompt = 320, .answer = 250},
        {.arrives = 6, .prompt = 465, .answer = 150},
        {.arrives = 8, .prompt = 205, .answer = 280},
        {.arrives = 9, .prompt = 40000, .answer = 10},
        {.arrives = 20, .prompt = 385, .answer = 90, .patience = 10},
        {.arrives = 30, .prompt = 280, .answer = 240},
        {.arrives = 40, .prompt = 480, .answer = 200},
        {.arrives = 50, .prompt = 145, .answer = 350},
    };
    struct server s = {.runtime = r, .requests = requests, .count = sizeof requests / sizeof *requests};
    DONE(cenote_pool_on_shortage(r->pool, make_room, &s));
    decoder_open(&s.decoder, r);
    for (; !is_over(&s); s.outcome.steps++) {
        admit(&s, s.outcome.steps);
        grow(&s);
        decode(&s);
        runtime_note(r);
    }
    decoder_close(&s.decoder);
    DONE(cenote_pool_on_shortage(r->pool, NULL, NULL));
    return s.outcome;
}
