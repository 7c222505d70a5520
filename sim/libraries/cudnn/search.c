/*
 * search.c: the search for the fastest plan (torch.backends.cudnn.benchmark): how long a plan runs, and what the search takes beside its winner.
 *
 * A program that searches makes every plan that heuristics list, takes scratch memory for the largest, runs each, and keeps the fastest. Empty
 * kernels take no time, and the host's clock would choose by chance. So the first plan of a graph takes none, and each later one a second of the
 * device for each place that its engine stands behind: longer than the host pauses between two events. Who waits for it does not wait, because the
 * clock jumps. A program that does not search makes one plan of a graph.
 *
 * PyTorch tries less where the search's memory is not there, and empties its cache afterwards: that memory is no need. A dry run has it told
 * apart. Then a plan that wants more than one that was made of the same graph is refused, as cuDNN refuses what it does not support. Such a plan
 * is never chosen: the other one is preferred, faster, and fits wherever it fits. What the device would have had in use with it is noted.
 *
 * Plans of the older interface are not told apart: there PyTorch asks each algorithm for its size.
 *
 * LOCKING: none. The figures are atomic; a graph belongs to the thread that makes plans of it.
 */
#include "sim/libraries/cudnn/search.h"

#include <stdatomic.h>

#define SECOND 1000000000u
#define DEVICES_MAX 16 /* of sim/machine/shape.def */

static _Atomic bool apart;
static _Atomic uint64_t searched[DEVICES_MAX];

uint64_t search_time(const struct body *graph, int place)
{
    int first = graph->plans.first;
    return first >= 0 && place > first ? (uint64_t)(place - first) * SECOND : 0;
}

void cenote_sim_search_apart(bool is_apart)
{
    atomic_store(&apart, is_apart);
}

uint64_t cenote_sim_searched(int device)
{
    return device >= 0 && device < DEVICES_MAX ? atomic_load(&searched[device]) : 0;
}

/* A search leaves out what is not free. */
static void note(uint64_t bytes)
{
    CUdevice device;
    size_t free, total;
    if (cuCtxGetDevice(&device) || cuMemGetInfo(&free, &total) || bytes > free || device >= DEVICES_MAX)
        return;
    uint64_t used = total - free + bytes, most = atomic_load(&searched[device]);
    while (used > most && !atomic_compare_exchange_weak(&searched[device], &most, used))
        ;
}

bool search_admits(struct body *graph, int place, uint64_t bytes)
{
    if (atomic_load(&apart) && bytes > graph->plans.least) {
        note(bytes);
        return false;
    }
    if (bytes < graph->plans.least)
        graph->plans.least = bytes;
    if (graph->plans.first < 0)
        graph->plans.first = place;
    return true;
}
