# octet_add_backend(NAME SOURCES ... [DEPS ...]): builds liboctet_backend_<NAME>.so the way the loader wants it:
# one exported symbol, hidden visibility, every symbol resolved at link time, never unloaded.
# Works in this tree and, through find_package(octet), in a vendor's own project.
set(_octet_add_backend_dir "${CMAKE_CURRENT_LIST_DIR}")

function(octet_add_backend name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  if(NOT name MATCHES "^[a-z0-9_]+$")
    message(FATAL_ERROR "octet_add_backend: the name '${name}' must consist of a-z, 0-9 and _")
  endif()
  set(target octet_backend_${name})
  add_library(${target} MODULE ${arg_SOURCES})
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_link_libraries(${target} PRIVATE octet::interfaces ${arg_DEPS})
  set_target_properties(${target} PROPERTIES
    PREFIX "lib" OUTPUT_NAME "octet_backend_${name}" LINKER_LANGUAGE CXX
    CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN"
    LINK_DEPENDS "${_octet_add_backend_dir}/exports.map.in")
  if(OCTET_BACKEND_OUTPUT_DIRECTORY)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${OCTET_BACKEND_OUTPUT_DIRECTORY}")
  endif()
  target_link_options(${target} PRIVATE
    "LINKER:--version-script=${_octet_add_backend_dir}/exports.map.in"
    "LINKER:-z,nodelete" "LINKER:--exclude-libs,ALL")
  if(NOT OCTET_SANITIZE)  # a sanitizer's run-time symbols come from the program that loads the library
    target_link_options(${target} PRIVATE "LINKER:-z,defs")
  endif()
endfunction()
