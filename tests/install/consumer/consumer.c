/* consumer.c: the smallest program of a user of the installed library. Compiled as C and as C++; the device is whichever libcuda.so.1 gives. */
#include <cenote/cenote.h>

#include <stdio.h>

static int failed(const char *what)
{
    printf("%s: %s\n", what, cenote_message());
    return 1;
}

int main(void)
{
    cenote_pool *pool;
    cenote_block found;
    void *block;

    if (cenote_version() / 100 != CENOTE_VERSION / 100)
        return failed("cenote_version");
    if (cenote_pool_create(0, NULL, &pool))
        return failed("cenote_pool_create");
    if (cenote_alloc(pool, 1000000, NULL, &block))
        return failed("cenote_alloc");
    if (cenote_find(block, &found) || found.start != block || found.requested != 1000000)
        return failed("cenote_find");
    if (cenote_free(block))
        return failed("cenote_free");
    if (cenote_free(block) != CENOTE_DOUBLE_FREE)
        return failed("cenote_free, a second time");
    if (cenote_pool_destroy(pool))
        return failed("cenote_pool_destroy");
    puts("consumer: a block came and went");
    return 0;
}
