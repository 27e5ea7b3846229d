octet_add_test(model_config_test SOURCES model_config_test.cc DEPS octet_model_config LABELS model)
find_package(nlohmann_json REQUIRED)
octet_add_test(rope_test SOURCES rope_test.cc DEPS octet_model_config nlohmann_json::nlohmann_json)
