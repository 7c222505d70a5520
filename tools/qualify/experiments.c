/*
 * experiments.c: the experiments of experiments.def on memory, fences and streams.
 *
 * An experiment that returns HOLDS has given back all that it took. If an experiment fails, what it took goes back when its process ends.
 */
#include <string.h>

#include "tools/qualify/qualify.h"

#define ROUNDS 32u              /* times that an experiment writes and reads through aliases, or moves pages */
#define HEAD_START 200000u      /* ns that a writer waits, so that a reader that does not wait for it reads too early */
#define LONG 50000000u          /* ns of work on the card while the host makes some calls */
#define POLLS 100000000u        /* queries of an event; if it is not done then, it never will be */
#define IDS 64                  /* streams that are created one after the other */

/* Waits for `stream`. Fails if kernels found a word that differs. */
static enum outcome judge(struct card *card, CUstream stream)
{
    uint64_t differences;
    TRY(card->more.cuStreamSynchronize(stream));
    TRY(card_differences(card, &differences));
    return card_judge(card, differences);
}

static enum outcome absent(struct card *card, const char *why)
{
    card_note(card, "%s", why);
    return ABSENT;
}

static CUresult poll(struct card *card, CUevent event)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    for (unsigned i = 0; i < POLLS && result == CUDA_ERROR_NOT_READY; i++)
        result = card->d->cuEventQuery(event);
    return result;
}

enum outcome experiment_plain(struct card *card)
{
    CUdeviceptr at;
    size_t size = 1 << 20;
    uint64_t pattern = card_pattern(card);
    TRY(card->d->cuMemAlloc(&at, size));
    TRY(card_write(card, card->streams[0], at, size, pattern));
    TRY(card_count(card, card->streams[0], at, size, pattern));
    enum outcome outcome = judge(card, card->streams[0]);
    TRY(card->d->cuMemFree(at));
    return outcome;
}

/* --- what a page can be */

static enum outcome try_page(struct card *card, const CUmemAllocationProp *prop)
{
    struct mapped m;
    uint64_t pattern = card_pattern(card);
    if (!card->granularity)
        return absent(card, "no virtual memory management");
    TRY(mapped_make(card, prop, 1, &m));
    TRY(card_write(card, card->streams[0], m.at, m.size, pattern));
    TRY(card_count(card, card->streams[0], m.at, m.size, pattern));
    enum outcome outcome = judge(card, card->streams[0]);
    TRY(mapped_end(card, &m));
    return outcome;
}

enum outcome experiment_pages(struct card *card)
{
    CUmemAllocationProp prop = card_prop(card);
    return try_page(card, &prop);
}

static enum outcome try_handles(struct card *card, CUdevice_attribute attribute, CUmemAllocationHandleType type)
{
    CUmemAllocationProp prop = card_prop(card);
    prop.requestedHandleTypes = type;
    return card_attribute(card, attribute) ? try_page(card, &prop) : absent(card, "the driver offers none");
}

enum outcome experiment_files(struct card *card)
{
    return try_handles(card, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

enum outcome experiment_fabric(struct card *card)
{
    return try_handles(card, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, CU_MEM_HANDLE_TYPE_FABRIC);
}

enum outcome experiment_rdma(struct card *card)
{
    CUmemAllocationProp prop = card_prop(card);
    prop.allocFlags.gpuDirectRDMACapable = 1;
    return card_attribute(card, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) ? try_page(card, &prop) :
        absent(card, "the driver offers none");
}

/* --- streams */

enum outcome experiment_context(struct card *card)
{
    CUcontext context;
    TRY(card->d->cuStreamGetCtx(card->streams[0], &context));
    return context == card->context ? HOLDS : FAILS;
}

enum outcome experiment_stream_ids(struct card *card)
{
    unsigned long long ids[IDS];
    CUstream handle = NULL, before = NULL;
    bool reused = false;
    if (!card->d->cuStreamGetId)
        return absent(card, "no ids of streams before CUDA 12.0");
    for (unsigned i = 0; i < IDS; i++, before = handle) {
        TRY(card->more.cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING));
        TRY(card->d->cuStreamGetId(handle, &ids[i]));
        TRY(card->more.cuStreamDestroy(handle));
        reused |= handle == before;
        for (unsigned j = 0; j < i; j++) {
            if (ids[i] == ids[j]) {
                card_note(card, "two streams had the id %llu", ids[i]);
                return FAILS;
            }
        }
    }
    card_note(card, "the handle of a destroyed stream %s at once", reused ? "is reused" : "was not reused");
    return HOLDS;
}

enum outcome experiment_stream_ids_rise(struct card *card)
{
    unsigned long long id, before = 0;
    CUstream handle;
    if (!card->d->cuStreamGetId)
        return absent(card, "no ids of streams before CUDA 12.0");
    for (unsigned i = 0; i < IDS; i++, before = id) {
        TRY(card->more.cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING));
        TRY(card->d->cuStreamGetId(handle, &id));
        TRY(card->more.cuStreamDestroy(handle));
        if (id > before)
            continue;
        card_note(card, "a stream had the id %llu, and the next one %llu", before, id);
        return FAILS;
    }
    return HOLDS;
}

