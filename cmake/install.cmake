# `make install`: headers and tables, both libraries, find_package(cenote) and pkg-config.

include(CMakePackageConfigHelpers)

install(DIRECTORY include/cenote DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h PATTERN *.hpp PATTERN *.def)
install(TARGETS cenote_shared cenote_static EXPORT cenote LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/cenote)
install(EXPORT cenote NAMESPACE cenote:: FILE cenote-targets.cmake DESTINATION ${package_folder})
configure_package_config_file(cmake/cenote-config.cmake.in ${CMAKE_BINARY_DIR}/cenote-config.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/cenote-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/cenote-config.cmake ${CMAKE_BINARY_DIR}/cenote-config-version.cmake DESTINATION ${package_folder})

# From the folder of cenote.pc up to the prefix, so that an installed tree may move.
file(RELATIVE_PATH pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/cenote.pc.in ${CMAKE_BINARY_DIR}/cenote.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/cenote.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Pinned host memory, where it was built. Not in find_package: a program needs jemalloc beside it (docs/host-memory.md).
if(TARGET cenote_host)
    install(TARGETS cenote_host LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

# By LD_PRELOAD, beside libcenote.so (docs/preload.md). A program does not link it.
install(TARGETS cenote_preload LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})

# For compute-sanitizer: libcenote.so loads it.
if(TARGET cenote_nvtx)
    install(TARGETS cenote_nvtx LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
