find_package(nlohmann_json REQUIRED)
octet_add_test(tokenizer_test SOURCES tokenizer_test.cc DEPS octet_text LABELS threaded)
octet_add_test(tokenizer_oracle_test SOURCES tokenizer_oracle_test.cc DEPS octet_text nlohmann_json::nlohmann_json LABELS model)
octet_add_test(stream_decoder_test SOURCES stream_decoder_test.cc DEPS octet_text)
