# libcenote.so and libcenote.a, from the layers in order. No libcuda and no libcudart: the driver is loaded at run time.

set(library_sources)
foreach(layer base driver stats/text pool/core pool/life pool/clock stats/account pool/provider pool/arenas pool/mapping pool/shortage pool/calls pool/sleep share
    pool/policy stats/report pool)
    file(GLOB layer_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${layer}/*.c)
    list(APPEND library_sources ${layer_sources})
endforeach()
list(APPEND library_sources ${CMAKE_SOURCE_DIR}/stats/records/writer.c)
list(FILTER library_sources EXCLUDE REGEX "/driver/topology\\.c$") # hwloc: cmake/host.cmake

# Reports run once in a while, and their text is most of their work; what sleeps and wakes waits for the driver; pools are made and end
# once, memory is shared seldom: for them size is worth more than speed.
file(GLOB rare_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/stats/report/*.c ${CMAKE_SOURCE_DIR}/pool/sleep/*.c)
list(APPEND rare_sources ${CMAKE_SOURCE_DIR}/pool/library.c ${CMAKE_SOURCE_DIR}/pool/careful.c ${CMAKE_SOURCE_DIR}/stats/text/options.c
    ${CMAKE_SOURCE_DIR}/stats/text/explain.c ${CMAKE_SOURCE_DIR}/share/import.c ${CMAKE_SOURCE_DIR}/share/socket.c ${CMAKE_SOURCE_DIR}/share/export.c
    ${CMAKE_SOURCE_DIR}/driver/fault.c ${CMAKE_SOURCE_DIR}/driver/trace.c ${CMAKE_SOURCE_DIR}/pool/shortage/left.c
    ${CMAKE_SOURCE_DIR}/pool/shortage/ask.c ${CMAKE_SOURCE_DIR}/pool/calls/capture.c ${CMAKE_SOURCE_DIR}/pool/calls/reset_group.c
    ${CMAKE_SOURCE_DIR}/share/lend.c ${CMAKE_SOURCE_DIR}/share/wants.c ${CMAKE_SOURCE_DIR}/share/letters.c ${CMAKE_SOURCE_DIR}/share/owner.c
    ${CMAKE_SOURCE_DIR}/pool/life/prove.c ${CMAKE_SOURCE_DIR}/pool/core/pages_check.c ${CMAKE_SOURCE_DIR}/pool/core/heap_check.c
    ${CMAKE_SOURCE_DIR}/driver/loader.c ${CMAKE_SOURCE_DIR}/driver/probe.c ${CMAKE_SOURCE_DIR}/base/file.c ${CMAKE_SOURCE_DIR}/stats/text/print.c
    ${CMAKE_SOURCE_DIR}/pool/mapping/peer_access.c)
set_source_files_properties(${rare_sources} PROPERTIES COMPILE_OPTIONS "$<$<CONFIG:Release>:-Os>")

add_library(cenote_objects OBJECT ${library_sources})
target_link_libraries(cenote_objects PRIVATE cenote_flags)
target_compile_options(cenote_objects PRIVATE -fvisibility=hidden)

set(exports ${CMAKE_SOURCE_DIR}/pool/cenote.map)
add_library(cenote_shared SHARED $<TARGET_OBJECTS:cenote_objects>)
target_link_options(cenote_shared PRIVATE -Wl,--version-script=${exports} -Wl,--as-needed)
if(NOT CENOTE_SANITIZE) # a sanitizer's functions come with the program
    target_link_options(cenote_shared PRIVATE -Wl,-z,defs)
endif()
set_target_properties(cenote_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${exports})

# libcenote.a is one object in which hidden names are local, so that our heap_take does not meet a program's. Machine code only: it serves
# any compiler.
set(whole ${CMAKE_BINARY_DIR}/cenote_whole.o)
add_custom_command(OUTPUT ${whole} # ld.lld makes another name of one with a % in it: so the folder is not named
    COMMAND ${CMAKE_LINKER} -r -o cenote_whole.o $<TARGET_OBJECTS:cenote_objects>
    COMMAND ${CMAKE_OBJCOPY} --localize-hidden --remove-section=.gnu.lto_* cenote_whole.o
    WORKING_DIRECTORY ${CMAKE_BINARY_DIR}
    DEPENDS cenote_objects $<TARGET_OBJECTS:cenote_objects>
    COMMAND_EXPAND_LISTS VERBATIM)
add_library(cenote_static STATIC ${whole})

foreach(library cenote_shared cenote_static)
    target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${library} PRIVATE Threads::Threads ${CMAKE_DL_LIBS} $<BUILD_INTERFACE:cenote_flags>)
    set_target_properties(${library} PROPERTIES OUTPUT_NAME cenote LINKER_LANGUAGE C)
endforeach()
set_target_properties(cenote_shared PROPERTIES EXPORT_NAME cenote)

# What a program in C links; cmake/host.cmake adds its own.
add_custom_target(cenote_library DEPENDS cenote_shared cenote_static)

# For our own tests and programs, which look inside.
add_library(cenote_inside STATIC $<TARGET_OBJECTS:cenote_objects>)
target_link_libraries(cenote_inside PRIVATE Threads::Threads ${CMAKE_DL_LIBS} cenote_flags)

# Branches are counted where they are taken, in a file that a process shares with its forks: tools/coverage/run. clang alone has it.
if(CENOTE_COVERAGE)
    target_compile_options(cenote_objects PRIVATE -fprofile-instr-generate -fcoverage-mapping "SHELL:-mllvm -runtime-counter-relocation")
    target_link_options(cenote_shared PRIVATE -fprofile-instr-generate)
    target_link_options(cenote_static INTERFACE -fprofile-instr-generate)
    target_link_options(cenote_inside INTERFACE -fprofile-instr-generate)
endif()
