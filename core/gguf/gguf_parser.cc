#include "core/gguf/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "octet/gguf_blocks.h"

namespace octet {
namespace {

constexpr int kMaxArrayDepth = 4;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;             // length, name, type, smallest value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // length, name, rank, one dimension, type, offset

}  // namespace

absl::Status GgufParser::Invalid(std::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(file_.path_, " is a damaged GGUF file: ", std::string(what)));
}

absl::Status GgufParser::CutShort(std::string_view where) const {
  return absl::DataLossError(absl::StrCat(file_.path_, " ends too early, after ", bytes_.size(),
                                          " bytes: ", std::string(where), "; download it again"));
}

bool GgufParser::ReadString(std::string_view* text) {
  uint64_t length;
  if (!Read(&length)) return false;
  if (length > remaining()) return false;
  *text = {reinterpret_cast<const char*>(bytes_.data()) + position_, static_cast<size_t>(length)};
  position_ += static_cast<size_t>(length);
  return true;
}

absl::Status GgufParser::Parse() {
  uint64_t tensor_count;
  uint64_t key_count;
  if (absl::Status status = ParseHeader(&tensor_count, &key_count); !status.ok()) return status;
  for (uint64_t i = 0; i < key_count; ++i) {
    if (absl::Status status = ParseKey(i); !status.ok()) return status;
  }
  if (absl::Status status = RefuseSplitFile(); !status.ok()) return status;
  if (absl::Status status = ParseAlignment(); !status.ok()) return status;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    if (absl::Status status = ParseTensor(i); !status.ok()) return status;
  }
  return PlaceTensors();
}

