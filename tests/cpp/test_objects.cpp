/*
 * test_objects.cpp: the objects of cenote.hpp end what they own, once, in stream order, and say by an exception what went wrong. Contents judge.
 */
#include "tests/cpp/card.hpp"

#include <string>
#include <vector>

/* The type of what `call` throws: o, m, b, d, f; a dot if it throws nothing. Each is what the table of cenote.hpp says it is besides. */
template <class Call> static char thrown(Call call, int *code = nullptr)
{
    char type = '.';
    try {
        call();
    } catch (const cenote::error &said) {
        if (code)
            *code = said.code();
        type = dynamic_cast<const cenote::out_of_memory *>(&said)   ? 'o'
               : dynamic_cast<const cenote::misuse *>(&said)        ? 'm'
               : dynamic_cast<const cenote::busy *>(&said)          ? 'b'
               : dynamic_cast<const cenote::device_lost *>(&said)   ? 'd'
               : dynamic_cast<const cenote::failed *>(&said)        ? 'f'
                                                                    : '?';
        const std::exception *standard = dynamic_cast<const std::exception *>(&said);
        EXPECT(standard);
        EXPECT_TEXT_EQ(standard ? standard->what() : NULL, said.message());
        EXPECT_EQ(type == 'o', dynamic_cast<const std::bad_alloc *>(&said) != nullptr);
        EXPECT_EQ(type == 'm', dynamic_cast<const std::logic_error *>(&said) != nullptr);
    }
    return type;
}

CASE(a_block_ends_with_its_scope)
{
    card card;
    cenote::pool pool(0, card::options());
    {
        cenote::block block = pool.alloc(1000, card.a);
        EXPECT(block);
        EXPECT_EQ(live(pool), 1);
        EXPECT_EQ(cenote::find(block.as<char>() + 999)->requested, 1000);
    }
    EXPECT_EQ(live(pool), 0);
    EXPECT(!pool.alloc(0, card.a));
}

/* The device is still at work on what ends here; the next block of the stream is at the same place at once, that of another stream is not. */
CASE(the_end_is_in_stream_order)
{
    card card;
    cenote::pool pool(0, card::options());
    void *at;
    {
        cenote::block block = pool.alloc(40 * MIB, card.a);
        at = block.get();
        card::fill(card.a, at, 1, 40 * MIB);
        card::expect(card.a, at, 1, 40 * MIB);
    }
    cenote::block next = pool.alloc(40 * MIB, card.a);
    EXPECT_EQ(next.get(), at);
    card::fill(card.a, next.get(), 2, 40 * MIB);
    card::expect(card.a, next.get(), 2, 40 * MIB);
    next = cenote::block();
    cenote::block other = pool.alloc(50 * MIB, card.b);
    card::fill(card.b, other.get(), 3, 50 * MIB);
    card::expect(card.b, other.get(), 3, 50 * MIB);
}

/* Most of the card is wanted again while the other stream still reads. */
CASE(streams_that_are_named_are_waited_for)
{
    for (bool by_free_on : {false, true}) {
        card card;
        cenote::pool pool(0, card::options());
        cenote::block block = pool.alloc(40 * MIB, card.a);
        card::fill(card.a, block.get(), 1, 40 * MIB);
        card::order(card.a, card.b);
        DONE(sim_launch_wait(card.b, 50000000));
        card::expect(card.b, block.get(), 1, 40 * MIB);
        if (by_free_on) {
            block.free_on(card.b);
            EXPECT(!block);
        } else {
            block.use(card.b);
            block = cenote::block();
        }
        cenote::block next = pool.alloc(50 * MIB, card.a);
        card::fill(card.a, next.get(), 2, 50 * MIB);
        card::expect(card.a, next.get(), 2, 50 * MIB);
    }
}

CASE(a_block_is_freed_once)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::block block = pool.alloc(MIB, card.a), moved, kept;
    moved = std::move(block);
    EXPECT(!block && moved);
    EXPECT_EQ(live(pool), 1);
    block.free(); /* the block of zero bytes */
    block.use(card.b);
    moved.free();
    EXPECT(!moved);
    EXPECT_EQ(live(pool), 0);
    kept = pool.alloc(MIB, card.a); /* at the same place: an owner that had kept its address would free this one */
    moved = cenote::block();
    EXPECT_EQ(live(pool), 1);
    kept = pool.alloc(2 * MIB, card.a); /* what it owned before ends */
    EXPECT_EQ(live(pool), 1);
    void *raw = kept.release();
    EXPECT(!kept);
    EXPECT_EQ(live(pool), 1);
    std::unique_ptr<float, cenote::deleter> typed(static_cast<float *>(raw));
    static_assert(sizeof typed == sizeof(void *));
    typed.reset();
    EXPECT_EQ(live(pool), 0);
}

