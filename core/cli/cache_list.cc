#include "core/cli/cache_list.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/message_text.h"

namespace octet {

absl::StatusOr<NamedCache> ParseCache(std::string_view flag, std::string_view name, int32_t page_tokens) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(name), ':');
  NamedCache cache{std::string(name), {.page_tokens = page_tokens}};
  auto dtype = ParseKvDType(parts[0], DType::kBF16);
  const bool int8 = dtype.ok() && *dtype == DType::kI8;
  if (!dtype.ok() || parts[0] == "auto" || parts.size() > 2 || (parts.size() == 2 && !int8)) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(flag), " has '", Printable(name),
                                                   "', which is no cache; use f32, f16, bf16, int8, or int8 with a "
                                                   "recipe such as int8:plain"));
  }
  cache.kv.dtype = *dtype;
  cache.kv.recipe = Int8Recipe::kDefault;
  if (parts.size() == 2) {
    auto recipe = ParseInt8Recipe(parts[1]);
    if (!recipe.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(flag), ": ", recipe.status().message()));
    }
    cache.kv.recipe = *recipe;
  }
  return cache;
}

absl::StatusOr<std::vector<NamedCache>> ParseCaches(std::string_view flag, std::string_view list, int32_t page_tokens) {
  std::vector<NamedCache> caches;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(std::string(list), ','))) {
    auto cache = ParseCache(flag, name, page_tokens);
    if (!cache.ok()) return cache.status();
    for (const NamedCache& other : caches) {
      if (other.kv.dtype == cache->kv.dtype && other.kv.recipe == cache->kv.recipe) {
        return absl::InvalidArgumentError(absl::StrCat(std::string(flag), " is '", Printable(list),
                                                       "', which has the cache '", name, "' twice; name it once"));
      }
    }
    caches.push_back(*std::move(cache));
  }
  return caches;
}

}  // namespace octet
