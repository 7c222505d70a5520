/* touch.h: events on the streams of a device that do no harm to captures of others; see touch.c. */
#ifndef CENOTE_DRIVER_TOUCH_H
#define CENOTE_DRIVER_TOUCH_H

#include <stdatomic.h>
#include <stdbool.h>

#include "driver/driver.h"

struct device;

#define TOUCH_STREAMS_MAX 1024      /* that live as long as the program; of more than these the driver is not asked */

struct touch {                      /* atomic, and read without a lock */
    struct {
        _Atomic(CUstream) handle;
        _Atomic(uint64_t) key;      /* as pools know it; set a moment later */
    } stream[TOUCH_STREAMS_MAX];
    _Atomic(bool) is_full;          /* more live as long as the program: no fence has an event on those, nor moves `all` */
    _Atomic(CUstream) behind_default;   /* waits for the default stream whenever that gets work; NULL: not needed so far */
};

/* The program announces all its captures, unless a pool with the option announced:0 is open: that is what begins and ends. */
void touch_be_careful(bool begins);
bool touch_captures_are_announced(void);

void touch_add(struct device *d, CUstream stream, uint64_t key);
bool touch_has(const struct device *d, CUstream stream);
void touch_close(struct device *d);
bool touch_is_captured(struct device *d, CUstream stream);
CUresult touch_record(struct device *d, CUstream stream, CUevent event);
CUresult touch_record_end(struct device *d, CUstream stream, CUevent event);
CUresult touch_record_all(struct device *d, CUevent *events, uint32_t room, uint32_t *count);

#endif
