/*
 * cenote.hpp: cenote.h and share.h for C++17: pools, blocks, groups, captures, pins, imports that end with their scope, and errors as exceptions.
 *
 *     cenote::pool pool(0);
 *     cenote::block block = pool.alloc(1 << 20, stream);
 *     ... launch kernels on `stream` with block.get() ...
 *     block.use(other);                   // it is used there, too
 *     }                                   // given back in stream order: nothing waits
 *
 * It is no library of its own, and it hides nothing: the headers of C say what each call does and have the rules, get() gives what their functions
 * take, and what has no member here is called through get().
 *
 * COST       Each object is as large as what it owns: a block is one pointer, and its deleter is cenote_free. Nothing is allocated and no lock
 *            taken but by the calls of cenote.h. Objects can be moved and not copied. One that was moved from is empty: get() is NULL, its
 *            end does nothing, and a call on it is cenote::misuse, but for calls on an empty block: that is the block of zero bytes.
 * ERRORS     A call that fails throws, and nothing has happened. By what the program can do about it:
 *
 *                cenote::out_of_memory   and std::bad_alloc       free something, or ask for less: the pool goes on
 *                cenote::misuse          and std::logic_error     mend the program
 *                cenote::busy            and std::runtime_error   not now: something is in use, or a capture is open
 *                cenote::device_lost     and std::runtime_error   nothing of this device works any more
 *                cenote::failed          and std::runtime_error   all others: the driver refused, the process is a fork or exits, no device, ...
 *
 *            All are cenote::error as well: code(), name() and message(), which is cenote_message() as it was then. An error that a later
 *            library has is cenote::failed. The calls try_alloc return the error instead, for programs to which no memory is an answer like another.
 * ENDS       A destructor cannot throw: what it cannot do is left as it is, and the option abort:1 stops the process there. Therefore a pool ends
 *            after its blocks and groups: declare it before them. One that is destroyed while they live stays for good, and its blocks are valid.
 *            free(), destroy() and end() do the same and throw.
 * CALLBACKS  A function that cenote calls must not throw: std::terminate() is called if it does.
 * WITHOUT EXCEPTIONS (-fno-exceptions) a call that fails prints the message and calls abort(); try_alloc returns. Code compiled with them and code
 *            without may be linked into one program.
 * THREADS    As in cenote.h: calls from any thread; one object is changed (moved, ended) by one thread at a time.
 */
#ifndef CENOTE_HPP
#define CENOTE_HPP

#if __cplusplus < 201703L
#error "cenote.hpp needs C++17"
#endif

#include <cenote/cenote.h>
#include <cenote/share.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace cenote {

