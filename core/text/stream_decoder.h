// Turns a stream of token bytes into text that can be shown at once.
// Two things are held back: the beginning of a character whose bytes are spread over tokens, and text that may turn out
// to be the beginning of a stop string. What comes out does not depend on how the bytes were cut into tokens.
// Reference: Unicode 15, section 3.9 (one U+FFFD per maximal ill-formed part); Knuth, Morris, Pratt, SIAM J. Comput.
// 6(2).
#ifndef OCTET_CORE_TEXT_STREAM_DECODER_H_
#define OCTET_CORE_TEXT_STREAM_DECODER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace octet {

// One per sequence; not for several threads at once.
class StreamDecoder {
 public:
  // InvalidArgument for a stop string that is empty or not UTF-8.
  static absl::StatusOr<StreamDecoder> Create(const std::vector<std::string>& stop_strings);

  // Takes the bytes of the next token and returns what can be shown now: always whole UTF-8 characters, possibly none.
  // Returns nothing once a stop string is complete.
  std::string Push(std::string_view bytes);

  // The end of the stream: returns all that was held back, an unfinished character as U+FFFD.
  std::string Finish();

  // A stop string is complete. Neither it nor anything behind it is ever returned. Of several stop strings the first to
  // be complete counts, and of those complete at the same place the longest.
  bool stopped() const { return stopped_; }
  // That stop string; empty before.
  const std::string& stop_string() const { return stop_string_; }

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // [text.size()]: matched length to go on with after a mismatch behind i + 1 bytes
    size_t matched = 0;            // longest prefix that the stream ends with
  };

  StreamDecoder() = default;
  void Take(std::string_view character);
  std::string Release();

  std::vector<Stop> stops_;
  std::string partial_;  // incomplete character, at most 3 bytes
  std::string held_;     // whole characters not yet returned
  std::string stop_string_;
  bool stopped_ = false;
};

}  // namespace octet

#endif  // OCTET_CORE_TEXT_STREAM_DECODER_H_
