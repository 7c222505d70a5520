/*
 * test_routes.c: whichever way a program comes to a function of the driver, it comes to cenote's; and cenote, with all its threads, comes to the
 * driver's own.
 */
#include "tests/preload/card.h"

#include <dlfcn.h>
#include <pthread.h>

typedef CUresult (*alloc_fn)(CUdeviceptr *, size_t);
typedef CUresult (*free_fn)(CUdeviceptr);
typedef CUresult (*alloc_async_fn)(CUdeviceptr *, size_t, CUstream);
typedef CUresult (*free_async_fn)(CUdeviceptr, CUstream);
typedef CUresult (*ask_fn)(const char *, void **, int, cuuint64_t);
typedef CUresult (*ask_2_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

#define FUNCTION(type, address) ((union { void *from; type to; }){.from = (address)}.to)

#ifdef __x86_64__
#define OLDEST "GLIBC_2.2.5" /* the version that every C library has of its oldest functions */
#else
#define OLDEST "GLIBC_2.17"
#endif

static void *driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    REQUIRE(library);
    return library;
}

static void expect_served(void *alloc, void *give)
{
    CUdeviceptr at = 0;
    REQUIRE(alloc && give);
    DONE(FUNCTION(alloc_fn, alloc)(&at, 5 * MIB));
    EXPECT(is_ours(at));
    DONE(FUNCTION(free_fn, give)(at));
    EXPECT(!is_ours(at));
    EXPECT_EQ(driver_allocations(), 0);
}

ON_CARD(by_dlsym)
{
    expect_served(dlsym(driver(), "cuMemAlloc_v2"), dlsym(driver(), "cuMemFree_v2"));
    expect_served(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), dlsym(RTLD_DEFAULT, "cuMemFree_v2"));
}

ON_CARD(what_is_not_served_stays_as_it_is)
{
    void *launch = dlsym(driver(), "cuLaunchHostFunc");
    EXPECT(launch);
    EXPECT_EQ(launch, dlsym(RTLD_DEFAULT, "cuLaunchHostFunc"));
    EXPECT(dlsym(driver(), "cuMemAlloc_v2") != dlsym(driver(), "cuMemAllocManaged"));
    EXPECT(!dlsym(driver(), "cuNoSuchFunction"));
    EXPECT(dlerror());
    EXPECT(!dlsym(driver(), "cuMemAlloc")); /* with 32-bit sizes: this driver has none */
    EXPECT(dlsym(RTLD_DEFAULT, "curl_easy_init") == NULL);
    EXPECT(dlsym(RTLD_DEFAULT, "printf") == (void *)printf);
}

/* RTLD_NEXT asks for what comes after the caller: in the program itself that is the preload, as for a call by symbol. */
ON_CARD(by_dlsym_of_what_comes_next)
{
    expect_served(dlsym(RTLD_NEXT, "cuMemAlloc_v2"), dlsym(RTLD_NEXT, "cuMemFree_v2"));
    EXPECT(dlsym(RTLD_NEXT, "malloc"));
}

/* The C library's dlsym has a version, and by that a program finds it past any other. What it looks up then is served all the same. */
ON_CARD(by_dlvsym)
{
    typedef void *(*lookup_fn)(void *, const char *);
    void *library = dlopen("libdl.so.2", RTLD_NOW); /* of newer C libraries empty, with libc.so.6 behind it */
    REQUIRE(library);
    void *ways[] = {dlvsym(library, "dlsym", OLDEST), dlsym(library, "dlsym"), dlvsym(RTLD_NEXT, "dlsym", OLDEST),
                    dlvsym(RTLD_DEFAULT, "dlsym", OLDEST)};
    for (int i = 0; i < 4; i++) {
        REQUIRE(ways[i]);
        lookup_fn own = FUNCTION(lookup_fn, ways[i]);
        expect_served(own(driver(), "cuMemAlloc_v2"), own(driver(), "cuMemFree_v2"));
    }
    EXPECT(!dlvsym(driver(), "cuNoSuchFunction", OLDEST));
    EXPECT(!dlvsym(library, "printf", "GLIBC_99"));
    EXPECT(dlvsym(RTLD_NEXT, "malloc", OLDEST));
}

