octet_add_test(sampler_test SOURCES sampler_test.cc DEPS octet_sampling)
