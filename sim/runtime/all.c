/*
 * all.c: libcenote_sim.so, empty: loading it loads every simulated library.
 */
extern const char cenote_sim_all[];
const char cenote_sim_all[] = "the simulated GPU of cenote";
