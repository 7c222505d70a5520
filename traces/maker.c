/*
 * maker.c: turns "take this, give that" into records, and makes the traces of this folder.
 *
 *     cenote-traces FOLDER
 *
 * writes every scene of scenes.c to FOLDER/<scene>.csv.gz. The same program always writes the same records: chance is a fixed sequence and
 * time is made up. LOCKING: none.
 */
#include "traces/maker.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void write_record(struct maker *m, enum record_op op, const struct tensor *tensor, uint32_t stream)
{
    struct record r = {.t_ns = m->t_us * 1000, .op = op, .stream = stream, .device = m->device};
    if (tensor) {
        r.id = tensor->id;
        r.bytes = tensor->bytes;
        r.device = tensor->device;
        r.tag = m->tag;
    }
    records_write(m->writer, &r);
    m->t_us += maker_between(m, 1, 16) * 5;
}

/* xorshift64*, as good as this needs. */
uint64_t maker_between(struct maker *m, uint64_t least, uint64_t most)
{
    m->chance ^= m->chance >> 12;
    m->chance ^= m->chance << 25;
    m->chance ^= m->chance >> 27;
    return least + (m->chance * 0x2545f4914f6cdd1dull >> 16) % (most - least + 1);
}

struct tensor maker_take(struct maker *m, uint64_t bytes)
{
    struct tensor tensor = {++m->next_id, bytes, m->device};
    write_record(m, RECORD_ALLOC, &tensor, m->stream);
    return tensor;
}

void maker_give(struct maker *m, struct tensor *tensor)
{
    if (!tensor->id)
        return;
    write_record(m, RECORD_FREE, tensor, m->stream);
    tensor->id = 0;
}

void maker_use(struct maker *m, const struct tensor *tensor, uint32_t stream)
{
    write_record(m, RECORD_USE, tensor, stream);
}

void maker_step(struct maker *m, uint64_t us)
{
    m->t_us += us;
    write_record(m, RECORD_STEP, NULL, 0);
}

static bool make(const char *folder, const char *name, void (*scene)(struct maker *))
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s.csv.gz", folder, name) >= sizeof(path))
        return false;
    struct maker m = {.writer = records_create(path), .chance = 88172645463325252ull};
    bool fine = m.writer != NULL;
    if (fine) {
        scene(&m);
        fine = records_finish(m.writer);
    }
    if (!fine)
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
    return fine;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: cenote-traces FOLDER\n");
        return 1;
    }
    bool fine = true;
#define SCENE(name) fine &= make(argv[1], #name, scene_##name);
    SCENES(SCENE)
#undef SCENE
    return fine ? 0 : 1;
}
