# cenote for programs that know nothing of it, by LD_PRELOAD: libcenote_preload.so. libcenote.so serves both: one cenote in the process, also where the
# program uses cenote itself.

enable_language(ASM)
file(GLOB preload_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/plugins/preload/*.c ${CMAKE_SOURCE_DIR}/plugins/preload/*.S)
# A sanitizer calls dlsym, and so these, before it has set up what its code needs.
if(CENOTE_SANITIZE)
    foreach(file clib.c lookups.c routes.c real.c)
        set_source_files_properties(${CMAKE_SOURCE_DIR}/plugins/preload/${file} PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all")
    endforeach()
endif()
set(preload_exports ${CMAKE_SOURCE_DIR}/plugins/preload/preload.map)
add_library(cenote_preload SHARED ${preload_sources} ${CMAKE_SOURCE_DIR}/base/check.c ${CMAKE_SOURCE_DIR}/base/thread_number.c)
target_compile_options(cenote_preload PRIVATE -fvisibility=hidden)
target_link_libraries(cenote_preload PRIVATE cenote_shared Threads::Threads ${CMAKE_DL_LIBS} cenote_flags)
# A library of the program's that stands before it, with functions of the same names, gets what it would get before the driver: not the answers of
# cuGetProcAddress.
target_link_options(cenote_preload PRIVATE -Wl,--version-script=${preload_exports} -Wl,-Bsymbolic-functions)
set_target_properties(cenote_preload PROPERTIES LINKER_LANGUAGE C LINK_DEPENDS ${preload_exports}
    BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN" BUILD_RPATH_USE_ORIGIN ON)
add_dependencies(cenote_library cenote_preload)
