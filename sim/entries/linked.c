/*
 * linked.c: what a program is linked to by -lcuda: a libcuda.so with the names of the driver's functions, and no function. The dynamic linker looks
 * for them in libcuda.so.1 first, because this library is a filter of that one (DT_FILTER). A wheel has no symbolic links.
 *
 * A dynamic linker that knows no filters would come here.
 */
#define LINKED(symbol)  \
    int symbol(void);   \
    int symbol(void)    \
    {                   \
        return 302; /* CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND */ \
    }
#define ALIAS(name, symbol, since)
#define PLAIN(name, symbol, since, need, capture, function, parameters, arguments) LINKED(symbol)
#define STREAM(name, symbol, since, need, capture, function, parameters, arguments) LINKED(symbol) LINKED(symbol##_ptsz)
#define DEFAULT(name, symbol, since, need, capture, function, parameters, arguments) LINKED(symbol) LINKED(symbol##_ptds)
#define INSIDE(...) STREAM(__VA_ARGS__)
#include "sim/entries/entries.def"
