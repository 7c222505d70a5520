/*
 * name.c: another name for a simulated library, and nothing else: a program that opens a library of CUDA 12 by its name, as TensorFlow does, finds in
 * it what the library of CUDA 13 beside it has. A wheel has no symbolic links. Not libcuda.so, which programs are linked to: sim/entries/linked.c.
 */
extern const char cenote_sim_name[];
const char cenote_sim_name[] = "a simulated library of cenote";
