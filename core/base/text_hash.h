// Hashes texts that come out of files, seeded per process: no file can be made of texts that all collide.
//
// For std::unordered_map: absl's own tables do not survive an allocation that throws while they grow.
// absl::Hash itself would take the unseeded std::hash for a std::string_view, as Debian's absl::string_view is a type
// of its own.
#ifndef OCTET_CORE_BASE_TEXT_HASH_H_
#define OCTET_CORE_BASE_TEXT_HASH_H_

#include <cstddef>
#include <string_view>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace octet {

struct TextHash {
  size_t operator()(std::string_view text) const {
    return absl::Hash<absl::string_view>()(absl::string_view(text.data(), text.size()));
  }
};

}  // namespace octet

#endif  // OCTET_CORE_BASE_TEXT_HASH_H_
