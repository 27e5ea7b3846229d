// Where tests find downloaded models: $OCTET_MODELS_DIR, else ${XDG_CACHE_HOME:-~/.cache}/octet/models.
#ifndef OCTET_TESTS_UNIT_MODEL_FILES_H_
#define OCTET_TESTS_UNIT_MODEL_FILES_H_

#include <cstdlib>
#include <string>

namespace octet {

inline std::string ModelFile(const std::string& name) {
  const auto variable = [](const char* key) {
    const char* value = std::getenv(key);
    return std::string(value == nullptr ? "" : value);
  };
  std::string folder = variable("OCTET_MODELS_DIR");
  if (folder.empty()) {
    std::string cache = variable("XDG_CACHE_HOME");
    if (cache.empty()) cache = variable("HOME") + "/.cache";
    folder = cache + "/octet/models";
  }
  return folder + "/" + name;
}

}  // namespace octet

#endif  // OCTET_TESTS_UNIT_MODEL_FILES_H_
