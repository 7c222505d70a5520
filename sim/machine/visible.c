/*
 * visible.c: which devices of the machine this process sees, and in what order (CUDA_VISIBLE_DEVICES).
 *
 * A device has two numbers. Its index is the machine's: processes speak of it to each other by that one, in the machine's books, in the
 * headers of files, in UUIDs and bus ids, in NVML. Its ordinal is this process's: everything else in the model, model.devices too, goes by
 * that. Only here is one turned into the other. The host's memory, HOST_AREA, has one number for all processes.
 *
 * The variable is a list of indices, or of beginnings of UUIDs that fit one device; the first entry says which of the two. It ends at the
 * first entry that names no device, as NVIDIA documents. What is not documented is as PyTorch's authors found it and count by: "2nd" is 2,
 * and a device named twice leaves none at all. CUDA_DEVICE_ORDER changes nothing: devices are alike, and numbered as on the bus.
 *
 * It is read where CENOTE_SIM is, and again by cuInit: a program may count devices first (NVML), and set it then. Once cuInit was called
 * it is settled. A shape of sim_reset shows all devices, whatever the environment says.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/machine/model.h"

#define UUID_PREFIX "GPU-"
#define UUID_TEXT 40        /* characters of a whole one */

static struct {
    bool follows_environment;
    int  count;
    int  index[DEVICES_MOST];   /* of each ordinal */
} seen;

static void see_all(void)
{
    seen.count = model.shape.devices;
    for (int i = 0; i < DEVICES_MOST; i++)
        seen.index[i] = i;
}

static int index_by_number(const char *entry)
{
    char *end;
    long number = strtol(entry, &end, 10);
    return end != entry && number >= 0 && number < model.shape.devices ? (int)number : -1;
}

/* It differs early: a few digits tell devices apart. A machine with a name has others than the next machine. */
CUuuid device_uuid_of(int index)
{
    CUuuid uuid;
    uint32_t machine = 0;
    memcpy(uuid.bytes, "sim ulated GPU  ", sizeof uuid.bytes);
    uuid.bytes[3] = (char)index;
    for (const char *at = model.shape.machine; *at; at++)
        machine = machine * 31 + (unsigned char)*at;
    if (machine)
        memcpy(uuid.bytes + 12, &machine, sizeof machine);
    return uuid;
}

static void write_uuid(char text[UUID_TEXT + 1], int index)
{
    CUuuid uuid = device_uuid_of(index);
    char *at = text + sprintf(text, UUID_PREFIX);
    for (int i = 0; i < 16; i++)
        at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)uuid.bytes[i]);
}

static int index_by_uuid(const char *entry, size_t length)
{
    int found = -1;
    char text[UUID_TEXT + 1];
    if (strncmp(entry, UUID_PREFIX, strlen(UUID_PREFIX)))
        return -1;
    for (int i = 0; i < model.shape.devices; i++) {
        write_uuid(text, i);
        if (strncmp(text, entry, length))
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

static void see_named(const char *list)
{
    bool by_uuid = !strncmp(list, UUID_PREFIX, strlen(UUID_PREFIX));
    seen.count = 0;
    for (const char *entry = list; entry;) {
        size_t length = strcspn(entry, ",");
        int index = by_uuid ? index_by_uuid(entry, length) : index_by_number(entry);
        if (index < 0)
            return;
        if (visible_ordinal(index) >= 0) {
            seen.count = 0;
            return;
        }
        seen.index[seen.count++] = index;
        entry = entry[length] ? entry + length + 1 : NULL;
    }
}

void visible_reset(void)
{
    seen.follows_environment = false;
    see_all();
}

void visible_follow_environment(void)
{
    seen.follows_environment = true;
    visible_renew();
}

void visible_renew(void)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (seen.follows_environment && list)
        see_named(list);
    else
        see_all();
}

int visible_count(void)
{
    return seen.count;
}

int visible_index(int ordinal)
{
    return ordinal >= 0 && ordinal < seen.count ? seen.index[ordinal] : ordinal == HOST_AREA ? HOST_AREA : -1;
}

int visible_ordinal(int index)
{
    for (int i = 0; i < seen.count; i++)
        if (seen.index[i] == index)
            return i;
    return index == HOST_AREA ? HOST_AREA : -1;
}
