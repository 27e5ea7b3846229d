// Looking at one UTF-8 character of a byte string that may hold anything.
// Reference: Unicode 15, table 3-7 (well-formed sequences) and section 3.9 (maximal subparts).
#ifndef OCTET_CORE_BASE_UTF8_H_
#define OCTET_CORE_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace octet {

inline constexpr std::string_view kReplacementChar = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Char {
  enum class Kind {
    kValid,       // `size` bytes form one character
    kInvalid,     // `size` bytes are one ill-formed part, shown as one U+FFFD
    kIncomplete,  // the text ends inside a character that could still become valid; `size` is the whole rest
  };
  Kind kind;
  size_t size;
};

// `text` is not empty.
inline Utf8Char FirstUtf8Char(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return {Utf8Char::Kind::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Char::Kind::kInvalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Utf8Char::Kind::kIncomplete, i};
    // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte < low || byte > high) return {Utf8Char::Kind::kInvalid, i};
  }
  return {Utf8Char::Kind::kValid, length};
}

// `code` is at most U+10FFFF.
inline void AppendUtf8(uint32_t code, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace octet

#endif  // OCTET_CORE_BASE_UTF8_H_
