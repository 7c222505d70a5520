/* control.c: the functions of sim.h, by which tests, replays and fuzzers control the machine. LOCKING: they take the model's lock. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sim/entries/entries.h"
#include "sim/entries/start.h"
#include "sim/machine/machine.h"
#include "sim/memory/memory.h"
#include "sim/order/stream.h"

void sim_reset(const struct sim_shape *shape)
{
    model_lock();
    while (calls_running() && !model_thread()->in_host_function)
        calls_wait();
    if (shape)
        start_with(shape);
    else
        start_from_environment();
    model_unlock();
}

uint64_t sim_now(void)
{
    model_lock();
    uint64_t now = clock_look();
    model_unlock();
    return now;
}

void sim_advance(uint64_t ns)
{
    model_lock();
    clock_advance(ns);
    model_unlock();
}

void sim_set_lag(uint64_t ns)
{
    model_lock();
    model.shape.lag = ns;
    model_unlock();
}

/* Puts test work on a stream, as a launch of a kernel would be. */
static CUresult launch(CUstream stream, const struct work *work)
{
    if (model_is_forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    model_lock();
    struct stream *s;
    CUresult result = model.initialised ? stream_find(stream, &s) : CUDA_ERROR_NOT_INITIALIZED;
    if (!result)
        result = work_put(s, work);
    model_unlock();
    return result;
}

CUresult sim_launch_wait(CUstream stream, uint64_t ns)
{
    return launch(stream, &(struct work){.kind = &work_wait, .name = "sim_launch_wait", .length = ns});
}

static CUresult launch_words(CUstream stream, const struct work_kind *kind, const char *name, CUdeviceptr at, uint64_t pattern, size_t bytes)
{
    if (at % 8 || bytes % 8)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(stream, &(struct work){.kind = kind, .name = name, .to = at, .bytes = bytes, .pattern = pattern, .width = 8});
}

CUresult sim_launch_fill(CUstream stream, CUdeviceptr at, uint64_t pattern, size_t bytes)
{
    return launch_words(stream, &work_fill, "sim_launch_fill", at, pattern, bytes);
}

CUresult sim_launch_expect(CUstream stream, CUdeviceptr at, uint64_t pattern, size_t bytes)
{
    return launch_words(stream, &work_expect, "sim_launch_expect", at, pattern, bytes);
}

CUresult sim_launch_touch(CUstream stream, CUdeviceptr at, size_t bytes)
{
    return launch(stream, &(struct work){.kind = &work_touch, .name = "sim_launch_touch", .to = at, .bytes = bytes});
}

uint64_t sim_registered(uint64_t *bytes)
{
    model_lock();
    uint64_t sum = 0, count = allocations_registered(&sum);
    model_unlock();
    if (bytes)
        *bytes = sum;
    return count;
}

uint64_t sim_mismatches(void)
{
    model_lock();
    clock_look();
    uint64_t mismatches = transfers_mismatches();
    model_unlock();
    return mismatches;
}

void sim_books(struct sim_books *books)
{
    model_lock();
    clock_look();
    *books = model.books;
    books->calls = entries_calls();
    model_unlock();
}

uint64_t sim_mappings_of_one(void)
{
    model_lock();
    uint64_t most = model.mappings_of_one;
    model_unlock();
    return most;
}

/* A copy of this thread's own: another thread may meet the next one meanwhile. */
const char *sim_last_violation(void)
{
    static _Thread_local char text[sizeof model.last_violation];
    model_lock();
    memcpy(text, model.last_violation, sizeof text);
    model_unlock();
    return text;
}

void sim_set_quiet(bool quiet)
{
    model_lock();
    model.quiet = quiet;
    model_unlock();
}

void sim_lose_context(int device, CUresult error)
{
    model_lock();
    for (uint32_t i = 1; i < model.contexts.used; i++)
        if (slots_is_live(&model.contexts, i) && context_at(i)->device == device && context_is_alive(context_at(i)))
            context_lose(i, error);
    model_unlock();
}

void sim_hide(const char *name)
{
    model_lock();
    if (!lookup_hide(name))
        fprintf(stderr, "simulated GPU: sim_hide: too many names, or too long: %s\n", name);
    model_unlock();
}

void sim_set_foreign(int device, uint64_t bytes)
{
    model_lock();
    if (device_exists(device))
        model.devices[device].foreign = bytes;
    model_unlock();
}

/* --- the machine's devices, by index */

static bool is_index(int index)
{
    return index >= 0 && index < model.shape.devices;
}

static int alone(int index, struct sim_process *list, int room)
{
    int ordinal = visible_ordinal(index);
    uint64_t bytes = model_is_forked() || ordinal < 0 ? 0 : model.devices[ordinal].used + model.devices[ordinal].contexts_bytes;
    if (bytes && room > 0)
        list[0] = (struct sim_process){.process = getpid(), .bytes = bytes};
    return bytes > 0;
}

static int processes(int index, struct sim_process *list, int room)
{
    return model.shape.machine[0] ? machine_processes(index, list, room) : alone(index, list, room);
}

int sim_processes(int index, struct sim_process *list, int room)
{
    model_lock();
    int count = is_index(index) ? processes(index, list, room) : -1;
    model_unlock();
    return count;
}

static void describe(int index, struct sim_device *device)
{
    struct sim_process list[MACHINE_PROCESSES_MAX];
    int ordinal = visible_ordinal(index), count = processes(index, list, MACHINE_PROCESSES_MAX);
    uint64_t used = ordinal < 0 ? 0 : model.devices[ordinal].foreign;
    for (int i = 0; i < count; i++)
        used += list[i].bytes;
    *device = (struct sim_device){
        .uuid = device_uuid_of(index),
        .ordinal = ordinal,
        .bus = device_bus_of(index),
        .total = model.shape.capacity,
        .used = used < model.shape.capacity ? used : model.shape.capacity,
    };
    device_write_name(device->name, sizeof device->name);
    device_write_bus_id(device->bus_id, sizeof device->bus_id, index);
}

int sim_device_count(void)
{
    model_lock();
    int count = model.shape.devices;
    model_unlock();
    return count;
}

bool sim_device(int index, struct sim_device *device)
{
    model_lock();
    bool there = device && is_index(index);
    if (there)
        describe(index, device);
    model_unlock();
    return there;
}

bool sim_device_attribute(int index, CUdevice_attribute attribute, int *value)
{
    model_lock();
    bool known = value && is_index(index) && attribute >= 1 && attribute < CU_DEVICE_ATTRIBUTE_MAX;
    if (known)
        *value = device_attribute_of(index, attribute);
    model_unlock();
    return known;
}
