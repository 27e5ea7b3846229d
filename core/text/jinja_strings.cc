#include "core/text/jinja_strings.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "core/base/utf8.h"
#include "core/text/jinja_value.h"

namespace octet::jinja {
namespace {

void AppendMapped(std::string_view character, bool upper, std::string* out) {
  if (FirstUtf8Char(character).kind != Utf8Char::Kind::kValid) {
    *out += character;
    return;
  }
  const uint32_t code = CodePoint(character);
  if (upper && code == 0xDF) {  // the one common letter whose capital is two
    *out += "SS";
    return;
  }
  const auto signed_code = static_cast<utf8proc_int32_t>(code);
  AppendUtf8(static_cast<uint32_t>(upper ? utf8proc_toupper(signed_code) : utf8proc_tolower(signed_code)), out);
}

bool IsCased(std::string_view character) {
  const auto code = static_cast<utf8proc_int32_t>(CodePoint(character));
  return utf8proc_toupper(code) != code || utf8proc_tolower(code) != code;
}

template <typename Body>
void ForEachCharacter(std::string_view text, Body body) {
  while (!text.empty()) {
    const size_t size = FirstUtf8Char(text).size;
    body(text.substr(0, size));
    text.remove_prefix(size);
  }
}

std::string Map(std::string_view text, bool upper) {
  std::string out;
  ForEachCharacter(text, [&](std::string_view character) { AppendMapped(character, upper, &out); });
  return out;
}

bool IsSpaceCharacter(std::string_view character) { return IsSpace(CodePoint(character)); }

// The size of the space that ends a text, 0 when it ends with something else.
size_t SpaceAtEnd(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(text.size(), 3); ++size) {
    const std::string_view last = text.substr(text.size() - size);
    const Utf8Char first = FirstUtf8Char(last);
    if (first.kind == Utf8Char::Kind::kValid && first.size == size) return IsSpaceCharacter(last) ? size : 0;
  }
  return 0;
}

std::string_view StripSpace(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const size_t size = FirstUtf8Char(text).size;
    if (!IsSpaceCharacter(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    const size_t size = SpaceAtEnd(text);
    if (size == 0) break;
    text.remove_suffix(size);
  }
  return text;
}

}  // namespace

size_t FindText(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return text.npos;
  if (part.empty()) return from;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? text.npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t CountText(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = FindText(text, part); at != text.npos; at = FindText(text, part, at + part.size())) ++count;
  return count;
}

std::string Upper(std::string_view text) { return Map(text, true); }
std::string Lower(std::string_view text) { return Map(text, false); }

std::string Capitalize(std::string_view text) {
  std::string out;
  bool first = true;
  ForEachCharacter(text, [&](std::string_view character) {
    AppendMapped(character, first, &out);
    first = false;
  });
  return out;
}

std::string TitleMethod(std::string_view text) {
  std::string out;
  bool inside = false;
  ForEachCharacter(text, [&](std::string_view character) {
    AppendMapped(character, !inside, &out);
    inside = IsCased(character);
  });
  return out;
}

std::string TitleFilter(std::string_view text) {
  std::string out;
  bool inside = false;
  ForEachCharacter(text, [&](std::string_view character) {
    const bool separator =
        IsSpaceCharacter(character) || std::string_view("-({[<").find(character) != std::string_view::npos;
    AppendMapped(character, !inside, &out);
    inside = !separator;
  });
  return out;
}

std::string_view Strip(std::string_view text, std::optional<std::string_view> characters, bool left, bool right) {
  if (!characters.has_value()) return StripSpace(text, left, right);
  const std::vector<std::string_view> all = Characters(text);
  const std::vector<std::string_view> set = Characters(*characters);
  const auto removed = [&](std::string_view character) {
    return std::find(set.begin(), set.end(), character) != set.end();
  };
  size_t begin = 0;
  size_t end = all.size();
  while (left && begin < end && removed(all[begin])) ++begin;
  while (right && end > begin && removed(all[end - 1])) --end;
  if (begin == end) return {};
  const auto offset = static_cast<size_t>(all[begin].data() - text.data());
  return text.substr(offset, static_cast<size_t>(all[end - 1].data() - all[begin].data()) + all[end - 1].size());
}

std::vector<std::string> SplitBy(std::string_view text, std::string_view separator, int64_t limit, bool from_right) {
  std::vector<std::string> parts;
  while (limit < 0 || static_cast<int64_t>(parts.size()) < limit) {
    const size_t at = from_right ? text.rfind(separator) : FindText(text, separator);
    if (at == text.npos) break;
    parts.emplace_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitAtSpace(std::string_view text, int64_t limit, bool from_right) {
  const std::vector<std::string_view> characters = Characters(text);
  std::vector<std::string> parts;
  size_t begin = 0;
  size_t end = characters.size();
  const auto view = [&](size_t from, size_t to) {
    std::string part;
    for (size_t i = from; i < to; ++i) part += characters[i];
    return part;
  };
  while (true) {
    // What is left after the last split keeps its inner spaces, and those at its far end.
    while (!from_right && begin < end && IsSpaceCharacter(characters[begin])) ++begin;
    while (from_right && begin < end && IsSpaceCharacter(characters[end - 1])) --end;
    if (begin == end) break;
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(view(begin, end));
      break;
    }
    if (from_right) {
      size_t at = end;
      while (at > begin && !IsSpaceCharacter(characters[at - 1])) --at;
      parts.push_back(view(at, end));
      end = at;
    } else {
      size_t at = begin;
      while (at < end && !IsSpaceCharacter(characters[at])) ++at;
      parts.push_back(view(begin, at));
      begin = at;
    }
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  std::string line;
  const std::vector<std::string_view> characters = Characters(text);
  for (size_t i = 0; i < characters.size(); ++i) {
    const uint32_t code = CodePoint(characters[i]);
    const bool ends = (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
                      code == 0x2028 || code == 0x2029;
    if (!ends) {
      line += characters[i];
      continue;
    }
    if (code == '\r' && i + 1 < characters.size() && characters[i + 1] == "\n") ++i;
    lines.push_back(std::move(line));
    line.clear();
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

std::string Replace(std::string_view text, std::string_view from, std::string_view to, int64_t limit) {
  std::string out;
  for (int64_t count = 0; limit < 0 || count < limit; ++count) {
    const size_t at = FindText(text, from);
    if (at == text.npos) break;
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  out += text;
  return out;
}

}  // namespace octet::jinja
