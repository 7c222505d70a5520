/*
 * told.h: sizes of scratch memory that this cuDNN has told; see told.c.
 */
#ifndef CENOTE_SIM_CUDNN_TOLD_H
#define CENOTE_SIM_CUDNN_TOLD_H

#include <stdbool.h>
#include <stdint.h>

void told_note(uint64_t bytes);

/* --- exported: a dry run calls it */
bool cenote_sim_told(uint64_t bytes); /* whether a plan, an algorithm or a recurrent network wanted that much in this process */

#endif
