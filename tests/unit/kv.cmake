octet_add_test(kv_test SOURCES kv_test.cc DEPS octet_kv)
