# cenote for programs that know nothing of it: libcenote_preload.so, by LD_PRELOAD, and in a folder of its own a libcuda.so.1 that stands in front of
# the driver's. Both are the same files but for the way to the driver. libcenote.so serves both: one cenote in the process, also where the program uses
# cenote itself.

enable_language(ASM)
set(by_preload lookups.c dlsym.S)
list(TRANSFORM by_preload PREPEND ${CMAKE_SOURCE_DIR}/plugins/preload/)
file(GLOB serving_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/plugins/preload/*.c)
list(REMOVE_ITEM serving_sources ${by_preload})
# A sanitizer calls dlsym, and so these, before it has set up what its code needs.
if(CENOTE_SANITIZE)
    foreach(file clib.c lookups.c routes.c real.c)
        set_source_files_properties(${CMAKE_SOURCE_DIR}/plugins/preload/${file} PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all")
    endforeach()
endif()
add_library(cenote_serving OBJECT ${serving_sources} ${CMAKE_SOURCE_DIR}/base/check.c ${CMAKE_SOURCE_DIR}/base/thread_number.c)
target_compile_options(cenote_serving PRIVATE -fvisibility=hidden)
target_link_libraries(cenote_serving PRIVATE cenote_flags)

# serving_library(target exports folder sources...): `folder` leads from the library's folder to that of libcenote.so.
function(serving_library target exports folder)
    add_library(${target} SHARED $<TARGET_OBJECTS:cenote_serving> ${ARGN})
    target_compile_options(${target} PRIVATE -fvisibility=hidden)
    target_link_libraries(${target} PRIVATE cenote_shared Threads::Threads ${CMAKE_DL_LIBS} cenote_flags)
    target_link_options(${target} PRIVATE -Wl,--version-script=${exports})
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C LINK_DEPENDS ${exports}
        BUILD_RPATH "$ORIGIN${folder}" INSTALL_RPATH "$ORIGIN${folder}" BUILD_RPATH_USE_ORIGIN ON)
    add_dependencies(cenote_library ${target})
endfunction()

serving_library(cenote_preload ${CMAKE_SOURCE_DIR}/plugins/preload/preload.map "" ${by_preload})
# A library of the program's that stands before it, with functions of the same names, gets what it would get before the driver: not the answers of
# cuGetProcAddress.
target_link_options(cenote_preload PRIVATE -Wl,-Bsymbolic-functions)

# Never on a path where libraries are looked for by default. nodelete: a program holds addresses of it, and the process calls it at a fork. Bsymbolic:
# it may be loaded after the driver, whose names it has.
set(forward_sources driver.c stubs.c stubs.S)
list(TRANSFORM forward_sources PREPEND ${CMAKE_SOURCE_DIR}/plugins/forward/)
serving_library(cenote_forward ${CMAKE_SOURCE_DIR}/plugins/forward/forward.map "/.." ${forward_sources})
target_link_options(cenote_forward PRIVATE -Wl,-soname,libcuda.so.1 -Wl,-z,nodelete -Wl,-Bsymbolic)
set_source_files_properties(${CMAKE_SOURCE_DIR}/plugins/forward/stubs.S PROPERTIES OBJECT_DEPENDS ${CMAKE_SOURCE_DIR}/plugins/forward/names.def)
set_target_properties(cenote_forward PROPERTIES PREFIX "" OUTPUT_NAME libcuda SUFFIX .so.1 NO_SONAME ON
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/forward)
add_library(cenote_forward_unversioned SHARED ${CMAKE_SOURCE_DIR}/plugins/forward/unversioned.c)
target_link_options(cenote_forward_unversioned PRIVATE -Wl,--no-as-needed)
target_link_libraries(cenote_forward_unversioned PRIVATE cenote_forward cenote_flags)
set_target_properties(cenote_forward_unversioned PROPERTIES OUTPUT_NAME cuda LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/forward
    BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN" BUILD_RPATH_USE_ORIGIN ON)
add_dependencies(cenote_library cenote_forward_unversioned)
