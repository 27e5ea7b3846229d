// A GGUF file of any bytes: it is refused, or everything that it hands out lies inside it and its model can be
// described. Memory stays within a small multiple of the file.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/gguf/gguf_file.h"
#include "core/model/config.h"
#include "core/model/model_tensors.h"
#include "core/model/rope.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/live_bytes.h"

namespace octet {
namespace {

using fuzz::Require;
using fuzz::RequireSentence;

unsigned Touch(std::string_view bytes) {
  unsigned sum = 0;
  for (char c : bytes) sum += static_cast<unsigned char>(c);
  return sum;
}

// Every way of reading a key; exactly one fits its type, none for a boolean array or nested ones.
void ReadKey(const GgufFile& file, std::string_view key) {
  Require(!file.TypeOf(key).empty(), "a key without a type");
  int fits = 0;
  const auto count = [&fits](const absl::Status& status) {
    RequireSentence(status);
    fits += status.ok() ? 1 : 0;
  };
  count(file.GetInt(key).status());
  count(file.GetFloat(key).status());
  count(file.GetBool(key).status());
  const auto text = file.GetString(key);
  count(text.status());
  if (text.ok()) Touch(*text);
  count(file.GetInts(key).status());
  count(file.GetFloats(key).status());
  const auto texts = file.GetStrings(key);
  count(texts.status());
  if (texts.ok()) std::for_each(texts->begin(), texts->end(), Touch);
  Require(fits <= 1, "a key with values of two types");
  RequireSentence(file.GetArraySize(key).status());
}

void ReadTensor(const GgufFile& file, const GgufTensor& tensor) {
  Require(file.FindTensor(tensor.name) == &tensor, "a tensor that is not found by its name");
  std::vector<float> row(static_cast<size_t>(tensor.row_elements()));
  for (const int64_t index : {int64_t{0}, tensor.rows - 1}) {
    Require(DequantizeTensorRow(tensor, index, row.data()).ok(), "a row that cannot be read");
  }
  RequireSentence(DequantizeTensorRow(tensor, tensor.rows, row.data()));
}

void Describe(const GgufFile& file) {
  const auto config = ReadModelConfig(file);
  RequireSentence(config.status());
  if (!config.ok()) return;
  Require(config->q_heads % config->kv_heads == 0 && config->rope.rotary_dims <= config->head_dim &&
              config->vocab_size > 0 && !config->rope.bases.empty(),
          "a model description that contradicts itself");
  const auto tensors = FindModelTensors(file, *config);
  RequireSentence(tensors.status());
  for (const RopeConfig::Base& base : config->rope.bases) MakeRopeAngles(base, config->rope.rotary_dims, {});
}

}  // namespace
}  // namespace octet

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const octet::fuzz::LiveBytes parsing;
  const auto file = octet::GgufFile::FromBytes("input", std::as_bytes(std::span(data, size)));
  // A tensor's entry is 104 bytes, in a vector that doubles; the smallest in a file has 33.
  parsing.RequireAtMost(8 << 10, 16, size, "parsing");
  octet::fuzz::RequireSentence(file.status());
  if (!file.ok()) return 0;
  const octet::fuzz::LiveBytes reading;
  for (const std::string_view key : (*file)->keys()) octet::ReadKey(**file, key);
  for (const octet::GgufTensor& tensor : (*file)->tensors()) octet::ReadTensor(**file, tensor);
  // int8 values become int64.
  reading.RequireAtMost(8 << 10, 9, size, "reading");
  const octet::fuzz::LiveBytes describing;
  octet::Describe(**file);
  // 4096 layers at most, of 16 bytes before their tensors are found.
  describing.RequireAtMost(128 << 10, 16, size, "describing the model");
  return 0;
}
