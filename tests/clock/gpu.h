/*
 * gpu.h: a device of streams and events alone, as a table of driver functions: each stream has a number of pieces of
 * work that it was given, and of those that it has done. It knows no memory.
 *
 * It counts what no caller may do (`mistakes`): name a stream that has ended; record an event over the context, or ask
 * after one of a capture, while a capture is open that this would end.
 */
#ifndef CENOTE_TESTS_CLOCK_GPU_H
#define CENOTE_TESTS_CLOCK_GPU_H

#include "driver/device.h"

#define GPU_STREAMS 96          /* that there ever were, since gpu_open */
#define GPU_DEFAULT 0u          /* their numbers */
#define GPU_THREAD  1u          /* the default stream of the one thread */

struct gpu_stream {
    CUstream handle;
    uint64_t id;
    uint32_t given, done;
    uint32_t capture;           /* the number of the one that it is in; 0: none */
    bool     has_ended;
};

extern struct gpu_stream gpu_stream[GPU_STREAMS];
extern uint32_t gpu_streams, gpu_mistakes;
extern uint32_t gpu_moments;    /* one record in so many falls into a capture of a moment; 0: none does */
extern struct device gpu_device;

void gpu_open(void);
void gpu_close(void);
uint32_t gpu_begin(CUstream handle);    /* of a new stream; its number */

#endif
