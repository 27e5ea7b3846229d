// Caches named on a command line: "int8,int8:plain,bf16".
#ifndef OCTET_CORE_CLI_CACHE_LIST_H_
#define OCTET_CORE_CLI_CACHE_LIST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/kv/kv_options.h"

namespace octet {

struct NamedCache {
  std::string name;
  KvOptions kv;
};

// A dtype, or int8 with a recipe: "bf16", "int8:plain". InvalidArgument, which names `flag`, for anything else.
absl::StatusOr<NamedCache> ParseCache(std::string_view flag, std::string_view name, int32_t page_tokens);

// Such names with commas between them, none of them twice.
absl::StatusOr<std::vector<NamedCache>> ParseCaches(std::string_view flag, std::string_view list, int32_t page_tokens);

}  // namespace octet

#endif  // OCTET_CORE_CLI_CACHE_LIST_H_