#ifndef __cpp_exceptions
inline namespace without_exceptions {
#endif

/* -------------------------------------------------------------------------------------------------------------------- errors */

/* What every exception of cenote is besides its standard type. */
class CENOTE_API error {
public:
    virtual ~error() = default;
    int code() const noexcept { return code_; }                                /* enum cenote_error */
    const char *name() const noexcept { return cenote_error_name(code_); }     /* "CENOTE_OUT_OF_MEMORY" */
    const char *message() const noexcept { return message_.what(); }           /* cenote_message() of the call that failed */
    int driver_result() const noexcept { return driver_result_; }              /* cenote_driver_result() of that call */

protected:
    explicit error(int code) : code_(code), driver_result_(cenote_driver_result()), message_(cenote_message()) {}
    error(const error &) = default;
    error &operator=(const error &) = default;

private:
    int code_;
    int driver_result_;
    std::runtime_error message_; /* a string whose copy cannot fail */
};

/* `Standard` is the exception of the standard library that this one is. There is one std::exception in it, so handlers of that find it. */
template <class Standard> class CENOTE_API error_as : public Standard, public error {
public:
    explicit error_as(int code) : Standard(standard()), error(code) {}
    const char *what() const noexcept override { return message(); }

private:
    static Standard standard()
    {
        if constexpr (std::is_default_constructible_v<Standard>)
            return Standard();
        else
            return Standard("");
    }
};

class CENOTE_API out_of_memory : public error_as<std::bad_alloc> {
    using error_as::error_as;
};
class CENOTE_API misuse : public error_as<std::logic_error> {
    using error_as::error_as;
};
class CENOTE_API busy : public error_as<std::runtime_error> {
    using error_as::error_as;
};
class CENOTE_API device_lost : public error_as<std::runtime_error> {
    using error_as::error_as;
};
class CENOTE_API failed : public error_as<std::runtime_error> {
    using error_as::error_as;
};

/* Throws what `code` means. cenote_message() has to be that of the same call. */
[[noreturn]] inline void fail(int code)
{
#ifdef __cpp_exceptions
    switch (code) {
    case CENOTE_OUT_OF_MEMORY:
    case CENOTE_OUT_OF_HOST_MEMORY:
    case CENOTE_OUT_OF_ADDRESSES:
        throw out_of_memory(code);
    case CENOTE_INVALID:
    case CENOTE_NOT_OURS:
    case CENOTE_INTERIOR:
    case CENOTE_DOUBLE_FREE:
    case CENOTE_WRONG_SIZE:
    case CENOTE_BAD_OPTION:
        throw misuse(code);
    case CENOTE_BUSY:
    case CENOTE_CAPTURE:
        throw busy(code);
    case CENOTE_DEVICE_LOST:
        throw device_lost(code);
    default:
        throw failed(code);
    }
#else
    std::fprintf(stderr, "%s: %s\n", cenote_error_name(code), cenote_message());
    std::abort();
#endif
}

/* For calls of C that have no member here: cenote::check(cenote_pool_snapshot(...)). */
inline void check(int code)
{
    if (code != CENOTE_OK)
        fail(code);
}

/* -------------------------------------------------------------------------------------------------------------------- blocks */

/* Gives memory back in the order of its stream. Of no size, so that any std::unique_ptr may have it. */
struct deleter {
    void operator()(void *block) const noexcept { (void)cenote_free(block); }
};

/* Owns one block. */
class block {
public:
    block() noexcept = default;
    explicit block(void *owned) noexcept : owned_(owned) {} /* what cenote_alloc returned, or NULL */

    void *get() const noexcept { return owned_.get(); }
    template <class T> T *as() const noexcept { return static_cast<T *>(owned_.get()); } /* a device address: the host does not read it */
    explicit operator bool() const noexcept { return owned_ != nullptr; }
    [[nodiscard]] void *release() noexcept { return owned_.release(); }                  /* no longer freed here */

    void use(cenote_stream stream) { check(cenote_use(get(), stream)); }
    void extend(std::size_t bytes) { check(cenote_extend(get(), bytes)); } /* cenote::busy: it cannot, and is as it was */
    void use_on_device(int device, cenote_stream stream) { check(cenote_use_on_device(get(), device, stream)); }
    cenote_share share() const /* names it to another process, until it is freed: cenote::imported there */
    {
        cenote_share name;
        check(cenote_export(get(), &name));
        return name;
    }

    /* If one of these throws, the block is still owned. */
    void free() { given_back(cenote_free(get())); }
    void free_on(cenote_stream stream) { given_back(cenote_free_on(get(), stream)); }
    void free_sized(std::size_t bytes) { given_back(cenote_free_sized(get(), bytes)); }

private:
    void given_back(int code)
    {
        check(code);
        (void)owned_.release();
    }
    std::unique_ptr<void, deleter> owned_;
};
static_assert(sizeof(block) == sizeof(void *), "a block costs no more than its address");

/* The live block that holds `address`; nothing where none does. */
inline std::optional<cenote_block> find(const void *address)
{
    cenote_block found;
    int code = cenote_find(address, &found);
    if (code == CENOTE_NOT_OURS || code == CENOTE_DOUBLE_FREE)
        return std::nullopt;
    check(code);
    return found;
}

/* The pages that the range touches stay where they are, for memory that is registered elsewhere. */
class pin {
public:
    pin() noexcept = default;
    pin(void *address, std::size_t bytes) : address_(address), bytes_(bytes) { check(cenote_pin(address, bytes)); }
    pin(pin &&other) noexcept : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}
    pin &operator=(pin &&other) noexcept
    {
        pin old(std::move(*this));
        address_ = std::exchange(other.address_, nullptr);
        bytes_ = other.bytes_;
        return *this;
    }
    ~pin() { (void)(address_ && cenote_unpin(address_, bytes_)); }
    explicit operator bool() const noexcept { return address_ != nullptr; }
    void end()
    {
        check(cenote_unpin(address_, bytes_));
        address_ = nullptr;
    }

private:
    void *address_ = nullptr;
    std::size_t bytes_ = 0;
};

