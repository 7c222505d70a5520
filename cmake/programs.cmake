# Programs, all in build/bin: a folder is a program. They run on the simulated GPU where they name it, and on the real driver otherwise.

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

# The simulated GPU comes first for whatever is linked to it: --no-as-needed because nothing but dlopen may ask for it, old dtags because
# a machine with a GPU may name the real driver in LD_LIBRARY_PATH.
add_library(cenote_on_sim INTERFACE)
if(TARGET cenote_sim)
    target_link_options(cenote_on_sim INTERFACE -Wl,--no-as-needed,--disable-new-dtags)
    target_link_libraries(cenote_on_sim INTERFACE cenote_sim)
endif()

# Traces are read by a library of its own: what allocates reads none.
add_library(cenote_records STATIC ${CMAKE_SOURCE_DIR}/stats/records/reader.c)
target_link_libraries(cenote_records PRIVATE cenote_flags PUBLIC cenote_inside)

# The same for Python: `cenote replay`, by ctypes.
add_library(cenote_records_module MODULE ${CMAKE_SOURCE_DIR}/stats/records/reader.c)
target_link_libraries(cenote_records_module PRIVATE cenote_flags cenote_inside)
target_link_options(cenote_records_module PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(cenote_records_module PROPERTIES OUTPUT_NAME cenote_records)

# cenote_program(NAME FOLDER [SHARED...]): every .c file of FOLDER, and the SHARED ones, are the program NAME, on the simulated GPU.
function(cenote_program name folder)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.c)
    if(sources AND TARGET cenote_sim)
        add_executable(${name} ${sources} ${ARGN})
        target_link_libraries(${name} PRIVATE cenote_flags cenote_records cenote_inside cenote_on_sim m)
    endif()
endfunction()

cenote_program(cenote-replay tools/replay)
set(replay ${CMAKE_SOURCE_DIR}/tools/replay)
cenote_program(cenote-fuzz tools/waste ${replay}/replay.c ${replay}/torch.c ${replay}/trace.c ${CMAKE_SOURCE_DIR}/bench/common.c)
cenote_program(cenote-traces traces)

# The one program that is for real GPUs: it finds whichever driver is there, and needs cuda.h alone.
file(GLOB qualify CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/qualify/*.c)
add_executable(cenote-qualify ${qualify})
target_link_libraries(cenote-qualify PRIVATE cenote_flags cenote_inside)

# What the driver answers when: a real one's too, and nothing of cenote. The source package does not have it.
file(GLOB ask CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/ask/*.c)
if(ask)
    add_executable(cenote-ask ${ask})
    target_link_libraries(cenote-ask PRIVATE cenote_flags)
endif()

file(GLOB bench_shared CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/bench/*.c)
file(GLOB benches CONFIGURE_DEPENDS LIST_DIRECTORIES true ${CMAKE_SOURCE_DIR}/bench/*)
foreach(folder ${benches})
    get_filename_component(name ${folder} NAME)
    cenote_program(bench-${name} bench/${name} ${bench_shared})
endforeach()

if(TARGET bench-preload) # it starts itself again with them
    add_dependencies(bench-preload cenote_preload)
endif()

# The yardstick of bench/pair. Only this program knows it.
if(TARGET bench-pair)
    find_library(CENOTE_JEMALLOC jemalloc)
    if(CENOTE_JEMALLOC)
        target_compile_definitions(bench-pair PRIVATE HAVE_JEMALLOC)
        target_link_libraries(bench-pair PRIVATE ${CENOTE_JEMALLOC})
    endif()
endif()

# Examples use what a user has: the public header, cuda.h and the shared library. A folder is one program.
function(cenote_example name)
    add_executable(example-${name} ${ARGN})
    target_link_libraries(example-${name} PRIVATE cenote_flags cenote_shared cenote_on_sim)
endfunction()

file(GLOB examples CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/examples/*.c)
file(GLOB tiny_runtime CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/examples/tiny_runtime/*.c)
file(GLOB tensor_cache CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/examples/cpp/tensor_cache.cpp)
if(TARGET cenote_sim)
    if(tiny_runtime) # a source package has no examples
        cenote_example(tiny-runtime ${tiny_runtime})
    endif()
    if(tensor_cache)
        cenote_example(cpp ${tensor_cache})
        target_compile_features(example-cpp PRIVATE cxx_std_17)
    endif()
    foreach(source ${examples})
        get_filename_component(name ${source} NAME_WE)
        if(name STREQUAL pinned AND NOT (TARGET cenote_host AND CENOTE_JEMALLOC))
            continue()
        endif()
        cenote_example(${name} ${source})
        if(name STREQUAL pinned) # cenote_on_sim links what nothing asks for by name: jemalloc has to be there from the start
            target_link_libraries(example-pinned PRIVATE cenote_host ${CENOTE_JEMALLOC})
        endif()
    endforeach()
endif()
