/*
 * unversioned.c: libcuda.so, empty: a program that opens the driver by this name, as numba does, finds in it what libcuda.so.1 beside it has. A wheel
 * has no symbolic links.
 */
extern const char cenote_sim_unversioned[];
const char cenote_sim_unversioned[] = "the simulated driver of cenote";
