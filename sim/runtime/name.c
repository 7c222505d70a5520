/*
 * name.c: another name for a simulated library, and nothing else: a program that opens libcuda.so, as numba does, or a library of CUDA 12 by its
 * name, as TensorFlow does, finds in it what the library of CUDA 13 beside it has. A wheel has no symbolic links.
 */
extern const char cenote_sim_name[];
const char cenote_sim_name[] = "a simulated library of cenote";