CASE(after_a_mistake_the_block_stays_owned)
{
    card card;
    cenote::pool pool(0, card::options());
    int code = 0;
    cenote::block block = pool.alloc(MIB, card.a);
    EXPECT_EQ(thrown([&] { block.free_sized(MIB - 1); }, &code), 'm');
    EXPECT_EQ(code, CENOTE_WRONG_SIZE);
    EXPECT(block);
    EXPECT_EQ(live(pool), 1);
    block.free_sized(MIB);
    EXPECT_EQ(live(pool), 0);
    cenote::block inside(static_cast<char *>(pool.alloc(MIB, card.a).release()) + 512);
    EXPECT_EQ(thrown([&] { inside.free(); }, &code), 'm');
    EXPECT_EQ(code, CENOTE_INTERIOR);
    cenote::block whole(inside.as<char>() - 512);
    (void)inside.release();
    EXPECT_EQ(thrown([&] { (void)pool.alloc_aligned(MIB, 3, card.a); }), 'm');
}

CASE(out_of_memory)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::block held = pool.alloc(40 * MIB, card.a), none;
    std::string said;
    int code = 0;
    EXPECT_EQ(thrown([&] { held = pool.alloc(40 * MIB, card.a); }, &code), 'o');
    EXPECT_EQ(code, CENOTE_OUT_OF_MEMORY);
    EXPECT(held);
    EXPECT_EQ(pool.try_alloc(40 * MIB, card.a, held), CENOTE_OUT_OF_MEMORY);
    EXPECT(held);
    EXPECT_EQ(live(pool), 1);
    try {
        (void)pool.alloc(40 * MIB, card.a);
    } catch (const std::exception &standard) {
        said = standard.what();
        EXPECT(said == cenote_message());
        EXPECT_EQ(cenote_free(&none), CENOTE_NOT_OURS); /* another failing call changes what cenote_message() says, not the exception */
        EXPECT_TEXT_EQ(standard.what(), said.c_str());
        EXPECT(said != cenote_message());
    }
    EXPECT(said.size() > 20);
    held.free();
    EXPECT_EQ(pool.try_alloc(40 * MIB, card.a, held), CENOTE_OK);
    EXPECT_EQ(pool.try_alloc(8 * MIB, card.a, held), CENOTE_OK); /* the larger one ends */
    EXPECT_EQ(live(pool), 1);
}

CASE(the_program_makes_room)
{
    card card;
    cenote::pool pool(0, card::options());
    std::vector<cenote::block> cache;
    std::size_t asked = 0;
    for (int i = 0; i < 3; i++)
        cache.push_back(pool.alloc(20 * MIB, card.a));
    auto evict = [&](std::size_t bytes) {
        asked = bytes;
        return cache.empty() ? false : (cache.pop_back(), true);
    };
    pool.on_shortage(evict);
    cenote::block block = pool.alloc(30 * MIB, card.a);
    EXPECT_EQ(cache.size(), 1);
    EXPECT_EQ(asked, 30 * MIB);
    pool.off_shortage();
    EXPECT_EQ(thrown([&] { (void)pool.alloc(30 * MIB, card.a); }), 'o');
    EXPECT_EQ(cache.size(), 1);
}

