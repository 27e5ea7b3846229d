# octet_add_backend(NAME SOURCES ... [DEPS ...] [NO_INSTALL]): builds liboctet_backend_<NAME>.so the way the loader wants
# it: one exported symbol, hidden visibility, every symbol resolved at link time, never unloaded. Installed, it goes
# where octet looks. Works in this tree and, through find_package(octet), in a vendor's own project.
#
# INTERNAL: seen by every caller, in whichever folder find_package was called.
set(OCTET_BACKEND_EXPORTS "${CMAKE_CURRENT_LIST_DIR}/exports.map.in" CACHE INTERNAL "")
set(OCTET_BACKEND_INSTALL_DIR "lib/octet/backends" CACHE INTERNAL "")  # from the prefix; programs look in ../lib/octet/backends
set(OCTET_BACKEND_LINK_OPTIONS -z,nodelete --exclude-libs,ALL CACHE INTERNAL "")  # octet.pc hands them on, too

function(octet_add_backend name)
  cmake_parse_arguments(arg "NO_INSTALL" "" "SOURCES;DEPS" ${ARGN})
  if(NOT name MATCHES "^[a-z0-9_]+$")
    message(FATAL_ERROR "octet_add_backend: the name '${name}' must consist of a-z, 0-9 and _")
  endif()
  if(NOT arg_SOURCES OR arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "octet_add_backend(${name}): the form is NAME SOURCES ... [DEPS ...] [NO_INSTALL]")
  endif()
  set(target octet_backend_${name})
  add_library(${target} MODULE ${arg_SOURCES})
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_link_libraries(${target} PRIVATE octet::interfaces ${arg_DEPS})
  set_target_properties(${target} PROPERTIES
    PREFIX "lib" OUTPUT_NAME "octet_backend_${name}" LINKER_LANGUAGE CXX
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN"
    LINK_DEPENDS "${OCTET_BACKEND_EXPORTS}")
  if(OCTET_BACKEND_OUTPUT_DIRECTORY)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${OCTET_BACKEND_OUTPUT_DIRECTORY}")
  endif()
  list(TRANSFORM OCTET_BACKEND_LINK_OPTIONS PREPEND "LINKER:" OUTPUT_VARIABLE options)
  target_link_options(${target} PRIVATE "LINKER:--version-script=${OCTET_BACKEND_EXPORTS}" ${options})
  if(NOT OCTET_SANITIZE)  # a sanitizer's run-time symbols come from the program that loads the library
    target_link_options(${target} PRIVATE "LINKER:-z,defs")
  endif()
  if(NOT arg_NO_INSTALL)
    install(TARGETS ${target} LIBRARY DESTINATION "${OCTET_BACKEND_INSTALL_DIR}")
  endif()
endfunction()