/*
 * --- aliases: a kernel writes at `at`, and a kernel reads at `at + size`, where the same page is mapped. The reader has read the old words there
 * before, so that a cache of the card may still have them.
 */

/* Makes the reader wait for the writer. */
typedef CUresult (*order_fn)(struct card *card, CUstream writer, CUstream reader, CUevent event);

static CUresult by_stream(struct card *card, CUstream writer, CUstream reader, CUevent event)
{
    (void)card, (void)writer, (void)reader, (void)event;
    return CUDA_SUCCESS;
}

static CUresult by_event(struct card *card, CUstream writer, CUstream reader, CUevent event)
{
    CUresult result = card->d->cuEventRecord(event, writer);
    return result ? result : card->more.cuStreamWaitEvent(reader, event, 0);
}

static CUresult by_fence(struct card *card, CUstream writer, CUstream reader, CUevent event)
{
    (void)writer, (void)reader;
    CUresult result = card->d->cuCtxRecordEvent(card->context, event);
    return result ? result : poll(card, event);
}

static enum outcome try_alias(struct card *card, unsigned reader, order_fn order)
{
    CUmemAllocationProp prop = card_prop(card);
    CUstream from = card->streams[0], to = card->streams[reader];
    uint64_t old = 0;
    struct mapped m;
    CUevent event;
    if (!card->granularity)
        return absent(card, "no virtual memory management");
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    TRY(mapped_make(card, &prop, 2, &m));
    TRY(card_write(card, to, m.at + m.size, m.size, old));
    for (unsigned i = 0; i < ROUNDS; i++) {
        TRY(card_count(card, to, m.at + m.size, m.size, old));
        TRY(by_event(card, to, from, event));
        old = card_pattern(card);
        TRY(card_wait(card, from, HEAD_START));
        TRY(card_write(card, from, m.at, m.size, old));
        TRY(order(card, from, to, event));
        TRY(card_count(card, to, m.at + m.size, m.size, old));
    }
    enum outcome outcome = judge(card, to);
    TRY(mapped_end(card, &m));
    TRY(card->d->cuEventDestroy(event));
    return outcome;
}

enum outcome experiment_alias_stream(struct card *card)
{
    return try_alias(card, 0, by_stream);
}

enum outcome experiment_alias_event(struct card *card)
{
    return try_alias(card, 1, by_event);
}

enum outcome experiment_alias_fence(struct card *card)
{
    return card->d->cuCtxRecordEvent ? try_alias(card, 1, by_fence) : absent(card, "no such event before CUDA 12.5");
}

enum outcome experiment_alias_dependent(struct card *card)
{
    CUmemAllocationProp prop = card_prop(card);
    CUstream stream = card->streams[0];
    struct mapped m;
    uint64_t old = 0, head_start = HEAD_START;
    if (!card->kernels[PATTERN_COUNT_LATE] || !card->granularity)
        return absent(card, "the card does not offer it");
    TRY(mapped_make(card, &prop, 2, &m));
    CUdeviceptr other = m.at + m.size;
    uint64_t words = m.size / sizeof old;
    TRY(card_write(card, stream, m.at, m.size, old));
    for (unsigned i = 0; i < ROUNDS; i++) {
        TRY(card_count(card, stream, other, m.size, old));
        old = card_pattern(card);
        /* The writer takes a small part of the card, so that the reader has room beside it. */
        TRY(card_launch(card, PATTERN_WRITE_EARLY, stream, 1024, (void *[]){&m.at, &words, &old, &head_start}, false));
        TRY(card_launch(card, PATTERN_COUNT_LATE, stream, 1024, (void *[]){&other, &words, &old, &card->sum}, true));
    }
    enum outcome outcome = judge(card, stream);
    TRY(mapped_end(card, &m));
    return outcome;
}