/* --------------------------------------------------------------------------------------------------------------------- pools */

/* The defaults and CENOTE_CONF, then `conf` ("limit:80%,page_mib:8"). The members of the C struct may be set as well. */
struct options : cenote_options {
    options() : cenote_options() { check(cenote_options_default(this)); }
    explicit options(const char *conf) : options() { parse(conf); }
    void parse(const char *conf) { check(cenote_options_parse(this, conf)); }
};

/* A block of so many bytes, for pool_ref::try_alloc and group::try_alloc. Its other members are what is special about it. */
inline cenote_request request(std::size_t bytes, std::size_t alignment, cenote_stream stream) noexcept
{
    cenote_request made = {};
    made.bytes = bytes;
    made.alignment = alignment;
    made.stream = stream;
    return made;
}

/* A pool that another object or library owns: one pointer, copied as such. */
class pool_ref {
public:
    pool_ref(cenote_pool *pool) noexcept : pool_(pool) {}
    pool_ref(std::nullptr_t) = delete; /* nor is 0, the number of a device, a pool */
    static pool_ref default_of(int device)
    {
        cenote_pool *pool = nullptr;
        check(cenote_pool_default(device, &pool));
        return pool;
    }
    cenote_pool *get() const noexcept { return pool_; }

    [[nodiscard]] block alloc(std::size_t bytes, cenote_stream stream) const
    {
        block taken;
        check(try_alloc(bytes, stream, taken));
        return taken;
    }
    [[nodiscard]] block alloc_aligned(std::size_t bytes, std::size_t alignment, cenote_stream stream) const
    {
        block taken;
        check(try_alloc(request(bytes, alignment, stream), taken));
        return taken;
    }
    /* `taken` is assigned to on success: what it owned is freed then. */
    [[nodiscard]] int try_alloc(std::size_t bytes, cenote_stream stream, block &taken) const noexcept
    {
        void *at = nullptr;
        int code = cenote_alloc(pool_, bytes, stream, &at);
        if (code == CENOTE_OK)
            taken = block(at);
        return code;
    }

    [[nodiscard]] int try_alloc(const cenote_request &request, block &taken) const noexcept /* with CENOTE_NO_WAIT, say */
    {
        void *at = nullptr;
        int code = cenote_alloc_with(pool_, &request, &at);
        if (code == CENOTE_OK)
            taken = block(at);
        return code;
    }

    int device() const noexcept { return cenote_pool_device(pool_); }
    int provider() const noexcept { return cenote_pool_provider(pool_); }
    cenote_available available() const
    {
        cenote_available found;
        check(cenote_pool_available(pool_, &found));
        return found;
    }
    void set_limit(std::uint64_t bytes) const { check(cenote_pool_set_limit(pool_, bytes)); }
    void set_trim_above(double part) const { check(cenote_pool_set_trim_above(pool_, part)); }
    void grant(int other_device) const { check(cenote_pool_grant(pool_, other_device)); }
    void trim(std::uint64_t keep_bytes = 0, unsigned flags = 0) const { check(cenote_pool_trim(pool_, keep_bytes, flags)); }
    void reserve(std::uint64_t bytes, cenote_stream stream) const { check(cenote_pool_reserve(pool_, bytes, stream)); }
    void step() const { check(cenote_pool_step(pool_)); }
    void stream_retire(cenote_stream stream) const { check(cenote_stream_retire(pool_, stream)); }
    void stream_set_immortal(cenote_stream stream) const { check(cenote_stream_set_immortal(pool_, stream)); }

