/*
 * sim.h: controls the simulated GPU. Tests, replays and fuzzers include it; the library never does.
 *
 * The simulated GPU is build/sim/libcuda.so.1. A program uses it by being linked to it, or by finding it first in LD_LIBRARY_PATH. Its shape
 * comes from sim_reset() or, for programs that know nothing of it, from the environment variable CENOTE_SIM, as "capacity:80GiB,devices:2".
 * In that case CUDA_VISIBLE_DEVICES is honoured as well (visible.c); a shape given to sim_reset() shows all devices.
 *
 * Devices are ordinals here, as in the driver's calls, but for what libraries of management ask, at the end.
 *
 * TIME. The simulated device has a clock in ns. It advances by host time (unless `manual_clock`), by sim_advance(), and by any call that
 * synchronises: then to the moment the thing waited for is done. It does so, too, under a thread that asks after events again and
 * again, and neither puts work on a stream nor sets its capture mode between: to the first moment at which one of them is done. Work
 * on a stream is done, in stream order, `lag` plus its own length after it was submitted. Its effects on memory happen at that moment, not
 * before: what was unmapped meanwhile is an illegal address.
 */
#ifndef CENOTE_SIM_SIM_H
#define CENOTE_SIM_SIM_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Behaviours of real machines that the simulated one takes on; quirks.def says what each is. */
enum sim_quirk {
#define QUIRK(NAME, name, does) SIM_QUIRK_##NAME,
#include "sim/quirks.def"
#undef QUIRK
    SIM_QUIRKS
};
#define SIM_QUIRK(NAME) (1ull << SIM_QUIRK_##NAME)

const char *sim_quirk_name(int number);     /* NULL: there are no more */

struct sim_shape {
    uint64_t capacity;        /* bytes per device */
    uint64_t granularity;     /* of cuMemCreate */
    uint64_t context_bytes;   /* taken by a device's context while it is retained or current */
    uint64_t address_space;   /* most bytes reserved at one time per process; 0: no limit */
    uint64_t lag;             /* ns that the device runs behind the host */
    uint64_t data;            /* bytes of contents kept; writes beyond are dropped */
    int      devices;
    int      driver_version;  /* 13000; entry points newer than that are absent from cuGetProcAddress */
    bool     vmm;             /* virtual memory management supported */
    bool     pools;           /* cuMemAllocFromPoolAsync supported */
    bool     peers;           /* devices can reach each other's memory */
    bool     manual_clock;    /* host time does not count */
    bool     reuse_handles;   /* a new stream gets the handle of the last destroyed one, as real drivers do (default true) */
    bool     charge_cost;     /* driver calls advance the clock by their modelled cost (default false) */
    bool     spend_cost;      /* driver calls take the host as long as their modelled cost (default false) */
    bool     shuts_down;      /* at exit, by a handler that cuInit sets up, the driver ends: calls answer CUDA_ERROR_DEINITIALIZED (default false) */
    uint64_t mapping_ceiling; /* of the quirks of that name */
    uint64_t handle_ceiling;
    uint64_t quirks;          /* of SIM_QUIRK; 0: none */
    char     prices[512];     /* what driver calls cost: a list of cost.def, or a file with prices, which replace those of a100; "": a100 */
    char     machine[64];     /* processes that name the same one share the memory of its devices; "": this process has them for itself */
};

/* The default: one 80 GiB device, 2 MiB granularity, no lag, host clock. */
void sim_shape_default(struct sim_shape *shape);

/* Forgets everything and starts with this shape. Nothing of the old device may be used afterwards. NULL: as at program start. */
void sim_reset(const struct sim_shape *shape);

uint64_t sim_now(void);
void     sim_advance(uint64_t ns);
void     sim_set_lag(uint64_t ns);

/* --- work that tests put on streams; every kernel first checks that each byte it touches is mapped and accessible when it runs */

CUresult sim_launch_wait(CUstream stream, uint64_t ns);                                                  /* takes that long */
CUresult sim_launch_fill(CUstream stream, CUdeviceptr at, uint64_t pattern, size_t bytes);               /* writes 8-byte words */
CUresult sim_launch_expect(CUstream stream, CUdeviceptr at, uint64_t pattern, size_t bytes);             /* counts words that differ */
CUresult sim_launch_touch(CUstream stream, CUdeviceptr at, size_t bytes);                                /* reads and writes nothing */
uint64_t sim_mismatches(void);   /* words that sim_launch_expect found different, since sim_reset */

/*
 * An empty kernel: what the libraries beside the driver put on streams. It takes no time of its own and touches no memory, is done in
 * stream order, becomes a kernel node in a capture, and is refused once the context is lost. `name` is read during the call alone; NULL: none.
 */
CUresult sim_launch_kernel(CUstream stream, const char *name);

/* --- the driver's own books: what tests judge by */

