/* fuzz_options.c: any text as CENOTE_CONF: refused without a trace, or understood, and then it says the same thing when read again. */
#include "fuzz/judge.h"

#include <cenote/cenote.h>
#include <string.h>

#define TEXT_BYTES 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[TEXT_BYTES];
    cenote_options before, once, twice;
    if (size >= sizeof text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;

    JUDGE(cenote_options_default(&before) == CENOTE_OK);
    once = before;
    int error = cenote_options_parse(&once, text);
    if (error) {
        JUDGE(error == CENOTE_BAD_OPTION);
        JUDGE(cenote_message()[0]);
        JUDGE(memcmp(&once, &before, sizeof once) == 0);
        return 0;
    }
    twice = once;
    JUDGE(cenote_options_parse(&twice, text) == CENOTE_OK);
    JUDGE(memcmp(&twice, &once, sizeof once) == 0);
    twice = before;
    JUDGE(cenote_options_parse(&twice, text) == CENOTE_OK);
    JUDGE(memcmp(&twice, &once, sizeof once) == 0);
    return 0;
}
