#include "core/gguf/gguf_file.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/message_text.h"
#include "core/gguf/gguf_parser.h"
#include "octet/gguf_blocks.h"

namespace octet {
namespace {

template <typename T>
T Load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// False when an unsigned 64-bit number exceeds int64.
bool LoadInteger(GgufType type, const std::byte* data, int64_t* value) {
  switch (type) {
    case GgufType::kUint8:
      *value = Load<uint8_t>(data);
      return true;
    case GgufType::kInt8:
      *value = Load<int8_t>(data);
      return true;
    case GgufType::kUint16:
      *value = Load<uint16_t>(data);
      return true;
    case GgufType::kInt16:
      *value = Load<int16_t>(data);
      return true;
    case GgufType::kUint32:
      *value = Load<uint32_t>(data);
      return true;
    case GgufType::kInt32:
      *value = Load<int32_t>(data);
      return true;
    case GgufType::kUint64:
      *value = static_cast<int64_t>(Load<uint64_t>(data));
      return *value >= 0;
    case GgufType::kInt64:
      *value = Load<int64_t>(data);
      return true;
    default:
      return false;
  }
}

template <typename T, typename Getter>
absl::StatusOr<T> Or(const GgufFile& file, std::string_view key, T absent, Getter getter) {
  if (!file.Has(key)) return absent;
  return (file.*getter)(key);
}

}  // namespace

std::string QuoteName(std::string_view name) {
  constexpr size_t kShown = 80;
  return absl::StrCat("'", Printable(name.substr(0, kShown)), name.size() > kShown ? "..." : "", "'");
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  absl::StatusOr<MappedFile> mapped = MappedFile::Open(path);
  if (!mapped.ok()) return mapped.status();
  return Parse(path, *std::move(mapped));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::FromBytes(const std::string& name,
                                                              std::span<const std::byte> bytes) {
  return Parse(name, MappedFile::Borrow(bytes));
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(const std::string& path, MappedFile mapped) {
  std::unique_ptr<GgufFile> file(new GgufFile(path, std::move(mapped)));
  if (absl::Status status = GgufParser(*file).Parse(); !status.ok()) return status;
  return file;
}

absl::StatusOr<const GgufFile::Value*> GgufFile::Find(std::string_view key) const {
  const auto found = values_.find(key);
  if (found != values_.end()) return &found->second;
  return absl::NotFoundError(absl::StrCat(path_, " has no metadata key ", QuoteName(key)));
}

std::string GgufFile::TypeOf(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return "";
  const Value& value = found->second;
  if (value.type != GgufType::kArray) return std::string(GgufTypeName(value.type));
  return absl::StrCat("array of ", std::string(GgufTypeName(value.element)));
}

absl::Status GgufFile::WrongType(std::string_view key, std::string_view wanted) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata key ", QuoteName(key), " is of type ", TypeOf(key),
                                                 ", not ", std::string(wanted)));
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  const absl::StatusOr<const Value*> value = Find(key);
  if (!value.ok()) return value.status();
  if (!IsGgufInteger((*value)->type)) return WrongType(key, "an integer");
  int64_t number;
  if (!LoadInteger((*value)->type, (*value)->data, &number)) {
    return absl::OutOfRangeError(absl::StrCat(path_, ": metadata key ", QuoteName(key), " is ",
                                              Load<uint64_t>((*value)->data), ", above the largest 64-bit integer"));
  }
  return number;
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  const absl::StatusOr<const Value*> value = Find(key);
  if (!value.ok()) return value.status();
  if ((*value)->type == GgufType::kFloat32) return Load<float>((*value)->data);
  if ((*value)->type == GgufType::kFloat64) return Load<double>((*value)->data);
  return WrongType(key, "a float");
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  const absl::StatusOr<const Value*> value = Find(key);
  if (!value.ok()) return value.status();
  if ((*value)->type != GgufType::kBool) return WrongType(key, "bool");
  return Load<uint8_t>((*value)->data) != 0;
}

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  const absl::StatusOr<const Value*> value = Find(key);
  if (!value.ok()) return value.status();
  if ((*value)->type != GgufType::kString) return WrongType(key, "string");
  return std::string_view(reinterpret_cast<const char*>((*value)->data), static_cast<size_t>((*value)->count));
}

