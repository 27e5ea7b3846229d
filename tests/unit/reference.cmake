octet_add_test(reference_test SOURCES reference_test.cc DEPS octet_reference)
