/* provider.h: cenote as a memory provider of UMF (Unified Memory Framework, 1.2), under pools of UMF. provider.c says how. */
#ifndef EXAMPLES_UMF_PROVIDER_H
#define EXAMPLES_UMF_PROVIDER_H

#include <umf/memory_provider.h>
#include <umf/memory_provider_ops.h>

struct cenote_umf {
    int device;
    const char *conf; /* options of the pool, "limit:80%,page_mib:8"; NULL: those of CENOTE_CONF */
};

/* For umfMemoryProviderCreate, whose params are a struct cenote_umf. */
const umf_memory_provider_ops_t *cenote_umf_ops(void);

#endif
