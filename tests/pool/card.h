/*
 * card.h: a driver of virtual memory calls that keeps strict books and can fail at any call: which handles exist, what is mapped where,
 * what has access. It refuses what a driver refuses; `mistakes` counts what no caller should do.
 */
#ifndef CENOTE_TESTS_POOL_CARD_H
#define CENOTE_TESTS_POOL_CARD_H

#include "driver/device.h"

#define CARD_PAGES    512
#define CARD_MAPPINGS 2048

struct card_mapping {
    CUdeviceptr at;             /* 0: entry not in use */
    CUmemGenericAllocationHandle handle;
    bool access;
};

struct made_card {
    bool     created[CARD_PAGES];           /* by handle, from 1 */
    struct card_mapping mappings[CARD_MAPPINGS];
    uint64_t page_bytes;
    CUdeviceptr reserved_at;                /* the last cuMemAddressReserve, 0: given back */
    size_t   reserved_bytes;
    uint32_t calls;                         /* since card_fail */
    uint32_t fail_from, fail_to;            /* these calls fail, counted from 1; 0: none */
    uint32_t mistakes;
    uint32_t creates, maps, unmaps, grants; /* calls that succeeded since card_open */
};

extern struct made_card card;
extern struct device card_device;           /* its driver is this one */

void card_open(uint64_t page_bytes);
void card_fail(uint32_t from, uint32_t to);

uint32_t card_pages(void);                  /* handles that exist */
uint32_t card_mapped(void);                 /* mappings that exist */

/* The handle mapped there with access, 0: none. */
CUmemGenericAllocationHandle card_at(CUdeviceptr at);

/* What the test did by hand enters the books. */
CUmemGenericAllocationHandle card_create(void);
void card_map(CUdeviceptr at, CUmemGenericAllocationHandle handle);

#endif
