/*
 * hearty.cpp: the part with exceptions of a program whose other part (lean.cpp) is compiled without. Each must find its own code of cenote.hpp.
 */
#include <cenote/cenote.hpp>

int lean(bool mistake);

int main(int argc, char **)
{
    cenote::pool pool(0);
    try {
        (void)pool.alloc(std::size_t(1) << 50, nullptr);
        return 10;
    } catch (const std::bad_alloc &) {
    }
    return lean(argc > 1);
}
