# What `cenote dry-run` preloads beside libcenote_sim.so, and in its folder: libcenote_files.so, which keeps the files of before (plugins/files/). It
# stands before the C library in every process: so it is compiled without sanitizers, and needs nothing but the C library.
file(GLOB files_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/plugins/files/*.c)
add_library(cenote_files SHARED ${files_sources})
target_include_directories(cenote_files PRIVATE ${CMAKE_SOURCE_DIR})
target_compile_definitions(cenote_files PRIVATE _GNU_SOURCE)
target_compile_options(cenote_files PRIVATE -std=c11 -Wall -Wextra -Wshadow -Wstrict-prototypes -fvisibility=hidden -U_FORTIFY_SOURCE
    $<$<BOOL:${CENOTE_WERROR}>:-Werror>)
target_link_libraries(cenote_files PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(cenote_files PRIVATE -Wl,-z,nodelete -Wl,-Bsymbolic-functions)
set_target_properties(cenote_files PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/sim)
if(TARGET cenote_sim_all)
    add_dependencies(cenote_sim_all cenote_files)
endif()
