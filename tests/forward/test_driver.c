/* test_driver.c: the driver in a cache of ldconfig, which the forwarding libcuda.so.1 reads as the dynamic linker does. */
#include "plugins/forward/driver.c" /* with a cache of the test's own */

#include "tests/harness.h"

void *real_dlsym(void *handle, const char *name)
{
    return dlsym(handle, name);
}

static char folder[512], sim[512];

static void cache_file(char path[600], const char *name)
{
    snprintf(path, 600, "%s/%s", folder, name);
}

/* One that ldconfig makes of the folder of the simulated driver. False: there is no ldconfig here. */
static bool make_cache(const char *path, const char *format)
{
    char command[2400], configuration[600];
    cache_file(configuration, "conf");
    snprintf(command, sizeof command, "PATH=$PATH:/sbin:/usr/sbin; echo '%s' > '%s' && ldconfig -X -c %s -C '%s' -f '%s' 2>/dev/null", sim,
             configuration, format, path, configuration);
    return system(command) == 0;
}

static void open_folder(void)
{
    if (*folder)
        return;
    strcpy(folder, "/tmp/cenote-cache-XXXXXX");
    REQUIRE(mkdtemp(folder));
    ssize_t length = readlink("/proc/self/exe", sim, sizeof sim - 8);
    REQUIRE(length > 0);
    for (int i = 0; i < 2; i++)
        *strrchr(sim, '/') = 0;
    strcat(sim, "/sim");
}

CASE(a_cache_of_ldconfig)
{
    static const char *const formats[] = {"new", "compat"};
    char path[600];
    open_folder();
    cache_file(path, "cache");
    for (int i = 0; i < 2; i++) {
        if (!make_cache(path, formats[i]))
            exit(77);
        void *library = in_the_cache(path);
        EXPECT(library);
        EXPECT(library && dlsym(library, "sim_books"));
    }
}

/* Nor is a library that is no driver. */
CASE(ours_is_no_driver)
{
    char path[600];
    open_folder();
    snprintf(path, sizeof path, "%s/libcuda.so.1", sim);
    EXPECT(open_file(path));
    snprintf(path, sizeof path, "%s/../forward/libcuda.so.1", sim);
    REQUIRE(!access(path, R_OK));
    EXPECT(!open_file(path));
    EXPECT(!open_file("libc.so.6"));
    EXPECT(!open_file("/nowhere/libcuda.so.1"));
}

/* A file that is no cache, one that ends early, and none. */
CASE(damaged_caches)
{
    char path[600], command[2000];
    open_folder();
    cache_file(path, "cache");
    if (!make_cache(path, "new"))
        exit(77);
    for (int length = 0; length < 300; length += 7) {
        snprintf(command, sizeof command, "truncate -s %d '%s'", 300 - length, path);
        REQUIRE(!system(command));
        in_the_cache(path);
    }
    EXPECT(!in_the_cache(path));
    EXPECT(!in_the_cache("/nowhere/cache"));
    EXPECT(!in_the_cache("/proc/self/exe"));
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    EXPECT(!system(command));
}

SUITE_MAIN("forward: the driver")
