// Reads a GGUF model file (versions 2 and 3, little-endian) through a memory mapping.
//
// Open checks every count, length, offset, alignment and type before it uses them, so everything handed out afterwards
// lies inside the mapping. What happens when somebody shortens the file meanwhile: core/base/mapped_file.h. Format:
// docs/gguf.md of ggml.
#ifndef OCTET_CORE_GGUF_GGUF_FILE_H_
#define OCTET_CORE_GGUF_GGUF_FILE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/mapped_file.h"
#include "core/base/text_hash.h"
#include "core/gguf/gguf_format.h"
#include "octet/tensor.h"

namespace octet {

// One weight tensor. Points into the file's mapping and lives as long as its GgufFile.
struct GgufTensor {
  std::string_view name;
  DType type = DType::kF32;
  int rank = 0;                                 // 1..4
  std::array<int64_t, 4> shape = {1, 1, 1, 1};  // GGUF order: shape[0] is the row length; 1 beyond rank
  int64_t elements = 0;                         // product of shape
  int64_t rows = 0;                             // elements / shape[0]
  int64_t row_bytes = 0;                        // rows follow each other without gaps
  int64_t bytes = 0;                            // rows * row_bytes
  const std::byte* data = nullptr;              // aligned to general.alignment, at least 8

  int64_t row_elements() const { return shape[0]; }
  const std::byte* row(int64_t index) const { return data + index * row_bytes; }  // 0 <= index < rows
};

// Immutable after Open; every method may be called from any thread.
class GgufFile {
 public:
  // InvalidArgument when the file is not GGUF or breaks the format, DataLoss when it is cut short, Unimplemented for a
  // GGUF feature that octet does not read, and MappedFile's errors. Each message names the file and the place.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  // The same of a file's bytes in memory, aligned to 8 and outliving the result; `name` stands in messages.
  static absl::StatusOr<std::unique_ptr<GgufFile>> FromBytes(const std::string& name, std::span<const std::byte> bytes);

  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }

  // Metadata. Returned views point into the mapping. NotFound when there is no such key; InvalidArgument, naming the
  // key and both types, when its value has another type. GetInt takes every integer width, GetFloat both float widths.
  bool Has(std::string_view key) const { return values_.contains(key); }
  const std::vector<std::string_view>& keys() const { return keys_; }  // file order
  absl::StatusOr<int64_t> GetInt(std::string_view key) const;
  absl::StatusOr<double> GetFloat(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(std::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloats(std::string_view key) const;
  absl::StatusOr<std::vector<std::string_view>> GetStrings(std::string_view key) const;
  absl::StatusOr<int64_t> GetArraySize(std::string_view key) const;  // elements, of whatever type

  // The same for optional keys: `absent` when there is no such key, an error when the value has another type.
  absl::StatusOr<int64_t> GetIntOr(std::string_view key, int64_t absent) const;
  absl::StatusOr<double> GetFloatOr(std::string_view key, double absent) const;
  absl::StatusOr<bool> GetBoolOr(std::string_view key, bool absent) const;
  absl::StatusOr<std::string_view> GetStringOr(std::string_view key, std::string_view absent) const;

  // "uint32", "array of string": what a present key holds; "" when there is none.
  std::string TypeOf(std::string_view key) const;

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // file order
  const GgufTensor* FindTensor(std::string_view name) const;           // nullptr when there is none

  // DataLoss when the file has changed since Open; to be asked after the last byte was read.
  absl::Status CheckUnchanged() const { return file_.CheckUnchanged(path_); }

  // Tells the kernel that these bytes of tensors will not be read again soon. They stay readable.
  void DropPages(std::span<const std::byte> bytes) const { file_.DropPages(bytes); }

 private:
  friend class GgufParser;

  struct Value {
    GgufType type = GgufType::kUint8;
    GgufType element = GgufType::kUint8;  // of an array
    uint64_t count = 1;                   // elements of an array
    const std::byte* data = nullptr;      // the scalar, the string's bytes (count of them), or the first element
  };

  GgufFile(std::string path, MappedFile file) : path_(std::move(path)), file_(std::move(file)) {}
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(const std::string& path, MappedFile mapped);

  absl::StatusOr<const Value*> Find(std::string_view key) const;
  absl::StatusOr<const Value*> FindArray(std::string_view key, std::string_view wanted) const;
  absl::Status WrongType(std::string_view key, std::string_view wanted) const;

  std::string path_;
  MappedFile file_;
  uint32_t version_ = 0;
  std::vector<std::string_view> keys_;
  std::unordered_map<std::string_view, Value, TextHash> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t, TextHash> tensor_index_;
};

// Writes out[tensor.row_elements()] as float32. OutOfRange when there is no such row.
absl::Status DequantizeTensorRow(const GgufTensor& tensor, int64_t row, float* out);

// A name out of a file, quoted for a message: escaped, and cut when it is long.
std::string QuoteName(std::string_view name);

}  // namespace octet

#endif  // OCTET_CORE_GGUF_GGUF_FILE_H_
