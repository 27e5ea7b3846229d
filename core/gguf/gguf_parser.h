// Turns the bytes of a GGUF file into the tables of a GgufFile; private to core/gguf.
#ifndef OCTET_CORE_GGUF_GGUF_PARSER_H_
#define OCTET_CORE_GGUF_GGUF_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/gguf/gguf_file.h"

namespace octet {

class GgufParser {
 public:
  explicit GgufParser(GgufFile& file) : file_(file), bytes_(file.file_.bytes()) {}

  // Fills the file's tables; on an error they are left half filled.
  absl::Status Parse();

 private:
  absl::Status ParseHeader(uint64_t* tensor_count, uint64_t* key_count);
  absl::Status ParseKey(uint64_t index);
  absl::Status ParseValue(std::string_view key, GgufFile::Value* value);
  absl::Status ParseArray(std::string_view key, GgufFile::Value* value);
  absl::Status SkipElements(std::string_view key, GgufType type, uint64_t count, int depth);
  absl::Status ParseTensor(uint64_t index);
  absl::Status ParseShape(uint32_t rank, uint32_t ggml_type, GgufTensor* tensor);
  absl::Status ParseAlignment();
  absl::Status PlaceTensors();
  absl::Status RefuseSplitFile();

  // Reads a little-endian number; false, with the position kept, when the file ends before.
  template <typename T>
  bool Read(T* value) {
    if (remaining() < sizeof(T)) return false;
    std::memcpy(value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }
  bool ReadString(std::string_view* text);
  uint64_t remaining() const { return bytes_.size() - position_; }

  absl::Status Invalid(std::string_view what) const;
  absl::Status CutShort(std::string_view where) const;

  GgufFile& file_;
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  uint64_t alignment_ = 32;
  std::vector<uint64_t> offsets_;  // of each tensor, from the start of the data section
};

}  // namespace octet

#endif  // OCTET_CORE_GGUF_GGUF_PARSER_H_
