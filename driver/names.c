/*
 * names.c: what the driver's results are called and which of them are final. The names are our own table, so that an error can be named
 * when no driver could be loaded.
 */
#include "driver/driver.h"

#define EFFECT_passes false
#define EFFECT_lost   true

const char *driver_result_name(CUresult result)
{
    switch ((int)result) {
#define RESULT(code, name, effect) case code: return #name;
#include "driver/results.def"
#undef RESULT
    default: return "an unknown CUDA error";
    }
}

bool driver_result_is_sticky(CUresult result)
{
    switch ((int)result) {
#define RESULT(code, name, effect) case code: return EFFECT_##effect;
#include "driver/results.def"
#undef RESULT
    default: return false;
    }
}

const char *driver_call_name(enum driver_call call)
{
    static const char *const names[] = {
#define DRIVER(need, time, name, version, parameters, arguments) #name,
#include "driver/driver.def"
#undef DRIVER
    };
    return (unsigned)call < DRIVER_CALLS ? names[call] : "no driver call";
}
