# What the Python package holds beside python/cenote: libcenote.so, headers, the simulated GPU. pyproject.toml asks for the target cenote_python
# and the component python; `make install` installs neither. build/bin/cenote is the command without an installation.

get_property(simulated GLOBAL PROPERTY SIMULATED_LIBRARIES)
get_property(names GLOBAL PROPERTY SIMULATED_NAMES)
set(simulation)
foreach(target cenote_sim cenote_sim_all ${names} ${simulated})
    if(TARGET ${target})
        list(APPEND simulation ${target})
    endif()
endforeach()

# PyTorch's allocator where no adapter can be compiled. C++, but nothing of torch.
add_library(cenote_pluggable MODULE plugins/pluggable/pluggable.cpp plugins/pluggable/pools.cpp plugins/pluggable/named.cpp
    plugins/torch/lock.cpp plugins/torch/routes.cpp) # the last two name nothing of torch either
target_include_directories(cenote_pluggable PRIVATE plugins/torch)
target_link_libraries(cenote_pluggable PRIVATE cenote_shared cenote_flags ${CMAKE_DL_LIBS})
target_compile_features(cenote_pluggable PRIVATE cxx_std_17)
set_target_properties(cenote_pluggable PROPERTIES CXX_VISIBILITY_PRESET hidden BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
add_custom_target(cenote_python DEPENDS cenote_shared cenote_pluggable ${simulation})

set(package_options COMPONENT python EXCLUDE_FROM_ALL)
foreach(target ${simulation})
    install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION cenote/sim ${package_options})
endforeach()

# A wheel has no symbolic links: the library under its soname, and for linkers a script that names it.
install(PROGRAMS $<TARGET_FILE:cenote_shared> DESTINATION cenote/lib RENAME $<TARGET_SONAME_FILE_NAME:cenote_shared> ${package_options})
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/python/libcenote.so CONTENT "INPUT($<TARGET_SONAME_FILE_NAME:cenote_shared>)\n")
if(TARGET cenote_host)
    add_dependencies(cenote_python cenote_host)
    install(PROGRAMS $<TARGET_FILE:cenote_host> DESTINATION cenote/lib RENAME $<TARGET_SONAME_FILE_NAME:cenote_host> ${package_options})
endif()
install(FILES ${CMAKE_BINARY_DIR}/python/libcenote.so DESTINATION cenote/lib ${package_options})
add_dependencies(cenote_python cenote-qualify)
install(PROGRAMS $<TARGET_FILE:cenote-qualify> DESTINATION cenote/bin ${package_options})
if(TARGET cenote-replay) # `cenote dry-run` asks it what other allocators would hold
    add_dependencies(cenote_python cenote-replay)
    set_target_properties(cenote-replay PROPERTIES INSTALL_RPATH "$ORIGIN/../sim")
    install(TARGETS cenote-replay DESTINATION cenote/bin ${package_options})
endif()
add_dependencies(cenote_python cenote_records_module)
install(TARGETS cenote_records_module DESTINATION cenote/lib ${package_options})
install(FILES traces/torch/lstm.csv.gz traces/torch/resnet50_amp.csv.gz DESTINATION cenote/traces ${package_options}) # replay/card_trial.py plays them
add_dependencies(cenote_python cenote_preload)
install(TARGETS cenote_pluggable cenote_preload DESTINATION cenote/lib ${package_options})
if(TARGET cenote_nvtx)
    add_dependencies(cenote_python cenote_nvtx)
    install(TARGETS cenote_nvtx DESTINATION cenote/lib ${package_options})
endif()
install(DIRECTORY plugins/torch plugins/values plugins/names DESTINATION cenote/plugins ${package_options} FILES_MATCHING PATTERN *.h PATTERN *.cpp
    PATTERN *.def PATTERN adapter.so) # compiled ahead: tools/wheel/build.py
install(FILES python/cenote.pth python/cenote.start python/cenote_start.py DESTINATION . ${package_options})
install(DIRECTORY include/cenote DESTINATION cenote/include ${package_options} FILES_MATCHING PATTERN *.h PATTERN *.hpp PATTERN *.def)

# The command, for the Python that is first in PATH.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/bin/cenote NEWLINE_STYLE UNIX @ONLY CONTENT [=[
#!/usr/bin/env python3
import sys

sys.path.insert(0, "@CMAKE_SOURCE_DIR@/python")
from cenote import command, places

places.build = "@CMAKE_BINARY_DIR@"
sys.exit(command.main())
]=])
file(CHMOD ${CMAKE_BINARY_DIR}/bin/cenote PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