/* Between two addresses the page is mapped at both for a moment, as when cenote moves one; then the old address gets another page. */
enum outcome experiment_moved(struct card *card)
{
    CUmemAllocationProp prop = card_prop(card);
    CUstream stream = card->streams[0];
    struct mapped first, second;
    if (!card->granularity)
        return absent(card, "no virtual memory management");
    TRY(mapped_make(card, &prop, 1, &first));
    TRY(mapped_make(card, &prop, 1, &second));
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t one = card_pattern(card), other = card_pattern(card);
        TRY(card_write(card, stream, first.at, first.size, one));
        TRY(card_write(card, stream, second.at, second.size, other));
        TRY(card->more.cuStreamSynchronize(stream));
        TRY(card->d->cuMemUnmap(first.at, first.size));
        TRY(card->d->cuMemUnmap(second.at, second.size));
        TRY(card->d->cuMemMap(first.at, first.size, 0, second.page, 0));
        TRY(card->d->cuMemMap(second.at, second.size, 0, first.page, 0));
        TRY(card_open_access(card, first.at, first.size));
        TRY(card_open_access(card, second.at, second.size));
        TRY(card_count(card, stream, first.at, first.size, other));
        TRY(card_count(card, stream, second.at, second.size, one));
        CUmemGenericAllocationHandle page = first.page;
        first.page = second.page;
        second.page = page;
    }
    enum outcome outcome = judge(card, stream);
    TRY(mapped_end(card, &first));
    TRY(mapped_end(card, &second));
    return outcome;
}

/* --- beside running work */

enum outcome experiment_fence(struct card *card)
{
    CUevent event;
    if (!card->d->cuCtxRecordEvent)
        return absent(card, "no such event before CUDA 12.5");
    TRY(card->d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < QUALIFY_STREAMS; i++) {
        TRY(card_wait(card, card->streams[i], LONG));
        TRY(card->d->cuCtxRecordEvent(card->context, event));
        CUresult early = card->d->cuEventQuery(event);
        TRY(card->more.cuStreamSynchronize(card->streams[i]));
        TRY(poll(card, event));
        if (early != CUDA_ERROR_NOT_READY) {
            card_note(card, "it was done while a kernel still ran");
            return FAILS;
        }
    }
    TRY(card->d->cuEventDestroy(event));
    return HOLDS;
}

/* Notes whether `calls`, which have returned, waited for the kernel before `end`. */
static CUresult note_wait(struct card *card, CUevent end, const char *calls)
{
    CUresult result = card->d->cuEventQuery(end);
    card_note(card, "%s %s for the kernel", calls, result ? "did not wait" : "waited");
    return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

enum outcome experiment_map_beside(struct card *card)
{
    CUmemAllocationProp prop = card_prop(card);
    uint64_t pattern = card_pattern(card);
    struct mapped m;
    CUevent end;
    if (!card->granularity)
        return absent(card, "no virtual memory management");
    TRY(card->d->cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
    TRY(card_wait(card, card->streams[0], LONG));
    TRY(card->d->cuEventRecord(end, card->streams[0]));
    TRY(mapped_make(card, &prop, 1, &m));
    TRY(note_wait(card, end, "creating and mapping"));
    TRY(card_write(card, card->streams[1], m.at, m.size, pattern));
    TRY(card_count(card, card->streams[1], m.at, m.size, pattern));
    TRY(card->more.cuStreamSynchronize(card->streams[0]));
    enum outcome outcome = judge(card, card->streams[1]);
    TRY(mapped_end(card, &m));
    TRY(card->d->cuEventDestroy(end));
    return outcome;
}

enum outcome experiment_unmap_beside(struct card *card)
{
    CUmemAllocationProp prop = card_prop(card);
    uint64_t pattern = card_pattern(card);
    CUstream busy = card->streams[0];
    struct mapped used, spare;
    CUevent end;
    if (!card->granularity)
        return absent(card, "no virtual memory management");
    TRY(card->d->cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));
    TRY(mapped_make(card, &prop, 1, &used));
    TRY(mapped_make(card, &prop, 1, &spare));
    TRY(card_write(card, card->streams[1], spare.at, spare.size, pattern));
    TRY(card->more.cuStreamSynchronize(card->streams[1]));
    TRY(card_write(card, busy, used.at, used.size, pattern));
    TRY(card_wait(card, busy, LONG));
    TRY(card->d->cuEventRecord(end, busy));
    TRY(card_count(card, busy, used.at, used.size, pattern));
    TRY(mapped_end(card, &spare));
    TRY(note_wait(card, end, "unmapping and releasing"));
    enum outcome outcome = judge(card, busy);
    TRY(mapped_end(card, &used));
    TRY(card->d->cuEventDestroy(end));
    return outcome;
}
