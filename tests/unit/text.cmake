find_package(nlohmann_json REQUIRED)
octet_add_test(tokenizer_test SOURCES tokenizer_test.cc DEPS octet_text THREADED "*Threads*")
octet_add_test(sentence_piece_test SOURCES sentence_piece_test.cc DEPS octet_text octet_gguf)
if(NOT OCTET_SANITIZE)  # every case needs a model
  octet_add_test(tokenizer_oracle_test SOURCES tokenizer_oracle_test.cc DEPS octet_text nlohmann_json::nlohmann_json LABELS model)
endif()
octet_add_test(stream_decoder_test SOURCES stream_decoder_test.cc DEPS octet_text)
octet_add_test(chat_template_test SOURCES chat_template_test.cc DEPS octet_text nlohmann_json::nlohmann_json LABELS slow-sanitized)  # there, fuzz_chat_template reads templates