absl::Status GgufParser::ParseHeader(uint64_t* tensor_count, uint64_t* key_count) {
  char magic[4];
  if (!Read(&magic) || std::string_view(magic, 4) != "GGUF") {
    return absl::InvalidArgumentError(absl::StrCat(file_.path_, " is not a GGUF model file"));
  }
  if (!Read(&file_.version_)) return CutShort("the header is incomplete");
  // The version is a small number: in a file of the other byte order its low half is zero.
  if (file_.version_ != 0 && (file_.version_ & 0xffff) == 0) {
    return absl::UnimplementedError(absl::StrCat(
        file_.path_, " is a big-endian GGUF file, which octet does not read; convert it to little-endian"));
  }
  if (file_.version_ < 2 || file_.version_ > 3) {
    return absl::UnimplementedError(absl::StrCat(file_.path_, " is a GGUF file of version ", file_.version_,
                                                 ", which octet does not read; it reads versions 2 and 3"));
  }
  if (!Read(tensor_count) || !Read(key_count)) return CutShort("the header is incomplete");
  if (*key_count > remaining() / kMinKeyBytes) {
    return CutShort(absl::StrCat("the header announces ", *key_count, " metadata keys, more than fit into the file"));
  }
  if (*tensor_count > remaining() / kMinTensorBytes) {
    return CutShort(absl::StrCat("the header announces ", *tensor_count, " tensors, more than fit into the file"));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseKey(uint64_t index) {
  std::string_view key;
  uint32_t type;
  if (!ReadString(&key)) return CutShort(absl::StrCat("the name of metadata key number ", index, " is incomplete"));
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return Invalid(absl::StrCat("the name of metadata key number ", index, " has ", key.size(), " bytes, not 1 to ",
                                kMaxKeyBytes));
  }
  if (!Read(&type)) return CutShort(absl::StrCat("metadata key ", QuoteName(key), " has no value"));
  if (type >= kGgufTypes) {
    return Invalid(absl::StrCat("metadata key ", QuoteName(key), " has a value of unknown type ", type));
  }
  GgufFile::Value value;
  value.type = static_cast<GgufType>(type);
  if (absl::Status status = ParseValue(key, &value); !status.ok()) return status;
  if (!file_.values_.emplace(key, value).second) {
    return Invalid(absl::StrCat("metadata key ", QuoteName(key), " appears twice"));
  }
  file_.keys_.push_back(key);
  return absl::OkStatus();
}

absl::Status GgufParser::ParseValue(std::string_view key, GgufFile::Value* value) {
  if (value->type == GgufType::kArray) return ParseArray(key, value);
  if (value->type == GgufType::kString) {
    std::string_view text;
    if (!ReadString(&text))
      return CutShort(absl::StrCat("the text of metadata key ", QuoteName(key), " is incomplete"));
    value->data = reinterpret_cast<const std::byte*>(text.data());
    value->count = text.size();
    return absl::OkStatus();
  }
  value->data = bytes_.data() + position_;
  return SkipElements(key, value->type, 1, 0);
}

absl::Status GgufParser::ParseArray(std::string_view key, GgufFile::Value* value) {
  uint32_t element;
  if (!Read(&element) || !Read(&value->count)) {
    return CutShort(absl::StrCat("the array of metadata key ", QuoteName(key), " is incomplete"));
  }
  if (element >= kGgufTypes) {
    return Invalid(absl::StrCat("metadata key ", QuoteName(key), " is an array of unknown type ", element));
  }
  value->element = static_cast<GgufType>(element);
  value->data = bytes_.data() + position_;
  return SkipElements(key, value->element, value->count, 1);
}

absl::Status GgufParser::SkipElements(std::string_view key, GgufType type, uint64_t count, int depth) {
  if (depth > kMaxArrayDepth) {
    return Invalid(
        absl::StrCat("metadata key ", QuoteName(key), " nests arrays more than ", kMaxArrayDepth, " levels deep"));
  }
  if (count > remaining() / GgufTypeMinBytes(type)) {
    return CutShort(absl::StrCat("metadata key ", QuoteName(key), " announces ", count, " values of type ",
                                 std::string(GgufTypeName(type)), ", more than fit into the file"));
  }
  if (type == GgufType::kString) {
    for (uint64_t i = 0; i < count; ++i) {
      std::string_view text;
      if (!ReadString(&text)) {
        return CutShort(absl::StrCat("text number ", i, " of metadata key ", QuoteName(key), " is incomplete"));
      }
    }
    return absl::OkStatus();
  }
  if (type == GgufType::kArray) {
    for (uint64_t i = 0; i < count; ++i) {
      uint32_t element;
      uint64_t inner_count;
      if (!Read(&element) || !Read(&inner_count)) {
        return CutShort(absl::StrCat("the array of metadata key ", QuoteName(key), " is incomplete"));
      }
      if (element >= kGgufTypes) {
        return Invalid(absl::StrCat("metadata key ", QuoteName(key), " holds an array of unknown type ", element));
      }
      absl::Status status = SkipElements(key, static_cast<GgufType>(element), inner_count, depth + 1);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  const uint64_t size = count * GgufTypeMinBytes(type);  // at most remaining()
  if (type == GgufType::kBool) {
    for (uint64_t i = 0; i < size; ++i) {
      const auto byte = std::to_integer<unsigned>(bytes_[position_ + i]);
      if (byte > 1) return Invalid(absl::StrCat("metadata key ", QuoteName(key), " has ", byte, " as a truth value"));
    }
  }
  position_ += static_cast<size_t>(size);
  return absl::OkStatus();
}

absl::Status GgufParser::RefuseSplitFile() {
  const absl::StatusOr<int64_t> parts = file_.GetIntOr("split.count", 1);
  if (!parts.ok()) return parts.status();
  if (*parts <= 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(file_.path_, " is one of ", *parts,
                                               " parts of a split model, which octet does not read; merge the parts "
                                               "into one file with llama-gguf-split --merge"));
}

absl::Status GgufParser::ParseAlignment() {
  const absl::StatusOr<int64_t> alignment = file_.GetIntOr("general.alignment", 32);
  if (!alignment.ok()) return alignment.status();
  if (*alignment < 8 || *alignment > std::numeric_limits<int32_t>::max() ||
      !std::has_single_bit(static_cast<uint64_t>(*alignment))) {
    return Invalid(absl::StrCat("general.alignment is ", *alignment, ", not a power of two from 8 on"));
  }
  alignment_ = static_cast<uint64_t>(*alignment);
  return absl::OkStatus();
}

absl::Status GgufParser::ParseTensor(uint64_t index) {
  GgufTensor tensor;
  uint32_t rank;
  if (!ReadString(&tensor.name) || !Read(&rank)) {
    return CutShort(absl::StrCat("the entry of tensor number ", index, " is incomplete"));
  }
  const std::string name = QuoteName(tensor.name);
  if (tensor.name.empty() || tensor.name.size() > kMaxKeyBytes) {
    return Invalid(absl::StrCat("the name of tensor number ", index, " has ", tensor.name.size(), " bytes, not 1 to ",
                                kMaxKeyBytes));
  }
  if (rank < 1 || rank > tensor.shape.size()) {
    return Invalid(absl::StrCat("tensor ", name, " has ", rank, " dimensions, not 1 to ", tensor.shape.size()));
  }
  for (uint32_t i = 0; i < rank; ++i) {
    if (!Read(&tensor.shape[i])) return CutShort(absl::StrCat("the shape of tensor ", name, " is incomplete"));
  }
  uint32_t ggml_type;
  uint64_t offset;
  if (!Read(&ggml_type) || !Read(&offset))
    return CutShort(absl::StrCat("the entry of tensor ", name, " is incomplete"));
  if (absl::Status status = ParseShape(rank, ggml_type, &tensor); !status.ok()) return status;
  if (offset % alignment_ != 0) {
    return Invalid(absl::StrCat("tensor ", name, " starts at ", offset, ", which general.alignment ", alignment_,
                                " does not divide"));
  }
  if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
    return Invalid(absl::StrCat("tensor ", name, " appears twice"));
  }
  file_.tensors_.push_back(tensor);
  offsets_.push_back(offset);
  return absl::OkStatus();
}

absl::Status GgufParser::ParseShape(uint32_t rank, uint32_t ggml_type, GgufTensor* tensor) {
  const std::string name = QuoteName(tensor->name);
  const std::optional<DType> type = DTypeFromGgml(ggml_type);
  if (!type.has_value()) {
    return absl::UnimplementedError(absl::StrCat(file_.path_, ": tensor ", name, " has type ", GgmlTypeName(ggml_type),
                                                 ", which octet does not read; it reads ", ReadableGgmlTypes()));
  }
  tensor->type = *type;
  tensor->rank = static_cast<int>(rank);
  tensor->elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    const int64_t size = tensor->shape[i];
    if (size <= 0 || __builtin_mul_overflow(tensor->elements, size, &tensor->elements)) {
      return Invalid(
          absl::StrCat("tensor ", name, " has the impossible size ", static_cast<uint64_t>(size), " in dimension ", i));
    }
  }
  tensor->rows = tensor->elements / tensor->shape[0];
  const GgufBlock block = GgufBlockOf(*type);
  if (tensor->shape[0] % block.elements != 0) {
    return Invalid(absl::StrCat("tensor ", name, " has rows of ", tensor->shape[0], " elements, which blocks of ",
                                block.elements, " (", GgmlTypeName(ggml_type), ") do not fill"));
  }
  if (__builtin_mul_overflow(tensor->elements / block.elements, block.bytes, &tensor->bytes)) {
    return Invalid(absl::StrCat("tensor ", name, " is larger than any file"));
  }
  tensor->row_bytes = tensor->bytes / tensor->rows;
  return absl::OkStatus();
}

absl::Status GgufParser::PlaceTensors() {
  if (file_.tensors_.empty()) return absl::OkStatus();
  const uint64_t start = (position_ + alignment_ - 1) / alignment_ * alignment_;
  const uint64_t room = start <= bytes_.size() ? bytes_.size() - start : 0;
  for (size_t i = 0; i < file_.tensors_.size(); ++i) {
    GgufTensor& tensor = file_.tensors_[i];
    if (offsets_[i] > room || static_cast<uint64_t>(tensor.bytes) > room - offsets_[i]) {
      return CutShort(absl::StrCat("tensor ", QuoteName(tensor.name), " needs ", tensor.bytes, " bytes at offset ",
                                   offsets_[i], " of the ", room, " bytes of weights"));
    }
    tensor.data = bytes_.data() + start + offsets_[i];
  }
  std::vector<size_t> order(file_.tensors_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [this](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = file_.tensors_[order[i - 1]];
    const GgufTensor& after = file_.tensors_[order[i]];
    if (before.data + before.bytes > after.data) {
      return Invalid(absl::StrCat("tensors ", QuoteName(before.name), " and ", QuoteName(after.name), " overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace octet