    /* bool function(std::size_t bytes), true: something was freed. It is not copied and has to live as long as it is set. */
    template <class Function> void on_shortage(Function &function) const
    {
        static_assert(std::is_convertible_v<decltype(function(std::size_t{})), bool>, "bool function(std::size_t bytes)");
        auto call = [](cenote_pool *, std::size_t bytes, void *arg) noexcept -> int {
            return static_cast<bool>((*static_cast<Function *>(arg))(bytes));
        };
        check(cenote_pool_on_shortage(pool_, call, const_cast<void *>(static_cast<const void *>(std::addressof(function)))));
    }
    void off_shortage() const { check(cenote_pool_on_shortage(pool_, nullptr, nullptr)); }

    friend bool operator==(pool_ref a, pool_ref b) noexcept { return a.pool_ == b.pool_; }
    friend bool operator!=(pool_ref a, pool_ref b) noexcept { return a.pool_ != b.pool_; }

protected:
    static cenote_pool *none() noexcept { return nullptr; }
    cenote_pool *pool_;
};

/* A pool of one's own. */
class pool : public pool_ref {
public:
    explicit pool(int device) : pool_ref(none()) { check(cenote_pool_create(device, nullptr, &pool_)); }
    pool(int device, const cenote_options &options) : pool_ref(none()) { check(cenote_pool_create(device, &options, &pool_)); }
    pool(cenote_context context, const cenote_options &options) : pool_ref(none()) { check(cenote_pool_create_in(context, &options, &pool_)); }
    pool(pool &&other) noexcept : pool_ref(std::exchange(other.pool_, nullptr)) {}
    pool &operator=(pool &&other) noexcept
    {
        pool old(std::move(*this));
        pool_ = std::exchange(other.pool_, nullptr);
        return *this;
    }
    ~pool() { (void)(pool_ && cenote_pool_destroy(pool_)); }

    /* cenote::busy: blocks are live, groups exist, ...: the pool is as it was, and still owned. */
    void destroy()
    {
        check(cenote_pool_destroy(pool_));
        pool_ = nullptr;
    }
    [[nodiscard]] cenote_pool *release() noexcept { return std::exchange(pool_, nullptr); }
};

/* A block of another process. Its end waits for the device (cenote_import_close). While a capture is open it does nothing, and close() throws. */
class imported {
public:
    imported() noexcept = default;
    imported(const cenote_share &name, int device) { check(cenote_import(&name, sizeof name, device, &address_)); }
    imported(const cenote_share &name, pool_ref pool) { check(cenote_pool_import(pool.get(), &name, sizeof name, &address_)); } /* in its context */
    imported(imported &&other) noexcept : address_(std::exchange(other.address_, nullptr)) {}
    imported &operator=(imported &&other) noexcept
    {
        imported old(std::move(*this));
        address_ = std::exchange(other.address_, nullptr);
        return *this;
    }
    ~imported() { (void)(address_ && cenote_import_close(address_)); }
    void *get() const noexcept { return address_; } /* what the share names, which may lie inside the block */
    explicit operator bool() const noexcept { return address_ != nullptr; }
    std::size_t size() const /* of the whole block */
    {
        void *start = nullptr;
        std::size_t bytes = 0;
        check(cenote_import_range(address_, &start, &bytes));
        return bytes;
    }
    /* cenote::busy: a capture is open, and it is still owned; so it is in a watch function. After other exceptions it is closed for the program. */
    void close()
    {
        int code = cenote_import_close(address_);
        if (code != CENOTE_BUSY && code != CENOTE_INVALID)
            address_ = nullptr;
        check(code);
    }

private:
    void *address_ = nullptr;
};