absl::StatusOr<const GgufFile::Value*> GgufFile::FindArray(std::string_view key, std::string_view wanted) const {
  const absl::StatusOr<const Value*> value = Find(key);
  if (value.ok() && (*value)->type != GgufType::kArray) return WrongType(key, wanted);
  return value;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(std::string_view key) const {
  const absl::StatusOr<const Value*> value = FindArray(key, "array of integers");
  if (!value.ok()) return value.status();
  if (!IsGgufInteger((*value)->element)) return WrongType(key, "array of integers");
  std::vector<int64_t> numbers(static_cast<size_t>((*value)->count));
  const std::byte* data = (*value)->data;
  for (int64_t& number : numbers) {
    if (!LoadInteger((*value)->element, data, &number)) {
      return absl::OutOfRangeError(absl::StrCat(path_, ": metadata key ", QuoteName(key), " holds ",
                                                Load<uint64_t>(data), ", above the largest 64-bit integer"));
    }
    data += GgufTypeMinBytes((*value)->element);
  }
  return numbers;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(std::string_view key) const {
  const absl::StatusOr<const Value*> value = FindArray(key, "array of float32");
  if (!value.ok()) return value.status();
  if ((*value)->element != GgufType::kFloat32) return WrongType(key, "array of float32");
  std::vector<float> numbers(static_cast<size_t>((*value)->count));
  if (!numbers.empty()) std::memcpy(numbers.data(), (*value)->data, numbers.size() * sizeof(float));
  return numbers;
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::GetStrings(std::string_view key) const {
  const absl::StatusOr<const Value*> value = FindArray(key, "array of string");
  if (!value.ok()) return value.status();
  if ((*value)->element != GgufType::kString) return WrongType(key, "array of string");
  std::vector<std::string_view> texts(static_cast<size_t>((*value)->count));
  const std::byte* data = (*value)->data;
  for (std::string_view& text : texts) {
    // Open has seen these lengths, but a file that is written to meanwhile may hold others now.
    const auto left = static_cast<size_t>(file_.bytes().data() + file_.bytes().size() - data);
    const uint64_t length = left < sizeof(uint64_t) ? left : Load<uint64_t>(data);
    if (left < sizeof(uint64_t) || length > left - sizeof(uint64_t)) {
      return absl::DataLossError(absl::StrCat(path_, " was changed while octet read it; run again once it is whole"));
    }
    text = {reinterpret_cast<const char*>(data) + sizeof(uint64_t), length};
    data += sizeof(uint64_t) + length;
  }
  return texts;
}

absl::StatusOr<int64_t> GgufFile::GetArraySize(std::string_view key) const {
  const absl::StatusOr<const Value*> value = FindArray(key, "an array");
  if (!value.ok()) return value.status();
  return static_cast<int64_t>((*value)->count);
}

absl::StatusOr<int64_t> GgufFile::GetIntOr(std::string_view key, int64_t absent) const {
  return Or(*this, key, absent, &GgufFile::GetInt);
}

absl::StatusOr<double> GgufFile::GetFloatOr(std::string_view key, double absent) const {
  return Or(*this, key, absent, &GgufFile::GetFloat);
}

absl::StatusOr<bool> GgufFile::GetBoolOr(std::string_view key, bool absent) const {
  return Or(*this, key, absent, &GgufFile::GetBool);
}

absl::StatusOr<std::string_view> GgufFile::GetStringOr(std::string_view key, std::string_view absent) const {
  return Or(*this, key, absent, &GgufFile::GetString);
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

absl::Status DequantizeTensorRow(const GgufTensor& tensor, int64_t row, float* out) {
  if (row < 0 || row >= tensor.rows) {
    return absl::OutOfRangeError(
        absl::StrCat("tensor ", QuoteName(tensor.name), " has ", tensor.rows, " rows, not a row ", row));
  }
  if (!DequantizeRow(tensor.type, tensor.row(row), tensor.row_elements(), out)) {
    return absl::InternalError(absl::StrCat("tensor ", QuoteName(tensor.name), " is not made of GGUF weight blocks"));
  }
  return absl::OkStatus();
}

}  // namespace octet