/* Every error of errors.def is thrown as the table of cenote.hpp says. */
CASE(each_error_has_its_type)
{
    const std::string table = "INVALID m OUT_OF_MEMORY o OUT_OF_HOST_MEMORY o OUT_OF_ADDRESSES o NO_DRIVER f DRIVER_TOO_OLD f NO_DEVICE f "
                              "NOT_SUPPORTED f NOT_OURS m INTERIOR m DOUBLE_FREE m WRONG_SIZE m BUSY b CAPTURE b DRIVER f DEVICE_LOST d FORKED f "
                              "EXITING f BAD_OPTION m GONE f FILE f ";
    std::string found;
#define CENOTE_ERROR(value, name, text)                                                                                \
    if (value) {                                                                                                       \
        int code = 0;                                                                                                  \
        found += std::string(#name) + " " + thrown([] { cenote::check(value); }, &code) + " ";                         \
        EXPECT_EQ(code, value);                                                                                        \
    }
#include <cenote/errors.def>
#undef CENOTE_ERROR
    EXPECT_TEXT_EQ(found.c_str(), table.c_str());
    EXPECT_EQ(thrown([] { cenote::check(CENOTE_OK); }), '.');
    EXPECT_EQ(thrown([] { cenote::check(999); }), 'f'); /* of a later library */
}

CASE(a_pool_ends_once_and_not_before_its_blocks)
{
    card card;
    cenote_pool *kept;
    cenote::block late;
    {
        cenote::pool first(0, card::options()), pool(std::move(first));
        EXPECT(!first.get() && pool.get());
        EXPECT_EQ(thrown([&] { (void)first.alloc(1, card.a); }), 'm');
        EXPECT_EQ(thrown([&] { first.step(); }), 'm');
        EXPECT_EQ(thrown([&] { first.destroy(); }), 'm');
        EXPECT_EQ(first.device(), -1);
        first = cenote::pool(0, card::options());
        EXPECT_EQ(first.device(), 0);
        late = pool.alloc(MIB, card.a);
        EXPECT_EQ(thrown([&] { pool.destroy(); }), 'b');
        EXPECT_EQ(pool.device(), 0);
        kept = pool.get();
    }
    EXPECT_EQ(cenote_pool_device(kept), 0); /* a block of it lives */
    EXPECT_EQ(live(kept), 1);
    late.free();
    cenote_pool_destroy(kept);
    cenote::pool ended(0, card::options());
    cenote::pool_ref other = ended;
    EXPECT(other == ended);
    ended.destroy();
    EXPECT(!ended.get());
    EXPECT_EQ(other.device(), -1);
    EXPECT_EQ(thrown([&] { (void)other.alloc(1, card.a); }), 'm');
    EXPECT_EQ(thrown([&] { cenote::group(other, "late"); }), 'm');
    EXPECT_EQ(thrown([&] { cenote::pool(7); }), 'f'); /* no such device */
    EXPECT_EQ(thrown([&] { cenote::options("page_mib:3,nothing:1"); }), 'm');
}

CASE(a_group_ends_with_its_scope)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::block block;
    {
        cenote::group first(pool, "cache"), group(std::move(first));
        EXPECT(!first.get() && group.get());
        block = group.alloc(3 * MIB, card.a);
        EXPECT_EQ(group.reserved(), 4 * MIB);
        EXPECT_EQ(cenote::find(block.get())->group, group.get());
        EXPECT_EQ(thrown([&] { (void)first.alloc(1, card.a); }), 'm');
        EXPECT_EQ(group.try_alloc(900 * MIB, card.a, block), CENOTE_OUT_OF_MEMORY);
        EXPECT(block);
        first = cenote::group(pool, "other");
        first.destroy();
        EXPECT(!first.get());
        EXPECT_EQ(thrown([&] { pool.destroy(); }), 'b');
    }
    block.free();
    pool.destroy(); /* no group is left */
    EXPECT(!pool.get());
}

/* An exception leaves a capture: what is declared after the announcement ends the driver's capture first. */
struct driver_capture {
    explicit driver_capture(CUstream captured) : stream(captured) { DONE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)); }
    ~driver_capture()
    {
        CUgraph graph;
        DONE(cuStreamEndCapture(stream, &graph));
        DONE(cuGraphDestroy(graph));
    }
    CUstream stream;
};

CASE(a_capture_ends_with_its_scope)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::group graphs(pool, "graphs", CENOTE_GROUP_PRIVATE), plain(pool, "no graphs");
    EXPECT_EQ(thrown([&] {
                  cenote::capture capture(graphs, card.a);
                  driver_capture of_the_driver(card.a);
                  cenote::block block = pool.alloc(MIB, card.a);
                  EXPECT_EQ(cenote::find(block.get())->group, graphs.get());
                  (void)pool.alloc(900 * MIB, card.a);
              }), 'o');
    cenote::block block = pool.alloc(MIB, card.a);
    EXPECT(!cenote::find(block.get())->group);
    {
        cenote::capture capture(pool, card.a), moved(std::move(capture));
        EXPECT(!capture && moved);
        EXPECT_EQ(thrown([&] { (void)pool.alloc(MIB, card.a); }), 'b');
        EXPECT_EQ(thrown([&] { capture.end(); }), 'm');
        moved.end();
        EXPECT(!moved);
        block = pool.alloc(MIB, card.a);
    }
    EXPECT_EQ(thrown([&] { cenote::capture(plain, card.a); }), 'm');
    block.free();
}

