# cenote_flags: how everything of ours is compiled. Include roots are the repository, include/ and the folder of cuda.h.

add_library(cenote_flags INTERFACE)
target_include_directories(cenote_flags INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/include)
target_include_directories(cenote_flags SYSTEM INTERFACE ${CENOTE_CUDA_INCLUDE})
target_compile_definitions(cenote_flags INTERFACE _GNU_SOURCE CENOTE_DEBUG=${CENOTE_DEBUG})
target_compile_options(cenote_flags INTERFACE
    -Wall -Wextra -Wshadow
    $<$<COMPILE_LANGUAGE:C>:-std=c11 -Wstrict-prototypes -Wmissing-prototypes>
    # A check that fails names its file as the repository knows it. A compiler cache makes paths relative to the folder that it compiles in, which
    # the Makefile has one level below the repository. Of two that fit the last one counts.
    -ffile-prefix-map=../= -ffile-prefix-map=../../= -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)

# Counters that lie side by side are not read and written as one vector: a processor does not forward two stores to one load, and each allocation
# writes counters that the next free reads some ten nanoseconds later.
target_compile_options(cenote_flags INTERFACE -fno-tree-slp-vectorize)

if(CENOTE_WERROR)
    target_compile_options(cenote_flags INTERFACE -Werror)
endif()

if(CENOTE_SANITIZE)
    target_compile_options(cenote_flags INTERFACE -fsanitize=${CENOTE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(cenote_flags INTERFACE -fsanitize=${CENOTE_SANITIZE})
endif()

# Fat objects, so that libcenote.a serves linkers and compilers that know nothing of ours. clang has none.
if(CENOTE_LTO AND CMAKE_C_COMPILER_ID STREQUAL GNU)
    target_compile_options(cenote_flags INTERFACE -flto=auto -ffat-lto-objects)
    target_link_options(cenote_flags INTERFACE -flto=auto)
endif()
