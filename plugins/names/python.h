/*
 * python.h: Python's functions that this library calls. They are looked up, not linked: they are in the process already, and Python's headers need
 * not be installed. All but the first three need Python's lock.
 */
#pragma once

#include <cstddef>

#include <dlfcn.h>

namespace cenote_names {

using Object = void;

struct Python {
    int (*enter)() = entry<int (*)()>("PyGILState_Ensure");
    void (*leave)(int) = entry<void (*)(int)>("PyGILState_Release");
    Object *(*thread)() = entry<Object *(*)()>("PyGILState_GetThisThreadState");

    void (*take)(Object *) = entry<void (*)(Object *)>("Py_IncRef");
    void (*drop)(Object *) = entry<void (*)(Object *)>("Py_DecRef");
    Object *(*type)(Object *) = entry<Object *(*)(Object *)>("PyObject_Type");
    Object *(*attribute)(Object *, Object *) = entry<Object *(*)(Object *, Object *)>("PyObject_GetAttr");
    Object *(*call)(Object *, ...) = entry<Object *(*)(Object *, ...)>("PyObject_CallFunctionObjArgs");
    Object *(*text)(const char *) = entry<Object *(*)(const char *)>("PyUnicode_InternFromString");
    const char *(*utf8)(Object *) = entry<const char *(*)(Object *)>("PyUnicode_AsUTF8");
    Object *(*number)(long) = entry<Object *(*)(long)>("PyLong_FromLong");
    long (*as_number)(Object *) = entry<long (*)(Object *)>("PyLong_AsLong");
    void *(*as_pointer)(Object *) = entry<void *(*)(Object *)>("PyLong_AsVoidPtr");
    int (*next)(Object *, ptrdiff_t *, Object **, Object **) = entry<int (*)(Object *, ptrdiff_t *, Object **, Object **)>("PyDict_Next");
    ptrdiff_t (*dict_size)(Object *) = entry<ptrdiff_t (*)(Object *)>("PyDict_Size");
    ptrdiff_t (*list_size)(Object *) = entry<ptrdiff_t (*)(Object *)>("PyList_Size");
    Object *(*list_item)(Object *, ptrdiff_t) = entry<Object *(*)(Object *, ptrdiff_t)>("PyList_GetItem");
    ptrdiff_t (*tuple_size)(Object *) = entry<ptrdiff_t (*)(Object *)>("PyTuple_Size");
    Object *(*tuple_item)(Object *, ptrdiff_t) = entry<Object *(*)(Object *, ptrdiff_t)>("PyTuple_GetItem");
    Object *(*weak)(Object *, Object *) = entry<Object *(*)(Object *, Object *)>("PyWeakref_NewRef");
    int (*weak_get)(Object *, Object **) = entry<int (*)(Object *, Object **)>("PyWeakref_GetRef");         /* from 3.13 on */
    Object *(*weak_borrow)(Object *) = entry<Object *(*)(Object *)>("PyWeakref_GetObject");                /* up to 3.14 */
    Object *(*method)(void *, Object *, Object *) = entry<Object *(*)(void *, Object *, Object *)>("PyCFunction_NewEx");
    Object *(*error)() = entry<Object *(*)()>("PyErr_Occurred");
    void (*clear)() = entry<void (*)()>("PyErr_Clear");
    void (*fetch)(Object **, Object **, Object **) = entry<void (*)(Object **, Object **, Object **)>("PyErr_Fetch");
    void (*restore)(Object *, Object *, Object *) = entry<void (*)(Object *, Object *, Object *)>("PyErr_Restore");

    Object *(*frame)() = entry<Object *(*)()>("PyEval_GetFrame");
    Object *(*caller)(Object *) = entry<Object *(*)(Object *)>("PyFrame_GetBack");
    Object *(*code)(Object *) = entry<Object *(*)(Object *)>("PyFrame_GetCode");
    int (*instruction)(Object *) = entry<int (*)(Object *)>("PyFrame_GetLasti"); /* from 3.11 on */
    int (*line)(Object *) = entry<int (*)(Object *)>("PyFrame_GetLineNumber");
    int (*line_of)(Object *, int) = entry<int (*)(Object *, int)>("PyCode_Addr2Line");

    Object *none = entry<Object *>("_Py_NoneStruct"), *dict = entry<Object *>("PyDict_Type"), *list = entry<Object *>("PyList_Type"),
           *tuple = entry<Object *>("PyTuple_Type");

    template <class F> static F entry(const char *name) { return reinterpret_cast<F>(dlsym(RTLD_DEFAULT, name)); }

    bool is_whole() const
    {
        return enter && leave && thread && take && drop && type && attribute && call && text && utf8 && number && as_number && as_pointer && next &&
               dict_size && list_size && list_item && tuple_size && tuple_item && weak && (weak_get || weak_borrow) && method && error && clear &&
               fetch && restore && frame && caller && code && line && line_of && none && dict && list && tuple;
    }
};

inline const Python &python()
{
    static const Python found;
    return found;
}

/* Owns a reference. */
class Held {
public:
    explicit Held(Object *object) : object_(object) {}
    Held(const Held &) = delete;
    ~Held()
    {
        if (object_)
            python().drop(object_);
    }
    Object *get() const { return object_; }
    explicit operator bool() const { return object_ != nullptr; }

private:
    Object *object_;
};

} // namespace cenote_names
