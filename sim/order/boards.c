/*
 * boards.c: events of several processes (cuIpcGetEventHandle): each has a cell on a board, a file that all processes that know the event map.
 *
 * Every record, by whichever process, takes the next number of the cell; the process that recorded marks that number done when its own
 * clock has come there and all work before it has been done. So the event is complete when the number done has reached the number
 * recorded, and what was written before it is there to be read.
 *
 *     recorded 1, done 0: not complete      recorded 1, done 1: complete      recorded 2, done 1: recorded again, not complete
 *
 * Clocks of processes are not compared: a thread that waits for a record of another process waits in real time, without the model's lock, and keeps
 * its own device going meanwhile; a stream's wait too holds up its caller, as a device's would not. So that the record becomes done although its
 * process sleeps, a thread looks at the clock while there is one due later; without `lag` there never is. A process that died has done all it ever
 * will: its records are complete.
 *
 * What another process writes on a board is only compared, never used as a place.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/machine/files.h"
#include "sim/order/stream.h"

#define CELLS 65536u            /* of a board */
#define EVENTS_MAX (1u << 20)
#define BOARD_BYTES (CELLS * (uint64_t)sizeof(struct cell))
#define WAIT_LEAST 10000u       /* ns between two looks at the clock */
#define EVENT_MAGIC 0x73696576u

struct cell {                   /* shared */
    _Atomic uint64_t id;        /* of the event; 0: free */
    _Atomic uint64_t recorded;
    _Atomic uint64_t done;
    _Atomic uint64_t recorder;  /* process that recorded last */
    _Atomic uint64_t recorder_started;
    uint64_t         reserved[3];
};

struct board {
    uint64_t      id;
    struct cell  *cells;
    uint32_t      users;        /* events of this process on it */
    int           file;         /* of our own board; -1: another's */
    struct board *next;
};

struct shared_event {
    uint32_t      number;       /* its own, among those of this process */
    struct board *board;
    uint32_t      cell;
    bool          closed;       /* destroyed, but a record is not done */
    bool          waiting;      /* among `due` */
    uint64_t      recorded;     /* number of our last record; 0: none */
    uint64_t      done;         /* when it is done, by our clock */
    struct shared_event *next;  /* in `due` */
};

struct event_handle {
    uint32_t magic;
    int32_t  process;
    uint64_t started;
    int32_t  file;
    uint32_t cell;
    uint64_t board;
    uint64_t event;
    uint64_t reserved[2];
    uint64_t check;
};

_Static_assert(sizeof(struct event_handle) == sizeof(CUipcEventHandle), "64 bytes");

static struct {
    struct board        *all;
    struct board        *own;
    struct shared_event *due;   /* records of ours that are not done */
    uint32_t             used;  /* cells of our own board ever taken */
    uint32_t             free[CELLS];   /* taken and given back */
    uint32_t             free_count;
    bool                 ticking;
} boards;

static struct slots shared_events;

static struct cell *cell_of(const struct shared_event *s)
{
    return &s->board->cells[s->cell];
}

static void close_board(struct board *b)
{
    munmap(b->cells, BOARD_BYTES);
    if (b->file >= 0)
        close(b->file);
    free(b);
}

void boards_reset(void)
{
    boards.due = NULL;
    if (shared_events.items)
        slots_clear(&shared_events);
    while (boards.all) {
        struct board *b = boards.all;
        boards.all = b->next;
        close_board(b);
    }
    boards.own = NULL;
    boards.used = boards.free_count = 0;
    boards.ticking = false;
}

static struct board *add_board(uint64_t id, int file, bool own)
{
    struct board *b = malloc(sizeof *b);
    void *cells = b ? file_map(file, BOARD_BYTES) : NULL;
    if (!cells) {
        free(b);
        return NULL;
    }
    *b = (struct board){.id = id, .cells = cells, .file = own ? file : -1, .next = boards.all};
    boards.all = b;
    return b;
}

static void leave_board(struct board *b)
{
    if (--b->users || b == boards.own)
        return;
    struct board **at = &boards.all;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    close_board(b);
}

static bool open_own_board(void)
{
    struct file_header header = {.kind = FILE_EVENTS, .id = file_new_id(), .size = BOARD_BYTES, .kept = BOARD_BYTES};
    if (boards.own)
        return true;
    int file = header.id ? file_create(&header) : -1;
    if (file < 0)
        return false;
    boards.own = add_board(header.id, file, true);
    if (!boards.own)
        close(file);
    return boards.own;
}

/* --- records */

/* Numbers done only grow: a record is complete when a later one is. */
static void mark_done(struct shared_event *s)
{
    _Atomic uint64_t *done = &cell_of(s)->done;
    uint64_t before = atomic_load(done);
    while (before < s->recorded && !atomic_compare_exchange_weak(done, &before, s->recorded))
        ;
}

static void free_event(struct shared_event *s)
{
    struct board *b = s->board;
    if (b == boards.own) {
        atomic_store(&cell_of(s)->id, 0);
        boards.free[boards.free_count++] = s->cell;
    }
    slots_give(&shared_events, s->number);
    leave_board(b);
}

void shared_event_close(struct shared_event *s)
{
    s->closed = true;
    if (!s->waiting)
        free_event(s);
}

/* All work due until `now` has been done. */
static void publish(uint64_t now)
{
    for (struct shared_event **at = &boards.due; *at;) {
        struct shared_event *s = *at;
        if (moment_by_now(s->done) > now) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        s->waiting = false;
        mark_done(s);
        if (s->closed)
            free_event(s);
    }
}

/* The moment at which the clock has to be looked at next; 0: none. */
static uint64_t next_due(void)
{
    uint64_t first = 0;
    for (const struct shared_event *s = boards.due; s; s = s->next)
        if (!first || moment_by_now(s->done) < first)
            first = moment_by_now(s->done);
    return first;
}

