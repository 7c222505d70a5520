/* formats.c: the elements of arrays as the two interfaces name them (formats.def). LOCKING: none. */
#include "sim/runtime/arrays.h"

static const struct format {
    CUarray_format             driver;
    unsigned                   channels;    /* 0: any */
    enum cudaChannelFormatKind kind;
    int                        bits;
} formats[] = {
#define FORMAT(driver, channels, kind, bits) {CU_AD_FORMAT_##driver, channels, cudaChannelFormatKind##kind, bits},
#include "sim/runtime/formats.def"
#undef FORMAT
};

#define FORMATS (sizeof formats / sizeof formats[0])

bool format_of(const struct cudaChannelFormatDesc *d, CUarray_format *format, unsigned *channels)
{
    const int bits[] = {d->x, d->y, d->z, d->w};
    *channels = 0;
    while (*channels < 4 && bits[*channels])
        ++*channels;
    for (unsigned i = 0; i < 4; i++)
        if (bits[i] != (i < *channels ? d->x : 0))
            return false;
    if (*channels == 3)
        return false;
    for (size_t i = 0; i < FORMATS; i++)
        if (formats[i].kind == d->f && formats[i].bits == d->x && (!formats[i].channels || formats[i].channels == *channels)) {
            *format = formats[i].driver;
            return true;
        }
    return false;
}

struct cudaChannelFormatDesc format_tell(CUarray_format format, unsigned channels)
{
    size_t i = 0;
    while (i + 1 < FORMATS && formats[i].driver != format)
        i++;
    int bits = formats[i].bits;
    return (struct cudaChannelFormatDesc){bits, channels > 1 ? bits : 0, channels > 2 ? bits : 0, channels > 3 ? bits : 0, formats[i].kind};
}

struct cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, enum cudaChannelFormatKind kind)
{
    return (struct cudaChannelFormatDesc){x, y, z, w, kind};
}
