#include "core/base/message_text.h"

#include "core/base/utf8.h"
#include "fmt/format.h"

namespace octet {
namespace {

bool IsControl(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  return first < 0x20 || first == 0x7f || (first == 0xc2 && static_cast<unsigned char>(sequence[1]) < 0xa0);
}

}  // namespace

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char first = FirstUtf8Char(text);
    const std::string_view sequence = text.substr(0, first.size);
    if (first.kind == Utf8Char::Kind::kValid && !IsControl(sequence)) {
      out += sequence;
    } else {
      for (const char c : sequence) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    text.remove_prefix(sequence.size());
  }
  return out;
}

std::string CountOf(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace octet
