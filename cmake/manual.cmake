# Manual pages, and what completes the command in a shell. cmake/manual/ makes the pages out of the headers and of the arguments of the command.
# Each lies beside what it is about: `make install` installs headers and section 3, the Python package installs the command and section 1. Without
# Python 3.10 there are no pages. To make the package takes shtab, which pyproject.toml names; no other build makes what completes the command.

find_package(Python3 3.10 QUIET COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
    message(STATUS "no Python 3.10: manual pages are left out")
    return()
endif()

file(GLOB manual_scripts CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/manual/*.py)
file(GLOB manual_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/include/cenote/*)
file(GLOB_RECURSE manual_command CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/python/cenote/*.py)

# cenote_manual(NAME SCRIPT "ARGUMENTS" SOURCE...): the target cenote_NAME, man1, man3 or shells, makes man/NAME anew when a source has changed.
function(cenote_manual name script arguments)
    set(folder ${CMAKE_BINARY_DIR}/man/${name})
    add_custom_command(OUTPUT ${folder}.made
        COMMAND ${CMAKE_COMMAND} -E rm -rf ${folder}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
        COMMAND ${Python3_EXECUTABLE} -B ${CMAKE_SOURCE_DIR}/cmake/manual/${script} ${arguments} ${folder}
        COMMAND ${CMAKE_COMMAND} -E touch ${folder}.made
        DEPENDS ${manual_scripts} ${ARGN} VERBATIM)
    add_custom_target(cenote_${name} ALL DEPENDS ${folder}.made)
endfunction()

cenote_manual(man1 commands.py ${PROJECT_VERSION} ${manual_command})
cenote_manual(man3 headers.py ${PROJECT_VERSION} ${manual_headers})
install(DIRECTORY ${CMAKE_BINARY_DIR}/man/man3 DESTINATION ${CMAKE_INSTALL_MANDIR})
add_dependencies(cenote_python cenote_man1)
if(SKBUILD) # `cenote completion` prints cenote/shells/; the rest is where shells look, if the prefix is /usr or /usr/local
    cenote_manual(shells shells.py "" ${manual_command})
    add_dependencies(cenote_python cenote_shells)
    set(shells ${CMAKE_BINARY_DIR}/man/shells)
    set(share ${SKBUILD_DATA_DIR}/share)
    set(here COMPONENT python EXCLUDE_FROM_ALL)
    install(DIRECTORY ${CMAKE_BINARY_DIR}/man/man1 DESTINATION ${share}/man ${here})
    install(DIRECTORY ${shells} DESTINATION cenote ${here})
    install(FILES ${shells}/cenote.bash DESTINATION ${share}/bash-completion/completions RENAME cenote ${here})
    install(FILES ${shells}/cenote.zsh DESTINATION ${share}/zsh/site-functions RENAME _cenote ${here})
    install(FILES ${shells}/cenote.fish DESTINATION ${share}/fish/vendor_completions.d ${here})
endif()
