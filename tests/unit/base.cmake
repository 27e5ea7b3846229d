octet_add_test(base_test SOURCES base_test.cc DEPS octet_base THREADED "*")
