// Words of messages for people: strings out of files and libraries made safe to print, and counted nouns.
#ifndef OCTET_CORE_BASE_MESSAGE_TEXT_H_
#define OCTET_CORE_BASE_MESSAGE_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace octet {

// `text` with every control character (C0, DEL, C1) and every byte that is not part of valid UTF-8 written as \xNN: one
// line whatever a file holds, and no escape sequence for the terminal.
std::string Printable(std::string_view text);

// "1 token", "2 tokens".
std::string CountOf(int64_t count, std::string_view noun);

}  // namespace octet

#endif  // OCTET_CORE_BASE_MESSAGE_TEXT_H_
