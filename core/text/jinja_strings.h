// Python's string operations on UTF-8 text, by characters. Case follows Unicode's simple mappings.
#ifndef OCTET_CORE_TEXT_JINJA_STRINGS_H_
#define OCTET_CORE_TEXT_JINJA_STRINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::jinja {

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string TitleMethod(std::string_view text);  // str.title(): a letter behind anything but a letter
std::string TitleFilter(std::string_view text);  // the filter: the first character behind spaces and opening brackets

// Where `part` begins at or behind `from`, npos when nowhere; and how often it is there without overlaps, `part` not
// empty. Time is that of reading both, whatever they hold.
size_t FindText(std::string_view text, std::string_view part, size_t from = 0);
size_t CountText(std::string_view text, std::string_view part);

// Removes characters of `characters` (whitespace when not given) from the chosen ends.
std::string_view Strip(std::string_view text, std::optional<std::string_view> characters, bool left, bool right);

// `limit` splits at most, or all when negative; from the right for rsplit. `separator` is not empty.
std::vector<std::string> SplitBy(std::string_view text, std::string_view separator, int64_t limit, bool from_right);
std::vector<std::string> SplitAtSpace(std::string_view text, int64_t limit, bool from_right);
std::vector<std::string> SplitLines(std::string_view text);  // without the line ends

// At most `limit` replacements, or all when negative. `from` is not empty.
std::string Replace(std::string_view text, std::string_view from, std::string_view to, int64_t limit);

}  // namespace octet::jinja

#endif  // OCTET_CORE_TEXT_JINJA_STRINGS_H_
