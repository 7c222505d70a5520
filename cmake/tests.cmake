# Tests: each tests/<folder>/test_*.c, or .cpp, is a program and a ctest of the same name; the folder is its label. Other .c files of the folder are
# linked into all of its tests. tests/<folder>/test_*.sh is a ctest too and finds the programs in $CENOTE_BIN; 77 says "not possible here".

find_library(CENOTE_CUNIT cunit)
if(NOT CENOTE_CUNIT)
    message(FATAL_ERROR "CUnit was not found; `tools/setup` installs it (Debian: libcunit1-dev). -DCENOTE_TESTS=OFF builds without tests.")
endif()

# Tests see all simulated GPUs, whatever the user's CUDA_VISIBLE_DEVICES says.
set(test_sees_all ENVIRONMENT_MODIFICATION "CUDA_VISIBLE_DEVICES=unset:")

# CCCL's headers, for tests of cenote/mr.hpp: what tools/setup puts into .venv/cpp, or the CUDA Toolkit's.
find_path(CENOTE_CCCL_INCLUDE cuda/buffer PATHS ${CMAKE_SOURCE_DIR}/.venv/cpp/nvidia/cu13/include/cccl ${CENOTE_CUDA_INCLUDE}/cccl NO_DEFAULT_PATH)

# How the sources of tests are compiled, in a fourth of the time that -O2 -g takes: the product decides how long a test runs, not the test. But
# a random test of one room compares it with a slow model of its own.
add_library(test_flags INTERFACE)
target_link_libraries(test_flags INTERFACE cenote_flags)
target_compile_options(test_flags INTERFACE -O0 -g1)
file(GLOB models CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/*/test_*_random.c ${CMAKE_SOURCE_DIR}/tests/pool/test_ranges.c)
set_source_files_properties(${models} PROPERTIES COMPILE_OPTIONS -O1) # of two the last one counts, and a source's come last

# What several programs have in common is compiled once: compiled for each, it was a third of all that is compiled.
add_library(test-forked OBJECT ${CMAKE_SOURCE_DIR}/tests/forked.c)
target_link_libraries(test-forked PRIVATE test_flags)

function(cenote_test source folder)
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE test_ "" name ${name})
    set(program test-${folder}-${name})
    add_executable(${program} ${source} $<TARGET_OBJECTS:test-forked>)
    if(TARGET test-helpers-${folder})
        target_sources(${program} PRIVATE $<TARGET_OBJECTS:test-helpers-${folder}>)
    endif()
    if(folder STREQUAL preload) # a program that knows the driver alone: it runs with libcenote_preload.so (tests/preload/preloaded.c)
        target_link_libraries(${program} PRIVATE test_flags cenote_shared cenote_on_sim ${CENOTE_CUNIT} ${CMAKE_DL_LIBS} m)
        add_dependencies(${program} cenote_preload)
    else()
        target_link_libraries(${program} PRIVATE test_flags cenote_records cenote_inside cenote_on_sim ${CENOTE_CUNIT} m)
    endif()
    if(source MATCHES "\\.cpp$") # headers of C give a struct and a function one name
        target_compile_features(${program} PRIVATE cxx_std_17)
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-Wno-shadow;$<$<CXX_COMPILER_ID:GNU>:-Wno-format-truncation>") # after -Wshadow
    endif()
    if(source MATCHES "/test_resource")
        get_property(simulated GLOBAL PROPERTY SIMULATED_LIBRARIES)
        target_link_libraries(${program} PRIVATE ${simulated})
        target_include_directories(${program} SYSTEM PRIVATE ${CENOTE_CCCL_INCLUDE})
    endif()
    if(folder STREQUAL host)
        target_link_libraries(${program} PRIVATE cenote_host_inside)
    endif()
    if(folder STREQUAL libraries) # NVIDIA's other libraries, simulated; the program may be of one that needs the runtime
        get_property(simulated GLOBAL PROPERTY SIMULATED_LIBRARIES)
        target_link_libraries(${program} PRIVATE ${simulated})
    endif()
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME ${folder}/${name} COMMAND ${program} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${folder}/${name} PROPERTIES SKIP_RETURN_CODE 77 LABELS ${folder} ${test_sees_all})
    if(folder STREQUAL host) # at a fork jemalloc holds more locks than the thread sanitizer can count
        set_tests_properties(${folder}/${name} PROPERTIES ENVIRONMENT "TSAN_OPTIONS=detect_deadlocks=0")
    endif()
    if(folder STREQUAL libraries)
        set_tests_properties(${folder}/${name} PROPERTIES ENVIRONMENT "LSAN_OPTIONS=suppressions=tests/libraries/leaks.txt:print_suppressions=0")
    endif()
endfunction()

function(cenote_script_test source folder)
    get_filename_component(name ${source} NAME_WE)
    string(REPLACE test_ "" name ${name})
    add_test(NAME ${folder}/${name} COMMAND bash ${source} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${folder}/${name} PROPERTIES SKIP_RETURN_CODE 77 LABELS ${folder} ${test_sees_all}
        ENVIRONMENT "CENOTE_BIN=${CMAKE_BINARY_DIR}/bin;CENOTE_BUILD=${CMAKE_BINARY_DIR};CUDA_INCLUDE=${CENOTE_CUDA_INCLUDE}")
endfunction()

file(GLOB folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${CMAKE_SOURCE_DIR}/tests/*)
foreach(path ${folders})
    get_filename_component(folder ${path} NAME)
    if((folder STREQUAL libraries AND NOT TARGET cenote_sim_all) OR (folder STREQUAL host AND NOT (TARGET cenote_host AND CENOTE_JEMALLOC)))
        continue()
    endif()
    file(GLOB helpers CONFIGURE_DEPENDS ${path}/*.c)
    list(FILTER helpers EXCLUDE REGEX "/test_[^/]*$")
    file(GLOB programs CONFIGURE_DEPENDS ${path}/test_*.c ${path}/test_*.cpp)
    if(NOT (CENOTE_CCCL_INCLUDE AND TARGET cenote_sim_all))
        list(FILTER programs EXCLUDE REGEX "/test_resource")
    endif()
    if(helpers AND programs)
        add_library(test-helpers-${folder} OBJECT ${helpers})
        target_link_libraries(test-helpers-${folder} PRIVATE test_flags)
    endif()
    foreach(source ${programs})
        cenote_test(${source} ${folder})
    endforeach()
    file(GLOB scripts CONFIGURE_DEPENDS ${path}/test_*.sh)
    foreach(source ${scripts})
        cenote_script_test(${source} ${folder})
    endforeach()
endforeach()

# A library of a program's own that is linked to the driver, for one that brings its symbols with it (tests/preload).
if(TARGET cenote_sim)
    add_library(preload-guest MODULE ${CMAKE_SOURCE_DIR}/tests/preload/guest/guest.c)
    target_link_libraries(preload-guest PRIVATE cenote_flags cenote_on_sim)
    set_target_properties(preload-guest PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_dependencies(test-preload-routes preload-guest)
endif()

# A library of a program's own, for what becomes of it at the end of a process.
add_library(processes-guest MODULE ${CMAKE_SOURCE_DIR}/tests/processes/guest/guest.c)
target_link_libraries(processes-guest PRIVATE cenote_flags)
set_target_properties(processes-guest PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
add_dependencies(test-processes-exit processes-guest)

# A tool as NVIDIA's, which NVTX loads.
if(TARGET cenote_nvtx)
    add_library(test-nvtx-tool SHARED ${CMAKE_SOURCE_DIR}/tests/api/nvtx/tool.c)
    target_include_directories(test-nvtx-tool SYSTEM PRIVATE ${CENOTE_NVTX_INCLUDE})
    target_link_libraries(test-nvtx-tool PRIVATE cenote_flags ${CMAKE_DL_LIBS})
    add_dependencies(test-api-sanitize test-nvtx-tool cenote_nvtx)
    target_compile_definitions(test-api-sanitize PRIVATE NVTX_TOOL="$<TARGET_FILE:test-nvtx-tool>" NVTX_LIBRARY="$<TARGET_FILE:cenote_nvtx>")
endif()