static void *tick(void *epoch)
{
    model_lock();
    for (;;) {
        bool ours = atomic_load(&model.epoch) == (uint32_t)(uintptr_t)epoch;
        uint64_t now = ours ? clock_look() : 0;
        uint64_t next = ours ? next_due() : 0;
        if (ours && !next)
            boards.ticking = false;
        if (!next)
            break;
        model_nap(next < now + WAIT_LEAST || !moment_is_known(next) ? WAIT_LEAST : next - now);
    }
    model_unlock();
    return NULL;
}

/* With a clock that moves by hand there is nothing to look for. */
static void keep_ticking(void)
{
    if (!boards.ticking && !model.shape.manual_clock)
        boards.ticking = model_start_thread(tick, (void *)(uintptr_t)atomic_load(&model.epoch));
}

void shared_event_recorded(struct shared_event *s, uint64_t done)
{
    struct cell *c = cell_of(s);
    atomic_store(&c->recorder, (uint64_t)getpid());
    atomic_store(&c->recorder_started, process_own_start());
    s->recorded = atomic_fetch_add(&c->recorded, 1) + 1;
    s->done = done;
    if (done <= clock_seen()) {
        mark_done(s);
        return;
    }
    if (!s->waiting) {
        s->waiting = true;
        s->next = boards.due;
        boards.due = s;
        clock_tell(publish);
    }
    keep_ticking();
}

bool shared_event_is_elsewhere(const struct shared_event *s)
{
    return atomic_load(&cell_of(s)->recorded) != s->recorded;
}

bool shared_event_is_done(const struct shared_event *s)
{
    struct cell *c = cell_of(s);
    uint64_t recorded = atomic_load(&c->recorded);
    if (atomic_load(&c->done) >= recorded)
        return true;
    pid_t recorder = (pid_t)atomic_load(&c->recorder);
    return process_started(recorder) != atomic_load(&c->recorder_started) && atomic_load(&c->recorded) == recorded;
}

/* --- handles */

static struct shared_event *enter_board(struct board *b, uint32_t cell)
{
    if (!shared_events.items && !slots_open(&shared_events, sizeof(struct shared_event), EVENTS_MAX, SLOTS_NEWEST_FIRST))
        return NULL;
    uint32_t number = slots_take(&shared_events);
    if (!number)
        return NULL;
    struct shared_event *s = slots_at(&shared_events, number);
    s->number = number;
    s->board = b;
    s->cell = cell;
    b->users++;
    return s;
}

struct shared_event *shared_event_new(void)
{
    uint64_t id = file_new_id();
    if (!id || !open_own_board() || (!boards.free_count && boards.used == CELLS))
        return NULL;
    uint32_t cell = boards.free_count ? boards.free[boards.free_count - 1] : boards.used;
    struct shared_event *s = enter_board(boards.own, cell);
    if (!s)
        return NULL;
    if (boards.free_count)
        boards.free_count--;
    else
        boards.used++;
    struct cell *c = cell_of(s);
    atomic_store(&c->recorded, 0);
    atomic_store(&c->done, 0);
    atomic_store(&c->id, id);
    return s;
}

static struct board *find_board(const struct event_handle *h)
{
    for (struct board *b = boards.all; b; b = b->next)
        if (b->id == h->board)
            return b;
    struct file_header header;
    int file = file_of_process(h->process, h->started, h->file);
    if (file < 0)
        return NULL;
    bool same = file_read(file, &header) && header.kind == FILE_EVENTS && header.id == h->board && header.kept == BOARD_BYTES;
    struct board *b = same ? add_board(header.id, file, false) : NULL;
    close(file);
    return b;
}

bool shared_event_is_own(const struct shared_event *s)
{
    return s->board == boards.own;
}

void shared_event_describe(const struct shared_event *s, CUipcEventHandle *handle)
{
    struct event_handle h = {.magic = EVENT_MAGIC, .process = getpid(), .started = process_own_start(), .file = boards.own->file,
                             .cell = s->cell, .board = boards.own->id, .event = atomic_load(&cell_of(s)->id)};
    h.check = file_check(&h, offsetof(struct event_handle, check));
    memcpy(handle, &h, sizeof h);
}

static CUresult open_on(struct board *b, const struct event_handle *h, struct shared_event **opened)
{
    b->users++; /* while we look */
    bool lives = atomic_load(&b->cells[h->cell].id) == h->event;
    *opened = lives ? enter_board(b, h->cell) : NULL;
    leave_board(b);
    return *opened ? CUDA_SUCCESS : lives ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE;
}

CUresult shared_event_open(const CUipcEventHandle *handle, struct shared_event **opened)
{
    struct event_handle h;
    memcpy(&h, handle, sizeof h);
    if (h.magic != EVENT_MAGIC || h.check != file_check(&h, offsetof(struct event_handle, check)) || h.cell >= CELLS || !h.event)
        return model_refuse(CUDA_ERROR_INVALID_VALUE, "cuIpcOpenEventHandle: these bytes are no handle of a simulated GPU");
    if (h.process == getpid() && h.started == process_own_start())
        return model_refuse(CUDA_ERROR_INVALID_CONTEXT, "cuIpcOpenEventHandle: by the process that exported the event");
    struct board *b = process_started(h.process) == h.started ? find_board(&h) : NULL;
    CUresult result = b ? open_on(b, &h, opened) : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_ERROR_INVALID_HANDLE)
        return model_refuse(result, "cuIpcOpenEventHandle: process %d, whose event it is, has ended, has destroyed it, or is out of reach",
                            h.process);
    return result;
}
