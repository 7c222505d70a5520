# Programs, all in build/bin: a folder is a program. They run on the simulated GPU where they name it, and on the real driver otherwise.

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

# The simulated GPU comes first for whatever is linked to it; --no-as-needed because nothing but dlopen may ask for it.
add_library(cenote_on_sim INTERFACE)
if(TARGET cenote_sim)
    target_link_options(cenote_on_sim INTERFACE -Wl,--no-as-needed)
    target_link_libraries(cenote_on_sim INTERFACE cenote_sim)
endif()

# cenote_program(NAME FOLDER): every .c file of FOLDER is the program NAME, linked to the static library and the simulated GPU.
function(cenote_program name folder)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.c)
    if(sources)
        add_executable(${name} ${sources})
        target_link_libraries(${name} PRIVATE cenote_flags cenote_static cenote_on_sim m)
    endif()
endfunction()

cenote_program(cenote-replay tools/replay)

file(GLOB benches CONFIGURE_DEPENDS LIST_DIRECTORIES true ${CMAKE_SOURCE_DIR}/bench/*)
foreach(folder ${benches})
    get_filename_component(name ${folder} NAME)
    cenote_program(bench-${name} bench/${name})
endforeach()

# The yardstick of bench/pair. Found late and linked by full path, so that only this one program knows it.
if(TARGET bench-pair)
    find_library(CENOTE_JEMALLOC jemalloc)
    if(CENOTE_JEMALLOC)
        target_compile_definitions(bench-pair PRIVATE HAVE_JEMALLOC)
        target_link_libraries(bench-pair PRIVATE ${CENOTE_JEMALLOC})
    endif()
endif()

# Examples use what a user has: the public header, cuda.h and the shared library.
file(GLOB examples CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/examples/*.c)
if(TARGET cenote_sim)
    foreach(source ${examples})
        get_filename_component(name ${source} NAME_WE)
        add_executable(example-${name} ${source})
        target_link_libraries(example-${name} PRIVATE cenote_flags cenote_shared cenote_on_sim)
    endforeach()
endif()
