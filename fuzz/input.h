/* input.h: a fuzzer's bytes read as choices. What is missing at the end reads as 0, so that every input means something. */
#ifndef CENOTE_FUZZ_INPUT_H
#define CENOTE_FUZZ_INPUT_H

#include <stddef.h>
#include <stdint.h>

struct input {
    const uint8_t *at;
    size_t         left;
};

static inline uint8_t input_byte(struct input *in)
{
    if (!in->left)
        return 0;
    in->left--;
    return *in->at++;
}

/* A number below `below`, from as few bytes as it takes: one changed byte changes one choice. */
static inline uint64_t input_below(struct input *in, uint64_t below)
{
    uint64_t number = input_byte(in);
    for (uint64_t reach = 256; reach < below; reach <<= 8)
        number = number << 8 | input_byte(in);
    return number % below;
}

#endif
