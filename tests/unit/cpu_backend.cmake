octet_optimize_files(cpu_attention_test.cc cpu_dense_test.cc cpu_half_test.cc)
octet_add_test(cpu_backend_test SOURCES cpu_attention_test.cc cpu_dense_test.cc cpu_fused_test.cc cpu_half_test.cc cpu_quant_test.cc cpu_vec_test.cc
  DEPS octet_cpu_static octet_base THREADED "*")
if(OCTET_SANITIZE)
  target_compile_definitions(cpu_backend_test PRIVATE OCTET_TEST_SANITIZED=1)
else()
  target_compile_definitions(cpu_backend_test PRIVATE OCTET_TEST_SANITIZED=0)
endif()
