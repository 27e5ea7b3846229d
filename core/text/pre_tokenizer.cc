#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/text/pre_tokenizer.h"

#include <pcre2.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/utf8.h"
#include "fmt/format.h"

namespace octet {
namespace {

// White_Space of Unicode, as the inside of a class. PCRE2's own \s also takes U+180E, which left the set in
// Unicode 6.3.
#define OCTET_WS \
  "\\x09-\\x0D\\x20\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define OCTET_GPT2                                            \
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" OCTET_WS \
  "\\p{L}\\p{N}]+"                                            \
  "|[" OCTET_WS "]+(?![^" OCTET_WS "])|[" OCTET_WS "]+"
// GPT-4 style; `digits` says how many numerals form one piece.
#define OCTET_GPT4(digits)                                                                                             \
  "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits "| ?[^" OCTET_WS \
  "\\p{L}\\p{N}]+[\\r\\n]*|[" OCTET_WS "]*[\\r\\n]+|[" OCTET_WS "]+(?![^" OCTET_WS "])|[" OCTET_WS "]+"

struct Scheme {
  std::string_view name;
  // Applied one after the other, each inside the pieces of the one before, so a look-ahead sees a piece's end as the
  // end of the text.
  std::vector<const char*> patterns;
  bool ignore_merges = false;
};

const std::vector<Scheme>& Schemes() {
  static const auto* const schemes = new std::vector<Scheme>{
      {"smollm", {"\\p{N}", OCTET_GPT2}},
      {"qwen2", {OCTET_GPT4("")}},
      {"llama-bpe", {OCTET_GPT4("{1,3}")}, true},
      {"gpt-2", {OCTET_GPT2}},
      {"default", {"[\\p{P}$+<=>^~|]+", OCTET_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
  };
  return *schemes;
}

#undef OCTET_GPT4
#undef OCTET_GPT2
#undef OCTET_WS

std::string Pcre2Message(int code) {
  char text[160];
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
  return text;
}

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// Appends the matches in `text`, which is valid UTF-8, and the stretches between them.
absl::Status SplitOnce(const pcre2_code* code, pcre2_match_context* context, pcre2_match_data* match,
                       std::string_view text, std::vector<std::string_view>* pieces) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    const int rc = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match, context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return absl::InternalError("splitting the text into words failed: " + Pcre2Message(rc));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
    if (range[0] > at) pieces->push_back(text.substr(at, range[0] - at));
    pieces->push_back(text.substr(range[0], range[1] - range[0]));
    at = range[1];
  }
  if (at < text.size()) pieces->push_back(text.substr(at));
  return absl::OkStatus();
}

}  // namespace

struct PreTokenizer::Impl {
  std::vector<std::unique_ptr<pcre2_code, FreeCode>> codes;
  std::unique_ptr<pcre2_match_context, FreeContext> context;
  bool ignore_merges = false;
};

bool PreTokenizer::ignore_merges() const { return impl_->ignore_merges; }

absl::StatusOr<PreTokenizer> PreTokenizer::Create(std::string_view name) {
  const Scheme* scheme = nullptr;
  std::string known;
  for (const Scheme& candidate : Schemes()) {
    if (candidate.name == name) scheme = &candidate;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate.name);
  }
  if (scheme == nullptr) {
    return absl::UnimplementedError(
        fmt::format("the pre-tokenizer '{}' is not supported; supported are {}", name, known));
  }
  static std::mutex mutex;
  static auto* const compiled = new std::map<const Scheme*, std::unique_ptr<const Impl>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<const Impl>& kept = (*compiled)[scheme];
  if (kept != nullptr) return PreTokenizer(kept.get());
  auto impl = std::make_unique<Impl>();
  impl->ignore_merges = scheme->ignore_merges;
  impl->context.reset(pcre2_match_context_create(nullptr));
  if (impl->context == nullptr) return absl::ResourceExhaustedError("no memory for the pre-tokenizer");
  // No expression backtracks more than once over a run of spaces, so the work is bounded by the text's length.
  pcre2_set_match_limit(impl->context.get(), std::numeric_limits<uint32_t>::max());
  for (const char* pattern : scheme->patterns) {
    int code_error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern), PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &code_error, &offset, nullptr);
    if (code == nullptr) {
      return absl::InternalError(fmt::format("the pre-tokenizer '{}' did not compile at offset {}: {}", name, offset,
                                             Pcre2Message(code_error)));
    }
    impl->codes.emplace_back(code);
    // Where executable memory is forbidden, PCRE2 interprets the same program: slower, same result.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  kept = std::move(impl);
  return PreTokenizer(kept.get());
}

absl::Status PreTokenizer::Split(std::string_view text, std::vector<std::string_view>* pieces) const {
  std::unique_ptr<pcre2_match_data, FreeMatchData> match(pcre2_match_data_create(1, nullptr));
  if (match == nullptr) return absl::ResourceExhaustedError("no memory to split the text into words");
  std::vector<std::string_view> current;
  std::vector<std::string_view> next;
  while (!text.empty()) {
    size_t valid = 0;
    size_t invalid = 0;
    while (valid < text.size()) {
      const Utf8Char first = FirstUtf8Char(text.substr(valid));
      if (first.kind != Utf8Char::Kind::kValid) {
        invalid = first.size;
        break;
      }
      valid += first.size;
    }
    if (valid > 0) {
      current.assign(1, text.substr(0, valid));
      for (const auto& code : impl_->codes) {
        next.clear();
        for (std::string_view piece : current) {
          absl::Status status = SplitOnce(code.get(), impl_->context.get(), match.get(), piece, &next);
          if (!status.ok()) return status;
        }
        current.swap(next);
      }
      pieces->insert(pieces->end(), current.begin(), current.end());
    }
    if (invalid > 0) pieces->push_back(text.substr(valid, invalid));
    text.remove_prefix(valid + invalid);
  }
  return absl::OkStatus();
}

}  // namespace octet
