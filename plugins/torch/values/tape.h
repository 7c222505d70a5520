/*
 * tape.h: which version of its bytes each storage on a GPU has, and how that version came about; see tape.cpp.
 */
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <operators.h> /* beside this file */

#include <memory>
#include <mutex>
#include <vector>

namespace cenote_values
{

constexpr int64_t KNOWN_MOST = 8 << 20;     /* bytes of a call's tensors, if all are known: more is not computed. Chosen. */
constexpr int64_t UNKNOWN_MOST = 256 << 10; /* the same if one of them is unknown */
constexpr int64_t HOST_MOST = 1 << 20;      /* bytes of floating point from the host that are kept; of other types KNOWN_MOST */
constexpr int DEPTH_MOST = 64;              /* calls that a version depends on, one through the other */

struct Call;

/* One state of the bytes of a storage. Does not change, but that it is computed. */
struct Version {
    std::shared_ptr<Call> call;         /* makes the bytes; NULL: they are there, or are plausible ones */
    std::shared_ptr<Version> same;      /* the bytes are those of this version: what was written since is unknown */
    at::Tensor bytes;                   /* undefined until they are computed */
    int64_t size = 0;
    const void *memory = nullptr;       /* the bytes are in the device's memory, here */
    uint64_t number = 0;                /* plausible values depend on it */
    int64_t range = 0;                  /* of plausible indices */
    float scale = 1;
    int depth = 0;
    Fill fill = Fill::number;
    c10::ScalarType type = at::kByte;
    bool is_known = false;              /* false for good once something that it depends on turned out to be unknown */
    bool falls = false;                 /* a loss or a distance: the next one is smaller */
    bool is_truth = false;              /* says yes or no, or how often yes */
};
using VersionP = std::shared_ptr<Version>;

/* A tensor on a GPU as a call saw it: a view of a storage. */
struct Operand {
    int argument, element;              /* of a list; -1: the argument itself */
    VersionP version;                   /* NULL: of bytes of which nothing is known */
    c10::DimVector sizes, strides;
    int64_t offset;
    c10::ScalarType type;
    bool is_written;
};

struct Result {
    int place, element;
    std::weak_ptr<Version> version;
    c10::DimVector sizes, strides;
    int64_t offset;
    c10::ScalarType type;
};

/* A call of an operator that can be made again, on the CPU. */
struct Call {
    explicit Call(const c10::OperatorHandle &handle, const Operator &o) : handle(handle), what(o) {}
    c10::OperatorHandle handle;
    const Operator &what;
    std::vector<c10::IValue> arguments; /* without tensors on GPUs: no memory of the program's is held */
    std::vector<Operand> operands;
    std::vector<Result> results;
    std::vector<std::pair<size_t, std::weak_ptr<Version>>> written; /* operand, version after it */
    uint64_t seed = 0;
    bool was_made = false;
};

extern std::mutex tape_lock; /* guards all below, and the values of versions */

Version *tape_find(const c10::Storage &storage);                /* NULL: nothing is known */
VersionP tape_version(const c10::Storage &storage);
void     tape_put(const c10::Storage &storage, VersionP version);   /* NULL: nothing is known from now on */
void     tape_forget_range(uintptr_t from, uintptr_t to);       /* of addresses */
void     tape_forget_all();
void     tape_give_away(const c10::Storage &storage);           /* others write to it: nothing is known for good */
size_t   tape_size();
VersionP new_version(int64_t size);
bool     is_plain(const at::Tensor &tensor);                    /* on a GPU, with a storage that holds its elements as they are */
bool     covers_storage(const at::Tensor &tensor);

} // namespace cenote_values
