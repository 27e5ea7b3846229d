// Turns the bytes of an input into the values that a target needs; zeros once they are used up.
#ifndef OCTET_TESTS_FUZZ_FUZZ_INPUT_H_
#define OCTET_TESTS_FUZZ_FUZZ_INPUT_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace octet::fuzz {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  template <typename T>
  T Take() {
    T value{};
    const size_t n = std::min(sizeof(T), size_);
    if (n > 0) std::memcpy(&value, data_, n);
    data_ += n;
    size_ -= n;
    return value;
  }
  // Below `bound`, which is at most 256.
  int Below(int bound) { return Take<uint8_t>() % bound; }
  bool Flag() { return (Take<uint8_t>() & 1) != 0; }

  // Up to the next newline, which goes too; the rest when there is none.
  std::string_view Line() {
    const std::string_view rest(reinterpret_cast<const char*>(data_), size_);
    const std::string_view line = rest.substr(0, rest.find('\n'));
    const size_t used = std::min(line.size() + 1, size_);
    data_ += used;
    size_ -= used;
    return line;
  }
  std::string_view Rest() const { return {reinterpret_cast<const char*>(data_), size_}; }
  bool empty() const { return size_ == 0; }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace octet::fuzz

#endif  // OCTET_TESTS_FUZZ_FUZZ_INPUT_H_
