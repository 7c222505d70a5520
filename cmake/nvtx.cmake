# libcenote_nvtx.so, which tells NVIDIA's tools of blocks (option sanitize), where NVTX's headers are. libcenote.so loads it.

if(CENOTE_NVTX_INCLUDE)
    add_library(cenote_nvtx SHARED ${CMAKE_SOURCE_DIR}/plugins/nvtx/nvtx.c)
    target_include_directories(cenote_nvtx SYSTEM PRIVATE ${CENOTE_NVTX_INCLUDE})
    target_compile_options(cenote_nvtx PRIVATE -fvisibility=hidden)
    target_link_libraries(cenote_nvtx PRIVATE cenote_flags ${CMAKE_DL_LIBS})
    add_dependencies(cenote_library cenote_nvtx)
endif()
