/*
 * tape.h: which version of its bytes each storage on a GPU has, and how that version came about; see tape.cpp.
 */
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <operators.h> /* beside this file */

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace cenote_values
{

constexpr int64_t KNOWN_MOST = 8 << 20;     /* bytes of a call's tensors, if all are known: more is not computed. Chosen. */
constexpr int64_t UNKNOWN_MOST = 256 << 10; /* the same if one of them is unknown */
constexpr int64_t HOST_MOST = 1 << 20;      /* bytes of floating point from the host that are kept; of other types KNOWN_MOST */
constexpr int64_t HELD_MOST = 256 << 20;    /* of all copies of the host's memory together. Chosen. */
constexpr int DEPTH_MOST = 64;              /* calls that a version depends on, one through the other */

struct Call;

struct Span {
    int64_t from, to;                   /* bytes of a storage */
};
using Spans = std::vector<Span>;

/* One state of the bytes of a storage. Does not change, but that it is computed. */
struct Version {
    std::shared_ptr<Call> call;         /* makes the bytes; NULL: they are there, or are plausible ones */
    std::shared_ptr<Version> same;      /* the bytes are those of this version: what was written since is unknown */
    at::Tensor bytes;                   /* undefined until they are computed */
    int64_t size = 0;
    const void *memory = nullptr;       /* the bytes are in the device's memory, here, as long as `home` has it and nothing is written there */
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> home;
    uint64_t number = 0;                /* plausible values depend on it */
    int64_t range = 0;                  /* of plausible indices; how many a share is of */
    int64_t row = 0;                    /* elements of the last dimension, before rows were joined (of beams); 0: not known */
    uint64_t course = 0;                /* of a score or a share of right answers (V17), each better than the last; 0: of anything else */
    int depth = 0;                      /* at most DEPTH_MOST: evaluation and the end of a chain are recursive */
    Fill fill = Fill::number;
    c10::ScalarType type = at::kByte;
    bool is_known = false;              /* false for good once something that it depends on turned out to be unknown */
    bool is_lost = false;               /* that has happened */
    bool is_likely = false;             /* known, or was before something unseen may have written there, or made of such (V16) */
    Spans unknown;                      /* of a version that is not known: the bytes that are not. Empty: any of them */
    bool is_made_up = false;            /* not even computed from plausible values */
};
using VersionP = std::shared_ptr<Version>;

/* Too large to be computed with, but the host's bytes, as long as no operator writes there. */
inline bool is_large_upload(const Version &v) { return v.memory && v.size > KNOWN_MOST; }

/* A tensor on a GPU as a call saw it: a view of a storage. */
struct Operand {
    int argument, element;              /* of a list; -1: the argument itself */
    VersionP version;                   /* NULL: of bytes of which nothing is known */
    c10::DimVector sizes, strides;
    int64_t offset;
    c10::ScalarType type;
    bool is_written;
    bool is_conj = false, is_neg = false;   /* a view that its readers see so */
    bool is_filled = false;             /* all of it is written, whatever was there */
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
    ~Call() { let_go(); }
    void let_go();                      /* of its arguments */
    c10::OperatorHandle handle;
    const Operator &what;
    std::vector<c10::IValue> arguments; /* without tensors on GPUs: no memory of the program's is held */
    std::vector<Operand> operands;
    std::vector<Result> results;
    std::vector<std::pair<size_t, std::weak_ptr<Version>>> written; /* operand, version after it */
    uint64_t seed = 0;
    int64_t held = 0;                   /* bytes of copies among the arguments */
    bool was_made = false;
    bool is_known = false;              /* as far as was known when it was recorded */
};

extern std::mutex tape_lock; /* guards all below, and the values of versions */

bool     tape_survives_forks();                                 /* true. Once; the simulated GPU has to be in use already */

Version *tape_find(const c10::Storage &storage);                /* NULL: nothing is known */
VersionP tape_version(const c10::Storage &storage);
VersionP tape_version_of(const at::Tensor &tensor);             /* of its storage, if it has all that the tensor shows; else it is forgotten */
VersionP tape_look(const at::Tensor &tensor, int64_t &shift);   /* the same, or of another storage that has its memory, at this byte */
void     tape_put(const c10::Storage &storage, VersionP version);   /* NULL: nothing is known from now on */
void     tape_forget_range(uintptr_t from, uintptr_t to);       /* of addresses */
void     tape_forget_all();
size_t   tape_size();
VersionP new_version(int64_t size);
VersionP version_in_memory(const c10::Storage &storage, c10::ScalarType type);
void     hold(Call &call, int64_t bytes);
int64_t  held_by_calls();                                       /* bytes */
Operand  operand_of(const at::Tensor &tensor, int argument, int element, bool is_written);
bool     is_plain(const at::Tensor &tensor);                    /* on a GPU, with a storage that holds its elements as they are */
bool     is_plain_on(const at::Tensor &tensor);                 /* the same, wherever it is */
bool     is_readable(const at::Tensor &tensor);                 /* plain, or a conjugate or negative view of what is */
bool     covers_storage(const at::Tensor &tensor);

} // namespace cenote_values
