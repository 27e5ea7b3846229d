octet_add_test(gguf_test SOURCES gguf_test.cc DEPS octet_gguf LABELS model)
    octet_add_test(gguf_blocks_test SOURCES gguf_blocks_test.cc DEPS octet_interfaces)