/* What gets past LD_PRELOAD: docs/preload.md says so. */
static void expect_the_drivers(void *alloc, void *give)
{
    CUdeviceptr at = 0;
    REQUIRE(alloc && give);
    DONE(FUNCTION(alloc_fn, alloc)(&at, 5 * MIB));
    EXPECT(!is_ours(at));
    DONE(FUNCTION(free_fn, give)(at));
    EXPECT(!is_ours(at));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* A library that is loaded so looks for symbols in itself and in what it is linked to, before the rest of the process. A sanitizer refuses to
 * load one so. */
ON_CARD(by_a_library_with_symbols_of_its_own)
{
    char path[512] = "";
    REQUIRE(readlink("/proc/self/exe", path, sizeof path - 32) > 0);
    strcpy(strrchr(path, '/'), "/libpreload-guest.so");
    void *guest = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    REQUIRE(guest);
    expect_the_drivers(dlsym(guest, "guest_alloc"), dlsym(guest, "guest_free"));
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    REQUIRE(library);
    EXPECT_EQ(library, driver());
    expect_served(dlsym(library, "cuMemAlloc_v2"), dlsym(library, "cuMemFree_v2"));
}
#endif

ON_CARD(out_of_the_drivers_file)
{
    struct link_map *map = NULL;
    REQUIRE(!dlinfo(driver(), RTLD_DI_LINKMAP, &map));
    expect_the_drivers(out_of_the_file(map, "cuMemAlloc_v2"), out_of_the_file(map, "cuMemFree_v2"));
    EXPECT_EQ(past_the_hooks("cuMemAlloc_v2"), out_of_the_file(map, "cuMemAlloc_v2"));
}

/* A function of the program's own, which stands before all libraries: the driver knows nothing of it. */
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared, CUstream stream, void **parameters)
{
    (void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared, (void)stream;
    (void)parameters;
    return CUDA_ERROR_UNKNOWN;
}

ON_CARD(by_cuGetProcAddress_beside_a_function_of_that_name)
{
    void *found = NULL;
    EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuLaunchCooperativeKernel"), (void *)cuLaunchCooperativeKernel);
    DONE(FUNCTION(ask_fn, dlsym(driver(), "cuGetProcAddress"))("cuLaunchCooperativeKernel", &found, 13000, 0));
    EXPECT(found && found != (void *)cuLaunchCooperativeKernel);
}

ON_CARD(by_cuGetProcAddress)
{
    ask_fn ask = FUNCTION(ask_fn, dlsym(driver(), "cuGetProcAddress"));
    ask_2_fn ask_2 = FUNCTION(ask_2_fn, dlsym(driver(), "cuGetProcAddress_v2"));
    REQUIRE(ask && ask_2);
    cuuint64_t flags[] = {CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_LEGACY_STREAM, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
    int versions[] = {3020, 11030, 12000, 13000};
    for (int f = 0; f < 3; f++)
        for (int v = 0; v < 4; v++) {
            CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
            void *alloc = NULL, *give = NULL;
            DONE(ask("cuMemAlloc", &alloc, versions[v], flags[f]));
            DONE(ask_2("cuMemFree", &give, versions[v], flags[f], &status));
            EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
            expect_served(alloc, give);
        }
    void *none = &none;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    DONE(ask_2("cuMemAllocAsync", &none, 3020, 0, &status));
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    EXPECT(!none);
    EXPECT(ask_2("cuMemAlloc", NULL, 3020, 0, &status) != CUDA_SUCCESS);
    EXPECT(ask(NULL, &none, 3020, 0) != CUDA_SUCCESS);
}

/* The function that asks is asked for, as the CUDA runtime does. */
ON_CARD(by_cuGetProcAddress_from_itself)
{
    void *first = NULL, *second = NULL, *alloc = NULL, *give = NULL;
    CUdriverProcAddressQueryResult status;
    DONE(cuGetProcAddress("cuGetProcAddress", &first, 12000, 0, &status));
    DONE(FUNCTION(ask_2_fn, first)("cuGetProcAddress", &second, 11030, 0, &status));
    DONE(FUNCTION(ask_fn, second)("cuMemAlloc", &alloc, 3020, 0));
    DONE(FUNCTION(ask_2_fn, first)("cuMemFree", &give, 3020, 0, &status));
    expect_served(alloc, give);
}

/* The stream 0 of the per-thread form is another one than that of the legacy form: it does not wait for blocking streams, nor they for it. */
ON_CARD(per_thread_forms)
{
    void *legacy[2], *thread[2];
    CUdeviceptr at = 0;
    CUdriverProcAddressQueryResult status;
    cenote_block block;
    const char *names[] = {"cuMemAllocAsync", "cuMemFreeAsync"};
    for (int i = 0; i < 2; i++) {
        DONE(cuGetProcAddress(names[i], &legacy[i], 11020, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status));
        DONE(cuGetProcAddress(names[i], &thread[i], 11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    }
    EXPECT(legacy[0] != thread[0]);
    EXPECT_EQ(thread[0], dlsym(driver(), "cuMemAllocAsync_ptsz"));
    DONE(FUNCTION(alloc_async_fn, thread[0])(&at, MIB, NULL));
    DONE(cenote_find((void *)(uintptr_t)at, &block));
    EXPECT_EQ(block.stream, CU_STREAM_PER_THREAD);
    DONE(FUNCTION(free_async_fn, thread[1])(at, NULL));
    DONE(FUNCTION(alloc_async_fn, legacy[0])(&at, MIB, NULL));
    DONE(cenote_find((void *)(uintptr_t)at, &block));
    EXPECT_EQ(block.stream, NULL);
    DONE(FUNCTION(free_async_fn, legacy[1])(at, NULL));
    EXPECT_EQ(driver_allocations(), 0);
}

/* Pools of cenote that live on memory of cuMemAlloc or of a driver's pool take it from the driver, not from themselves; so does their thread. */
static void serve_from(const char *conf, bool has_allocations)
{
    setenv("CENOTE_CONF", conf, 1);
    card_open(CAPACITY, 1);
    for (int i = 0; i < 4; i++) {
        struct held plain = plain_take(20 * MIB, card.stream[A]), other = stream_take(9 * MIB, card.stream[A]);
        REQUIRE(plain.at && other.at);
        EXPECT(is_ours(at_of(&plain)) && is_ours(at_of(&other)));
        EXPECT_EQ(driver_allocations() > 0, has_allocations);
        held_expect(&plain, card.stream[A]);
        held_expect(&other, card.stream[A]);
        DONE(cuMemFreeAsync(at_of(&other), card.stream[A]));
        DONE(cuMemFree(at_of(&plain)));
        usleep(3000); /* the background thread gives back what it finds; what the test expects does not depend on that */
    }
    card_close();
}

ENDS_WITH(cenotes_own_calls_of_cuMemAlloc, 0) { serve_from("provider:plain,decay_ms:1,background:1", true); }
ENDS_WITH(cenotes_own_calls_of_a_drivers_pool, 0) { serve_from("provider:async,decay_ms:1,background:1", true); }
ENDS_WITH(cenotes_own_calls_of_pages, 0) { serve_from("provider:vmm,decay_ms:1,background:1", false); }

/* --- many threads come first */

#define THREADS 12

static pthread_barrier_t together;

static void *come_first(void *number)
{
    CUdeviceptr at = 0;
    CUcontext context;
    pthread_barrier_wait(&together);
    void *alloc = dlsym(driver(), "cuMemAlloc_v2");
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxPushCurrent(context))
        return number;
    for (int i = 0; i < 20; i++) {
        if (FUNCTION(alloc_fn, alloc)(&at, ((uintptr_t)number + (unsigned)i) * 40 * KIB) || !is_ours(at))
            return number;
        if (cuMemFree(at))
            return number;
    }
    return NULL;
}

ENDS_WITH(many_threads_come_first, 0)
{
    pthread_t threads[THREADS];
    struct sim_shape shape = scene_card(CAPACITY);
    sim_reset(&shape);
    REQUIRE(!pthread_barrier_init(&together, NULL, THREADS));
    for (uintptr_t i = 0; i < THREADS; i++)
        REQUIRE(!pthread_create(&threads[i], NULL, come_first, (void *)(i + 1)));
    for (int i = 0; i < THREADS; i++) {
        void *failed = NULL;
        pthread_join(threads[i], &failed);
        EXPECT(!failed);
    }
    EXPECT_EQ(driver_allocations(), 0);
    struct sim_books books;
    sim_books(&books);
    EXPECT_EQ(books.violations, 0);
}

/* --- off */

ENDS_WITH(switched_off, 0)
{
    CUdeviceptr at = 0, async = 0;
    setenv("CENOTE_PRELOAD", "off", 1);
    card_open(CAPACITY, 1);
    DONE(cuMemAlloc(&at, 5 * MIB));
    DONE(FUNCTION(alloc_async_fn, dlsym(driver(), "cuMemAllocAsync"))(&async, 5 * MIB, card.stream[A]));
    EXPECT(!is_ours(at) && !is_ours(async));
    EXPECT_EQ(driver_allocations(), 2);
    DONE(cuMemFree(at));
    DONE(cuMemFreeAsync(async, card.stream[A]));
    card_close();
}

PRELOAD_MAIN("routes")
