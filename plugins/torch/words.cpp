/*
 * words.cpp: what PyTorch has a thread say of all that it does: where a compiler put it, and words of the program. A thread may free memory while it
 * ends, after its words are gone.
 *
 * LOCKING: none; they are the thread's own.
 */
#include "history.h"

namespace cenote_torch
{

struct ThreadText {
    std::vector<std::string> compiling;
    std::string metadata;
};

static thread_local ThreadText *said;

static ThreadText &own_words()
{
    struct Owner {
        ~Owner()
        {
            delete said;
            said = nullptr;
        }
    };
    static thread_local Owner owner;
    (void)owner;
    if (!said)
        said = new ThreadText;
    return *said;
}

void push_compile_context(std::string text)
{
    own_words().compiling.push_back(std::move(text));
}

void pop_compile_context()
{
    if (said && !said->compiling.empty())
        said->compiling.pop_back();
}

void set_user_metadata(std::string text)
{
    own_words().metadata = std::move(text);
}

std::string user_metadata()
{
    return said ? said->metadata : "";
}

std::string compile_context()
{
    return said && !said->compiling.empty() ? said->compiling.back() : "N/A";
}

} // namespace cenote_torch
