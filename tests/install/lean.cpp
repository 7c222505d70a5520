/*
 * lean.cpp: a program part that is compiled without exceptions, beside one with them. Memory that runs out is an answer; a mistake ends the program.
 */
#include <cenote/cenote.hpp>

#ifdef __cpp_exceptions
#error "this part is compiled with -fno-exceptions"
#endif

int lean(bool mistake)
{
    cenote::pool pool(0);
    cenote::block block, other;
    if (pool.try_alloc(std::size_t(1) << 50, nullptr, block) != CENOTE_OUT_OF_MEMORY || block)
        return 1;
    if (pool.try_alloc(1000, nullptr, block) || !block)
        return 2;
    other = std::move(block);
    if (mistake)
        cenote::block(other.as<char>() + 512).free(); /* does not return */
    return 0;
}
