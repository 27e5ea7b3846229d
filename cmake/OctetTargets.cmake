# Warnings, sanitizers and language level, applied per target: no global flags.
add_library(octet_build_flags INTERFACE)
target_compile_features(octet_build_flags INTERFACE cxx_std_20)
target_compile_options(octet_build_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>
  $<$<BOOL:${OCTET_WERROR}>:-Werror>)
if(OCTET_SANITIZE)
  target_compile_options(octet_build_flags INTERFACE -fsanitize=${OCTET_SANITIZE} -fno-omit-frame-pointer)
  if(OCTET_SANITIZE MATCHES "undefined")
    target_compile_options(octet_build_flags INTERFACE -fno-sanitize-recover=undefined)
  endif()
  target_link_options(octet_build_flags INTERFACE -fsanitize=${OCTET_SANITIZE})
endif()

if(OCTET_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "OCTET_FUZZ needs clang and clang++, not ${CMAKE_CXX_COMPILER_ID}: cmake --preset fuzz")
  endif()
  target_compile_options(octet_build_flags INTERFACE -fsanitize=fuzzer-no-link)
  # The programs are meant to be copied to larger machines: libraries are linked in where an archive of them exists.
  set(CMAKE_FIND_LIBRARY_SUFFIXES .a .so)
  target_compile_definitions(octet_build_flags INTERFACE FMT_HEADER_ONLY)
endif()

# With OCTET_FUZZ: the package's libraries, found in this folder, are taken as archives where the distribution has them.
function(octet_prefer_archives package)
  if(NOT OCTET_FUZZ)
    return()
  endif()
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  list(FILTER targets INCLUDE REGEX "^${package}::")
  foreach(target ${targets})
    get_target_property(configs ${target} IMPORTED_CONFIGURATIONS)
    foreach(config ${configs})
      get_target_property(library ${target} IMPORTED_LOCATION_${config})
      string(REGEX REPLACE "\\.so[.0-9]*$" ".a" archive "${library}")
      if(EXISTS "${archive}")
        set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${config} "${archive}")
      endif()
    endforeach()
  endforeach()
endfunction()

# OCTET_PRECOMPILED_HEADERS: precompiled headers with GoogleTest for the tests and the conformance kit. Headers are the longer
# half of compiling without optimization. Only for scripts/test, whose check_missing_includes.py sees what this hides.
function(octet_add_precompiled_headers)
  if(OCTET_PRECOMPILED_HEADERS STREQUAL "none")
    return()
  endif()
  find_package(GTest REQUIRED)
  find_package(nlohmann_json REQUIRED)
  if(NOT EXISTS "${PROJECT_BINARY_DIR}/precompiled.cc")
    file(WRITE "${PROJECT_BINARY_DIR}/precompiled.cc" "")
  endif()
  foreach(name test kit)
    set(target octet_precompiled_${name})
    add_library(${target} OBJECT "${PROJECT_BINARY_DIR}/precompiled.cc")
    target_link_libraries(${target} PRIVATE octet_build_flags absl::statusor absl::strings nlohmann_json::nlohmann_json GTest::gmock)
    target_precompile_headers(${target} PRIVATE <algorithm> <functional> <memory> <optional> <span> <string> <string_view> <utility>
      <vector> <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <nlohmann/json.hpp> <gmock/gmock.h>
      <gtest/gtest.h>)
  endforeach()
  octet_compile_as_test(octet_precompiled_test)
endfunction()

# NAME: test or kit.
function(octet_use_precompiled target name)
  if(TARGET octet_precompiled_${name})
    target_precompile_headers(${target} REUSE_FROM octet_precompiled_${name})
    # So that ccache sees which precompiled header a gcc takes.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
endfunction()

# A test's own code is run once: compiling it for speed costs more than it saves.
function(octet_compile_as_test target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0>)
endfunction()

# octet_add_library(NAME SOURCES ... DEPS ...): a static part of core or of the tests; it stays inside this build.
function(octet_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${arg_DEPS} PRIVATE octet_build_flags)
endfunction()

# octet_optimize(TARGET...): optimized in every configuration. Debug and sanitizer builds compile everything else without, which
# halves their time; code that loops over whole tensors or texts would make their tests slow instead.
function(octet_optimize)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE -O2)
  endforeach()
endfunction()

# The same for single files of a target.
function(octet_optimize_files)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -O2 SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# octet_add_test(NAME SOURCES ... DEPS ... [THREADED FILTER] [LABELS ...]): one GoogleTest program, one ctest entry.
# THREADED: the cases that also run under the thread sanitizer, as --gtest_filter takes them: those in which threads meet.
# Labels: "model" uses a downloaded model; "slow" is left out under sanitizers, "slow-sanitized" there without --full; "long" runs in
# scripts/test --full only; "threaded" comes from THREADED.
function(octet_add_test name)
  cmake_parse_arguments(arg "" "THREADED;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  find_package(GTest REQUIRED)
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest_main octet_build_flags)
  target_compile_definitions(${name} PRIVATE
    OCTET_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" OCTET_BUILD_DIR="${PROJECT_BINARY_DIR}" OCTET_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  octet_use_precompiled(${name} test)
  octet_compile_as_test(${name})
  set(arguments "")
  if(arg_THREADED)
    list(APPEND arg_LABELS threaded)
    if(OCTET_SANITIZE STREQUAL "thread")
      set(arguments "--gtest_filter=${arg_THREADED}")
    endif()
  endif()
  add_test(NAME ${name} COMMAND ${name} ${arguments})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT})
endfunction()
