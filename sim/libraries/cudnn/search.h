/*
 * search.h: a search for the fastest plan; see search.c.
 */
#ifndef CENOTE_SIM_CUDNN_SEARCH_H
#define CENOTE_SIM_CUDNN_SEARCH_H

#include "sim/libraries/cudnn/graph.h"

/*
 * A plan of this graph is made, with the engine that heuristics list in this place, and so much scratch memory. False: it is for the sake of a
 * search alone, which is told apart: no such plan may be made.
 */
bool search_admits(struct body *graph, int place, uint64_t bytes);

/* ns of the device that such a plan takes: none, if it is the first that was made of the graph. */
uint64_t search_time(const struct body *graph, int place);

/* --- exported: a dry run calls these */
void     cenote_sim_search_apart(bool is_apart);    /* of this process, from now on; false at its start */
uint64_t cenote_sim_searched(int device);           /* the most in use on the device, had each search so far had its memory; 0: there was none */

#endif