CASE(a_pin_ends_with_its_scope)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::block block = pool.alloc(4 * MIB, card.a);
    {
        cenote::pin first(block.get(), 4 * MIB), pin(std::move(first)), ended(block.get(), MIB);
        EXPECT(!first && pin);
        ended.end();
        EXPECT(!ended);
        block.free();
        EXPECT_EQ(thrown([&] { pool.destroy(); }), 'b');
        pool.trim(0, CENOTE_TRIM_WAIT);
    }
    EXPECT_EQ(thrown([&] { cenote::pin(&pool, 1); }), 'm');
    pool.destroy();
    EXPECT(!pool.get());
}

/* A watch function must not call, and loses nothing by trying. */
CASE(an_import_is_owned_after_a_call_that_must_not_be)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::block block = pool.alloc(3 * MIB, card.a);
    cenote::imported import(block.share(), 0);
    auto closes = [](cenote_pool *, const cenote_notice *, void *arg) {
        EXPECT_EQ(thrown([&] { static_cast<cenote::imported *>(arg)->close(); }), 'm');
    };
    cenote::check(cenote_pool_watch(pool.get(), CENOTE_MAPPED | CENOTE_UNMAPPING | CENOTE_FREED, closes, &import));
    cenote::block more = pool.alloc(40 * MIB, card.b);
    cenote::check(cenote_pool_watch(pool.get(), 0, closes, &import));
    EXPECT(import);
    import.close();
    EXPECT(!import);
}

CASE(an_import_ends_with_its_scope)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::block block = pool.alloc(3 * MIB, card.a);
    cenote::group graphs(pool, "graphs", CENOTE_GROUP_PRIVATE);
    void *there;
    {
        cenote::imported first(block.share(), 0), import(std::move(first)), of_pool(block.share(), pool);
        there = import.get();
        EXPECT(!first && import && of_pool);
        EXPECT_EQ(import.size(), 3 * MIB);
        EXPECT_EQ(thrown([&] { (void)first.size(); }), 'm');
        EXPECT_EQ(thrown([&] { first.close(); }), 'm');
        of_pool.close();
        EXPECT(!of_pool);
        cenote::capture capture(graphs, card.b);
        EXPECT_EQ(thrown([&] { import.close(); }), 'b'); /* the last of its range */
        EXPECT(import);
    }
    EXPECT_EQ(cenote_import_close(there), CENOTE_NOT_OURS);
    cenote_share name = block.share();
    block.free();
    EXPECT_EQ(thrown([&] { cenote::imported(name, 0); }), 'f');
    EXPECT_EQ(thrown([&] { cenote::imported(cenote_share{}, pool); }), 'm');
}

/* Calls for runtimes: what is left, pages ahead, a refusal instead of a wait, a group that lets go of everything. */
CASE(calls_of_a_runtime)
{
    card card;
    cenote::pool pool(0, card::options());
    cenote::group group(pool, "sequence");
    pool.reserve(8 * MIB, card.a);
    EXPECT(pool.available().held >= 8 * MIB);
    cenote::block block, of_group = group.alloc(MIB, card.a);
    cenote_request request = {};
    request.bytes = std::size_t{1} << 46;
    request.stream = card.a;
    request.flags = CENOTE_NO_WAIT;
    EXPECT_EQ(pool.try_alloc(request, block), CENOTE_OUT_OF_MEMORY);
    request.bytes = 3 * MIB;
    EXPECT_EQ(pool.try_alloc(request, block), CENOTE_OK);
    block.extend(5 * MIB);
    EXPECT_EQ(cenote::find(block.get())->requested, 5 * MIB);
    (void)of_group.release();
    group.reset();
    EXPECT_EQ(live(pool), 1);
}

SUITE_MAIN("cenote.hpp")
