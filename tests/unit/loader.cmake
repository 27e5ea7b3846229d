add_executable(abi_layout_test abi_layout_test.c)
target_link_libraries(abi_layout_test PRIVATE octet_interfaces)
set_target_properties(abi_layout_test PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
target_compile_options(abi_layout_test PRIVATE -Wall -Wextra -Wpedantic -Wpadded -Werror)
add_test(NAME abi_layout_test COMMAND abi_layout_test)

octet_add_test(plugin_test SOURCES plugin_test.cc DEPS octet_loader LABELS threaded)
