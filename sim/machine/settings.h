/* settings.h: settings of contexts, and older questions about devices; see settings.c. LOCKING: the model's lock. */
#ifndef CENOTE_SIM_SETTINGS_H
#define CENOTE_SIM_SETTINGS_H

#include "sim/machine/model.h"

CUresult setting_limit(size_t *value, CUlimit limit);
CUresult setting_set_limit(CUlimit limit, size_t value);
CUresult setting_cache(CUfunc_cache *config);
CUresult setting_set_cache(CUfunc_cache config);
CUresult setting_banks(CUsharedconfig *config);
CUresult setting_set_banks(CUsharedconfig config);
CUresult setting_reset_cache(void);
CUresult device_p2p(int *value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to);
CUresult device_capability(int *major, int *minor, CUdevice device);
CUresult device_properties(CUdevprop *properties, CUdevice device);
CUresult device_secret_table(void);

#endif
