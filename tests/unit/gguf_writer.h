// Builds GGUF files in memory, valid ones and, through the raw calls, broken ones. For tests only.
//
//   GgufWriter writer;
//   writer.String("general.architecture", "llama").U32("llama.block_count", 2);
//   writer.Tensor("token_embd.weight", DType::kF32, {8, 16}, FloatBytes(values));
//   const TempFile file(writer.Finish());
#ifndef OCTET_TESTS_UNIT_GGUF_WRITER_H_
#define OCTET_TESTS_UNIT_GGUF_WRITER_H_

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/gguf/gguf_format.h"
#include "octet/tensor.h"

namespace octet {

template <typename T>
void AppendRaw(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline void AppendString(std::string& bytes, std::string_view text) {
  AppendRaw<uint64_t>(bytes, text.size());
  bytes += text;
}

inline uint32_t GgmlNumber(DType type) {
  for (uint32_t number = 0; number < 64; ++number) {
    if (DTypeFromGgml(number) == type) return number;
  }
  return 0xffffffff;
}

inline std::string FloatBytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

class GgufWriter {
 public:
  // Metadata; each call adds one key.
  GgufWriter& U8(std::string_view key, uint8_t v) { return Scalar(key, GgufType::kUint8, v); }
  GgufWriter& I8(std::string_view key, int8_t v) { return Scalar(key, GgufType::kInt8, v); }
  GgufWriter& U16(std::string_view key, uint16_t v) { return Scalar(key, GgufType::kUint16, v); }
  GgufWriter& I16(std::string_view key, int16_t v) { return Scalar(key, GgufType::kInt16, v); }
  GgufWriter& U32(std::string_view key, uint32_t v) { return Scalar(key, GgufType::kUint32, v); }
  GgufWriter& I32(std::string_view key, int32_t v) { return Scalar(key, GgufType::kInt32, v); }
  GgufWriter& U64(std::string_view key, uint64_t v) { return Scalar(key, GgufType::kUint64, v); }
  GgufWriter& I64(std::string_view key, int64_t v) { return Scalar(key, GgufType::kInt64, v); }
  GgufWriter& F32(std::string_view key, float v) { return Scalar(key, GgufType::kFloat32, v); }
  GgufWriter& F64(std::string_view key, double v) { return Scalar(key, GgufType::kFloat64, v); }
  GgufWriter& Bool(std::string_view key, bool v) { return Scalar<uint8_t>(key, GgufType::kBool, v ? 1 : 0); }
  GgufWriter& String(std::string_view key, std::string_view v) {
    std::string value;
    AppendString(value, v);
    return Raw(key, static_cast<uint32_t>(GgufType::kString), value);
  }
  GgufWriter& Strings(std::string_view key, const std::vector<std::string>& v) {
    std::string value = ArrayHead(GgufType::kString, v.size());
    for (const std::string& text : v) AppendString(value, text);
    return Raw(key, static_cast<uint32_t>(GgufType::kArray), value);
  }
  GgufWriter& I32s(std::string_view key, const std::vector<int32_t>& v) { return Array(key, GgufType::kInt32, v); }
  GgufWriter& U32s(std::string_view key, const std::vector<uint32_t>& v) { return Array(key, GgufType::kUint32, v); }
  GgufWriter& U64s(std::string_view key, const std::vector<uint64_t>& v) { return Array(key, GgufType::kUint64, v); }
  GgufWriter& F32s(std::string_view key, const std::vector<float>& v) { return Array(key, GgufType::kFloat32, v); }

  // A key whose type number and value bytes the caller chooses.
  GgufWriter& Raw(std::string_view key, uint32_t type, std::string_view value) {
    ++key_count;
    AppendString(keys_, key);
    AppendRaw(keys_, type);
    keys_ += value;
    return *this;
  }

  // `shape` in GGUF order, row length first; `data` must hold the tensor's blocks.
  GgufWriter& Tensor(std::string_view name, DType type, const std::vector<uint64_t>& shape, std::string_view data) {
    PadData();
    return RawTensor(name, GgmlNumber(type), shape, data_.size(), data);
  }
  // A tensor entry with any type number and offset; `data` is appended to the data section unpadded.
  GgufWriter& RawTensor(std::string_view name, uint32_t type, const std::vector<uint64_t>& shape, uint64_t offset,
                        std::string_view data) {
    ++tensor_count;
    AppendString(tensors_, name);
    AppendRaw(tensors_, static_cast<uint32_t>(shape.size()));
    for (uint64_t size : shape) AppendRaw(tensors_, size);
    AppendRaw(tensors_, type);
    AppendRaw(tensors_, offset);
    data_ += data;
    return *this;
  }

  std::string Finish() const {
    std::string bytes = magic;
    AppendRaw(bytes, version);
    AppendRaw(bytes, tensor_count);
    AppendRaw(bytes, key_count);
    bytes += keys_;
    bytes += tensors_;
    if (tensor_count > 0) bytes.append((alignment - bytes.size() % alignment) % alignment, '\0');
    return bytes + data_;
  }

  // The header, to be changed by tests. `alignment` pads the data; write general.alignment yourself.
  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t tensor_count = 0;
  uint64_t key_count = 0;
  size_t alignment = 32;

  static std::string ArrayHead(GgufType element, uint64_t count) {
    std::string value;
    AppendRaw(value, static_cast<uint32_t>(element));
    AppendRaw(value, count);
    return value;
  }

 private:
  template <typename T>
  GgufWriter& Scalar(std::string_view key, GgufType type, T v) {
    std::string value;
    AppendRaw(value, v);
    return Raw(key, static_cast<uint32_t>(type), value);
  }
  template <typename T>
  GgufWriter& Array(std::string_view key, GgufType element, const std::vector<T>& v) {
    std::string value = ArrayHead(element, v.size());
    for (T number : v) AppendRaw(value, number);
    return Raw(key, static_cast<uint32_t>(GgufType::kArray), value);
  }
  void PadData() { data_.append((alignment - data_.size() % alignment) % alignment, '\0'); }

  std::string keys_;
  std::string tensors_;
  std::string data_;
};

// A file in the temporary folder that goes away with the object.
class TempFile {
 public:
  explicit TempFile(std::string_view bytes) {
    std::string name = std::filesystem::temp_directory_path() / "octet_test_XXXXXX";
    const int fd = mkstemp(name.data());
    if (fd >= 0) close(fd);
    path_ = name;
    std::ofstream(path_, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The folder with downloaded models, as scripts/fetch-model fills it.
inline std::filesystem::path ModelsDir() {
  if (const char* dir = std::getenv("OCTET_MODELS_DIR"); dir != nullptr && *dir != '\0') return dir;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return std::filesystem::path(cache) / "octet/models";
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "/" : home) / ".cache/octet/models";
}

}  // namespace octet

#endif  // OCTET_TESTS_UNIT_GGUF_WRITER_H_
