add_executable(abi_layout_test abi_layout_test.c)
target_link_libraries(abi_layout_test PRIVATE octet_interfaces)
set_target_properties(abi_layout_test PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_compile_options(abi_layout_test PRIVATE -Wall -Wextra -Wpedantic -Wpadded -Werror)
add_test(NAME abi_layout_test COMMAND abi_layout_test)

octet_add_test(plugin_test SOURCES plugin_test.cc DEPS octet_loader LABELS threaded)
octet_add_test(host_dense_test SOURCES host_dense_test.cc DEPS octet_loader)

# Backends for loader_test, in a folder that no search looks into by itself.
set(plugin_dir "${PROJECT_BINARY_DIR}/tests/plugins")
function(octet_test_plugin name)
  set(OCTET_BACKEND_OUTPUT_DIRECTORY "${plugin_dir}")
  octet_add_backend(${name} SOURCES ${ARGN} DEPS octet_build_flags NO_INSTALL)
  target_include_directories(octet_backend_${name} PRIVATE "${PROJECT_SOURCE_DIR}")
endfunction()
octet_test_plugin(good plugins/good.cc)
octet_test_plugin(throws plugins/throws.cc)

# The rest is C by hand; NAME is what the table says.
add_library(octet_test_gone SHARED plugins/gone.c)
set_target_properties(octet_test_gone PROPERTIES VERSION 7 SOVERSION 7 LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/gone")
function(octet_test_variant name table_name variant)
  set(source variant)
  if(variant STREQUAL "VARIANT_IMPORTS")
    set(source imports)
  endif()
  add_library(octet_variant_${name} MODULE plugins/${source}.c)
  target_link_libraries(octet_variant_${name} PRIVATE octet_interfaces octet_build_flags)
  target_compile_definitions(octet_variant_${name} PRIVATE VARIANT_NAME="${table_name}" ${variant})
  set_target_properties(octet_variant_${name} PROPERTIES PREFIX lib OUTPUT_NAME octet_backend_${name}
    C_VISIBILITY_PRESET hidden SKIP_BUILD_RPATH ON LIBRARY_OUTPUT_DIRECTORY "${plugin_dir}")
endfunction()
octet_test_variant(gpu gpu VARIANT_PLAIN)
octet_test_variant(null_with_text null_with_text VARIANT_NULL_WITH_TEXT)
octet_test_variant(null_silent null_silent VARIANT_NULL_SILENT)
octet_test_variant(wrong_name other VARIANT_PLAIN)
octet_test_variant(other_draft other_draft VARIANT_OTHER_DRAFT)
octet_test_variant(short_table short_table VARIANT_SHORT_TABLE)
octet_test_variant(no_gather no_gather VARIANT_NO_GATHER)
octet_test_variant(no_device no_device VARIANT_NO_DEVICE)
octet_test_variant(abi2 abi2 VARIANT_ABI_2)
octet_test_variant(sanitizer sanitizer "VARIANT_SANITIZER=\"memory\"")
octet_test_variant(undefined undefined VARIANT_UNDEFINED_SYMBOL)
octet_test_variant(missing_library missing_library VARIANT_MISSING_LIBRARY)
octet_test_variant(imports imports VARIANT_IMPORTS)
target_link_libraries(octet_variant_missing_library PRIVATE octet_test_gone)

octet_add_test(loader_test SOURCES loader_test.cc DEPS octet_loader)
target_compile_definitions(loader_test PRIVATE OCTET_TEST_PLUGINS="${plugin_dir}")
add_dependencies(loader_test octet_backend_good octet_backend_throws octet_variant_gpu octet_variant_null_with_text
  octet_variant_null_silent octet_variant_wrong_name octet_variant_other_draft octet_variant_short_table
  octet_variant_no_gather octet_variant_no_device octet_variant_abi2 octet_variant_sanitizer octet_variant_undefined
  octet_variant_missing_library octet_variant_imports)
