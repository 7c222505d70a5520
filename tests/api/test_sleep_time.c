/*
 * test_sleep_time.c: while memory goes to sleep, and wakes, the device copies all the while, and what the driver does for one page it does beside the
 * copy of another. By the clock of the simulated GPU, whose calls and copies take as long as on an H200.
 */
#include "tests/api/sleeps.h"

#define COPIED (128 * MIB)
#define PRICES "h200"

static void open_priced(struct scene *scene)
{
    struct sim_shape shape = scene_card(GIB);
    cenote_options options = scene_options();
    shape.charge_cost = true;
    strcpy(shape.prices, PRICES);
    scene_open_with(scene, &shape, &options);
}

static uint64_t price(const char *call)
{
    return sim_price(PRICES, call);
}

CASE(copies_go_on_all_the_while)
{
    struct scene scene;
    struct held held;
    struct sim_books books;
    open_priced(&scene);
    REQUIRE(held_take(&held, scene.pool, COPIED, scene.stream[A]));
    DONE(cenote_pool_pause(scene.pool, NULL)); /* the stages are pinned, and the device is done */
    DONE(cenote_pool_resume(scene.pool, NULL));
    sim_books(&books);
    uint64_t pages = books.handles, mib = COPIED / MIB, start = sim_now();
    uint64_t each = price("cuMemMap") + price("cuMemSetAccess") + price("cuMemUnmap") + price("cuMemRelease");
    EXPECT(pages >= 8);
    DONE(cenote_pool_pause(scene.pool, NULL));
    uint64_t bare = mib * price("pinned_to_host");
    EXPECT(sim_now() - start >= bare);
    EXPECT(sim_now() - start < bare + 2 * each);
    start = sim_now();
    DONE(cenote_pool_resume(scene.pool, NULL));
    bare = mib * price("pinned_to_device") + pages * price("cuMemCreate"); /* the driver has to have all of it before anything is mapped */
    EXPECT(sim_now() - start >= bare);
    EXPECT(sim_now() - start < bare + 2 * each);
    held_give(&held);
    scene_close(&scene);
}

SCENES_MAIN("how long sleep takes")
