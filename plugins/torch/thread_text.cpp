/*
 * thread_text.cpp: the text that PyTorch attaches to all entries of a thread: the compile context, and the program's metadata. A thread may
 * free memory while it ends, after its text is gone.
 *
 * LOCKING: none; the text is thread-local.
 */
#include "history.h"

namespace cenote_torch
{

struct ThreadText {
    std::vector<std::string> compiling;
    std::string metadata;
};

static thread_local ThreadText *current_text;

static ThreadText &thread_text()
{
    struct Owner {
        ~Owner()
        {
            delete current_text;
            current_text = nullptr;
        }
    };
    static thread_local Owner owner;
    (void)owner;
    if (!current_text)
        current_text = new ThreadText;
    return *current_text;
}

void push_compile_context(std::string text)
{
    thread_text().compiling.push_back(std::move(text));
}

void pop_compile_context()
{
    if (current_text && !current_text->compiling.empty())
        current_text->compiling.pop_back();
}

void set_user_metadata(std::string text)
{
    thread_text().metadata = std::move(text);
}

std::string user_metadata()
{
    return current_text ? current_text->metadata : "";
}

std::string compile_context()
{
    return current_text && !current_text->compiling.empty() ? current_text->compiling.back() : "N/A";
}

} // namespace cenote_torch
