/*
 * telling.cpp: calls a function of Python's in the thread of the program that reads an unknown value.
 *
 * Rule V8: what a handler of a signal raises meanwhile reaches the program. Python runs such handlers between any two instructions of the main
 * thread, so also in our function, which has no caller to raise to: PyTorch has called us. The exception is kept, and raised by a pending call, which
 * the main thread makes between two instructions of the program. Exceptions of our own (the stack is full) are dropped.
 *
 * The entries of Python are looked up, not linked: they are in the process already, and its headers need not be installed.
 */
#include "telling.h"

#include <dlfcn.h>

#include <atomic>

namespace cenote_values
{

struct Python {
    int (*enter)() = entry<int (*)()>("PyGILState_Ensure");
    void (*leave)(int) = entry<void (*)(int)>("PyGILState_Release");
    void *(*number)(long) = entry<void *(*)(long)>("PyLong_FromLong");
    void *(*call)(void *, ...) = entry<void *(*)(void *, ...)>("PyObject_CallFunctionObjArgs");
    void (*let_go)(void *) = entry<void (*)(void *)>("Py_DecRef");
    void (*fetch)(void **, void **, void **) = entry<void (*)(void **, void **, void **)>("PyErr_Fetch");
    void (*restore)(void *, void *, void *) = entry<void (*)(void *, void *, void *)>("PyErr_Restore");
    int (*is_a)(void *, void *) = entry<int (*)(void *, void *)>("PyErr_GivenExceptionMatches");
    int (*call_later)(int (*)(void *), void *) = entry<int (*)(int (*)(void *), void *)>("Py_AddPendingCall");
    void **too_deep = entry<void **>("PyExc_RecursionError"), **no_memory = entry<void **>("PyExc_MemoryError");

    template <class F> static F entry(const char *name) { return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name)); }

    bool is_whole() const
    {
        return enter && leave && number && call && let_go && fetch && restore && is_a && call_later && too_deep && no_memory;
    }
};

static const Python &python()
{
    static const Python found;
    return found;
}

struct Exception {
    void *type, *value, *traceback;
};

static std::atomic<void *> listener;

static int raise_it(void *kept)
{
    auto *e = static_cast<Exception *>(kept);
    python().restore(e->type, e->value, e->traceback); /* takes them over */
    delete e;
    return -1;
}

/* The exception that our function has ended with is the program's. */
static void pass_on()
{
    const Python &p = python();
    auto *e = new Exception();
    p.fetch(&e->type, &e->value, &e->traceback);
    if (!p.is_a(e->type, *p.too_deep) && !p.is_a(e->type, *p.no_memory) && !p.call_later(&raise_it, e))
        return;
    for (void *part : {e->type, e->value, e->traceback})
        p.let_go(part);
    delete e;
}

void tell_to(void *function)
{
    listener = function;
}

void tell_python(int kind)
{
    const Python &p = python();
    void *function = listener;
    if (!function || !p.is_whole())
        return;
    int state = p.enter();
    Exception before;
    p.fetch(&before.type, &before.value, &before.traceback);
    void *number = p.number(kind);
    void *result = number ? p.call(function, number, nullptr) : nullptr;
    if (!result)
        pass_on();
    p.let_go(result);
    p.let_go(number);
    p.restore(before.type, before.value, before.traceback);
    p.leave(state);
}

} // namespace cenote_values