/* ------------------------------------------------------------------------------------------------------- groups and captures */

/* Owns a group. Its blocks may live longer than it, but not longer than its pool. */
class group {
public:
    /* `name` is for reports; `flags` of CENOTE_GROUP_. */
    explicit group(pool_ref pool, const char *name, unsigned flags = 0, const cenote_source *source = nullptr)
    {
        check(cenote_group_create(pool.get(), name, flags, source, &group_));
    }
    group(group &&other) noexcept : group_(std::exchange(other.group_, nullptr)) {}
    group &operator=(group &&other) noexcept
    {
        group old(std::move(*this));
        group_ = std::exchange(other.group_, nullptr);
        return *this;
    }
    ~group() { (void)(group_ && cenote_group_destroy(group_)); }

    cenote_group *get() const noexcept { return group_; }
    [[nodiscard]] block alloc(std::size_t bytes, cenote_stream stream) const { return alloc_aligned(bytes, 0, stream); }
    [[nodiscard]] block alloc_aligned(std::size_t bytes, std::size_t alignment, cenote_stream stream) const
    {
        block taken;
        check(try_alloc(request(bytes, alignment, stream), taken));
        return taken;
    }
    [[nodiscard]] int try_alloc(std::size_t bytes, cenote_stream stream, block &taken) const noexcept
    {
        return try_alloc(request(bytes, 0, stream), taken);
    }
    /* The group of the request is this one. */
    [[nodiscard]] int try_alloc(cenote_request request, block &taken) const noexcept
    {
        void *at = nullptr;
        request.group = group_;
        int code = cenote_alloc_with(nullptr, &request, &at);
        if (code == CENOTE_OK)
            taken = block(at);
        return code;
    }
    std::uint64_t reserved() const
    {
        std::uint64_t bytes = 0;
        check(cenote_group_reserved(group_, &bytes));
        return bytes;
    }
    void set_flags(unsigned flags) const { check(cenote_group_set_flags(group_, flags)); }
    void trim(unsigned flags = 0) const { check(cenote_group_trim(group_, flags)); }
    void reset() const { check(cenote_group_reset(group_)); } /* frees its blocks: release() the objects that own them before */
    void destroy()
    {
        check(cenote_group_destroy(group_));
        group_ = nullptr;
    }

private:
    cenote_group *group_ = nullptr;
};

/*
 * An announced capture: made before cuStreamBeginCapture, ended after cuStreamEndCapture. What ends the driver's capture if an exception flies is
 * declared after this one, and so ends before it.
 */
class capture {
public:
    /* Memory comes from `group`, which is private. */
    capture(const group &group, cenote_stream stream) : group_(group.get()), stream_(stream)
    {
        check(cenote_capture_begin(nullptr, group_, stream));
    }
    /* The capture takes no memory. */
    capture(pool_ref pool, cenote_stream stream) : pool_(pool.get()), stream_(stream) { check(cenote_capture_begin(pool_, nullptr, stream)); }
    capture(capture &&other) noexcept
        : group_(std::exchange(other.group_, nullptr)), pool_(std::exchange(other.pool_, nullptr)), stream_(other.stream_)
    {
    }
    capture &operator=(capture &&) = delete;
    ~capture() { (void)((group_ || pool_) && ended()); }
    explicit operator bool() const noexcept { return group_ || pool_; }
    void end()
    {
        check(ended());
        group_ = nullptr;
        pool_ = nullptr;
    }

private:
    int ended() noexcept { return cenote_capture_end(pool_, group_, stream_); }
    cenote_group *group_ = nullptr;
    cenote_pool *pool_ = nullptr;
    cenote_stream stream_;
};

#ifndef __cpp_exceptions
}
#endif

} // namespace cenote
#endif
