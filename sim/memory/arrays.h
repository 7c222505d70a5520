/* arrays.h: memory by coordinates, and the objects through which kernels would read it; see arrays.c, textures.c. LOCKING: the model's lock. */
#ifndef CENOTE_SIM_ARRAYS_H
#define CENOTE_SIM_ARRAYS_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct array {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    uint32_t element;       /* bytes */
    uint32_t context;
    uint32_t allocation;    /* its memory; of a level the whole's */
    uint32_t whole;         /* a level: the mipmapped array it is of */
    uint32_t levels;        /* a mipmapped array: how many; they are numbered from `first` on in `next` */
    uint32_t first, next;
    uint64_t at;            /* its memory: rows of `pitch` bytes, layers of `layer` bytes */
    uint64_t pitch, layer;
};

/* --- arrays.c */
void     arrays_reset(void);
uint32_t array_element(CUarray_format format, unsigned channels);       /* bytes; 0: there is none of these */
struct array *array_find(CUarray handle);                               /* also a level; NULL: none */
struct array *array_find_mipmapped(CUmipmappedArray handle);
CUarray  array_holding(uint64_t at, uint64_t place[3]);                 /* with the byte of the row, the row and the layer; NULL: none */
CUresult array_create(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *shape);
CUresult array_create_3d(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape);
CUresult array_create_mipmapped(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels);
CUresult array_level(CUarray *handle, CUmipmappedArray of, unsigned level);
CUresult array_destroy(CUarray handle);
CUresult array_destroy_mipmapped(CUmipmappedArray handle);
CUresult array_shape(CUDA_ARRAY_DESCRIPTOR *shape, CUarray handle);
CUresult array_shape_3d(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray handle);
CUresult array_lacks(CUarray handle);                                   /* planes, tiles, and memory that comes later: none has these */
CUresult array_lacks_mipmapped(CUmipmappedArray handle);

/* --- textures.c */
void     textures_reset(void);
void     textures_close_all(uint32_t context);
CUresult texture_create(CUtexObject *handle, const CUDA_RESOURCE_DESC *of, const CUDA_TEXTURE_DESC *how, const CUDA_RESOURCE_VIEW_DESC *view);
CUresult texture_destroy(CUtexObject handle);
CUresult texture_resource(CUDA_RESOURCE_DESC *of, CUtexObject handle);
CUresult texture_description(CUDA_TEXTURE_DESC *how, CUtexObject handle);
CUresult texture_view(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject handle);
CUresult surface_create(CUsurfObject *handle, const CUDA_RESOURCE_DESC *of);
CUresult surface_destroy(CUsurfObject handle);
CUresult surface_resource(CUDA_RESOURCE_DESC *of, CUsurfObject handle);

#endif