struct sim_books {
    uint64_t used;            /* bytes of physical memory, all devices, without contexts */
    uint64_t used_peak;
    uint64_t reserved;        /* bytes of address space reserved */
    uint64_t handles;         /* live cuMemCreate handles */
    uint64_t mappings;
    uint64_t reservations;
    uint64_t allocations;     /* live cuMemAlloc, cuMemAllocAsync, host allocations */
    uint64_t pools;           /* live memory pools beside the default ones */
    uint64_t events;
    uint64_t streams;         /* created and not destroyed */
    uint64_t contexts;        /* sum of retain counts */
    uint64_t kernels;         /* empty kernels put on streams, by launches and by replays of graphs */
    uint64_t calls;           /* driver calls of any kind; what another thread called without the lock is added with its next other call */
    uint64_t cost_ns;         /* modelled cost of all calls so far, see cost.def */
    uint64_t violations;      /* uses that CUDA calls undefined or refuses; not what a correct program expects (out of memory, not ready) */
};

void sim_books(struct sim_books *books);

/* Modelled cost of all calls that the calling thread ever made: what its program waits for. */
uint64_t sim_cost_of_thread(void);

/* Lists of prices of cost.def; NULL: there are no more. */
const char *sim_price_list(int number);

/* Whether `prices` of a shape is a list or a good file; if not, `why` says so in words. */
bool sim_prices_are_fine(const char *prices, char *why, size_t room);

/* ns of a call, or of each handle of one, by such prices; 0: it costs nothing. */
uint64_t sim_price(const char *prices, const char *call);

/* The most mappings that one handle's memory has had at one time. */
uint64_t sim_mappings_of_one(void);

/* Ranges of the program's own memory that are registered (cuMemHostRegister), and how many bytes they have; NULL: not asked. */
uint64_t sim_registered(uint64_t *bytes);

/* The last violation in words ("cuMemUnmap: slot at 0x... is used by work that is not done"), or "". */
const char *sim_last_violation(void);

/* Violations print to stderr as they happen (default true; environment CENOTE_SIM=quiet:1). */
void sim_set_quiet(bool quiet);

/* The context of a device is lost: every call that touches it returns `error` from now on, as after an illegal address. */
void sim_lose_context(int device, CUresult error);

/* cuGetProcAddress knows nothing of `name` until sim_reset: a driver too old, or built without it. */
void sim_hide(const char *name);

/* Memory of other processes: that much less is free. */
void sim_set_foreign(int device, uint64_t bytes);

/*
 * What a library of management may ask at any time: before cuInit, which stays uncalled, and in a child of a fork, which stays free to use
 * the device. Devices go by their index on the machine, whatever CUDA_VISIBLE_DEVICES says.
 */
struct sim_device {
    char     name[96];
    CUuuid   uuid;
    char     bus_id[32];      /* as cuDeviceGetPCIBusId */
    int      bus;             /* the number in it */
    int      ordinal;         /* that cuDeviceGet knows it by; -1: CUDA_VISIBLE_DEVICES hides it */
    uint64_t total;           /* bytes of memory */
    uint64_t used;            /* of it, by all processes of the machine, contexts included */
};

int  sim_device_count(void);
bool sim_device(int device, struct sim_device *out);                                /* false: no such device */
bool sim_device_attribute(int device, CUdevice_attribute attribute, int *value);    /* as cuDeviceGetAttribute; false: no such one */

struct sim_process {
    int      process;         /* its id */
    uint64_t bytes;           /* what it holds of a device, contexts included */
};

/*
 * The processes of the machine that hold memory of a device, as nvidia-smi would list them; without a machine, this one. Returns how many
 * there are, also where `list` has less room; -1: no such device.
 */
int sim_processes(int device, struct sim_process *list, int room);

/*
 * For a library that follows what the program does above the driver, and so knows what kernels would compute.
 *
 * A thread that explains what it puts on streams says so with sim_explain, which returns what it had said before. Everything else that writes to
 * memory is counted: kernels and replays, which could write anywhere, with the range of all addresses, copies and fills with their own.
 * sim_unexplained copies such ranges, from number `since` on, and returns how many; fewer than there are if they are no longer remembered, or for
 * lack of room.
 *
 * sim_answer: the next copies of at most 8 bytes that the calling thread makes from memory of a device to the host take these numbers. Returns how
 * many of the last ones nobody took.
 */
#define SIM_ANSWERS_MAX 16

struct sim_range {
    uint64_t from, to;
};

bool     sim_explain(bool on);
uint64_t sim_unexplained(uint64_t since, struct sim_range *out, int room);
int      sim_answer(const uint64_t *numbers, int number);
#ifdef __cplusplus
const void *sim_unexplained_count(void);
#else
const _Atomic uint64_t *sim_unexplained_count(void);    /* how many there are; may be read at any time */
#endif

#ifdef __cplusplus
}
#endif
#endif
