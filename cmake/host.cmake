# libcenote_host.so: pinned host memory. It links hwloc, and finds jemalloc when the program runs (host/jemalloc.c).
# Where hwloc is not installed everything else is built without it.

find_library(CENOTE_HWLOC hwloc)
find_path(CENOTE_HWLOC_INCLUDE hwloc.h)
find_library(CENOTE_JEMALLOC jemalloc) # for our own programs; the library finds it at run time
if(NOT CENOTE_HWLOC OR NOT CENOTE_HWLOC_INCLUDE)
    message(STATUS "no hwloc (Debian: libhwloc-dev): libcenote_host.so, pinned host memory, is left out")
    return()
endif()

file(GLOB host_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/host/*.c)
add_library(cenote_host_objects OBJECT ${host_sources} ${CMAKE_SOURCE_DIR}/driver/topology.c)
target_include_directories(cenote_host_objects SYSTEM PRIVATE ${CENOTE_HWLOC_INCLUDE})
target_link_libraries(cenote_host_objects PRIVATE cenote_flags)
# Counts that are written one by one are not to be read in pairs: the processor would wait for each.
target_compile_options(cenote_host_objects PRIVATE -fvisibility=hidden -fno-tree-slp-vectorize)

# What it uses of base/, driver/ and stats/text/quantity.c it holds a copy of, hidden: it does not need libcenote.so.
set(host_exports ${CMAKE_SOURCE_DIR}/host/cenote_host.map)
add_library(cenote_host SHARED $<TARGET_OBJECTS:cenote_host_objects>)
target_include_directories(cenote_host INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(cenote_host PRIVATE $<BUILD_INTERFACE:cenote_inside> ${CENOTE_HWLOC} Threads::Threads ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:cenote_flags>)
target_link_options(cenote_host PRIVATE -Wl,--version-script=${host_exports} -Wl,--as-needed)
set_target_properties(cenote_host PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${host_exports} LINKER_LANGUAGE C)
add_dependencies(cenote_library cenote_host)

# For tests, which look inside.
add_library(cenote_host_inside STATIC $<TARGET_OBJECTS:cenote_host_objects>)
target_link_libraries(cenote_host_inside PUBLIC cenote_inside ${CENOTE_HWLOC} Threads::Threads ${CMAKE_DL_LIBS})
if(CENOTE_JEMALLOC)
    target_link_options(cenote_host_inside INTERFACE -Wl,--no-as-needed)
    target_link_libraries(cenote_host_inside INTERFACE ${CENOTE_JEMALLOC})
endif()
