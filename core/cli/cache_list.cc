#include "core/cli/cache_list.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace octet {

absl::StatusOr<NamedCache> ParseCache(std::string_view name, int32_t page_tokens) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(name), ':');
  NamedCache cache{std::string(name), {.page_tokens = page_tokens}};
  auto dtype = ParseKvDType(parts[0], DType::kBF16);
  if (!dtype.ok()) return dtype.status();
  cache.kv.dtype = *dtype;
  cache.kv.recipe = Int8Recipe::kDefault;
  if (parts.size() > 2 || (parts.size() == 2 && cache.kv.dtype != DType::kI8)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", cache.name, "' is no cache; write a dtype such as bf16, or int8 with a recipe such as int8:plain"));
  }
  if (parts.size() == 2) {
    auto recipe = ParseInt8Recipe(parts[1]);
    if (!recipe.ok()) return recipe.status();
    cache.kv.recipe = *recipe;
  }
  return cache;
}

absl::StatusOr<std::vector<NamedCache>> ParseCaches(std::string_view flag, std::string_view list, int32_t page_tokens) {
  std::vector<NamedCache> caches;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(std::string(list), ','))) {
    auto cache = ParseCache(name, page_tokens);
    if (!cache.ok()) return cache.status();
    for (const NamedCache& other : caches) {
      if (other.kv.dtype == cache->kv.dtype && other.kv.recipe == cache->kv.recipe) {
        return absl::InvalidArgumentError(absl::StrCat(std::string(flag), " is '", std::string(list),
                                                       "', which has the cache '", name, "' twice; name it once"));
      }
    }
    caches.push_back(*std::move(cache));
  }
  return caches;
}

}  // namespace octet
