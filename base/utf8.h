/* utf8.h: is this text that others can read? */
#ifndef CENOTE_BASE_UTF8_H
#define CENOTE_BASE_UTF8_H

#include <stddef.h>

/* Bytes of the UTF-8 sequence that begins here, 0: it is none. Overlong forms and surrogates are none. */
static inline size_t utf8_sequence(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t more = s[0] < 0x80 ? 0 : (s[0] & 0xe0) == 0xc0 ? 1 : (s[0] & 0xf0) == 0xe0 ? 2 : (s[0] & 0xf8) == 0xf0 ? 3 : 4;
    for (size_t i = 1; i <= more && more < 4; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    int overlong = s[0] == 0xc0 || s[0] == 0xc1 || (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    int beyond = (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf4 && s[1] > 0x8f) || s[0] > 0xf4;
    return more == 4 || overlong || beyond ? 0 : more + 1;
}

#endif
