// Turns the dynamic linker's text into a sentence about what is really missing.
#ifndef OCTET_CORE_LOADER_HINTS_H_
#define OCTET_CORE_LOADER_HINTS_H_

#include <string>
#include <string_view>

namespace octet {

// What provides a library, for people: "libcuda.so.1" -> "the NVIDIA driver"; empty where unknown.
std::string LibraryHint(std::string_view library);

// One sentence for why opening `path` failed. `text` is what dlerror said: when a library that the plugin needs is
// missing, it begins with that library's name and reads as if the plugin itself were missing.
std::string ExplainOpenError(std::string_view path, std::string_view text);

}  // namespace octet

#endif  // OCTET_CORE_LOADER_HINTS_H_
