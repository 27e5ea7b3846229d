#include "core/text/gguf_tokenizer.h"

#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace octet {
namespace {

absl::Status ReadId(const GgufFile& file, std::string_view key, std::optional<int64_t>* id) {
  if (!file.Has(key)) return absl::OkStatus();
  absl::StatusOr<int64_t> value = file.GetInt(key);
  if (!value.ok()) return value.status();
  *id = *value;
  return absl::OkStatus();
}

absl::Status ReadString(const GgufFile& file, std::string_view key, std::string_view absent, std::string* to) {
  absl::StatusOr<std::string_view> value = file.GetStringOr(key, absent);
  if (!value.ok()) return value.status();
  *to = std::string(*value);
  return absl::OkStatus();
}

absl::Status ReadStrings(const GgufFile& file, std::string_view key, std::vector<std::string>* to) {
  absl::StatusOr<std::vector<std::string_view>> values = file.GetStrings(key);
  if (!values.ok()) return values.status();
  to->assign(values->begin(), values->end());
  return absl::OkStatus();
}

absl::Status ReadScores(const GgufFile& file, std::vector<float>* to) {
  absl::StatusOr<std::vector<float>> values = file.GetFloats("tokenizer.ggml.scores");
  if (!values.ok()) return values.status();
  *to = *std::move(values);
  return absl::OkStatus();
}

absl::Status ReadFlag(const GgufFile& file, std::string_view key, bool absent, bool* to) {
  absl::StatusOr<bool> value = file.GetBoolOr(key, absent);
  if (!value.ok()) return value.status();
  *to = *value;
  return absl::OkStatus();
}

absl::Status ReadTokenTypes(const GgufFile& file, std::vector<TokenType>* to) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  if (!file.Has(kKey)) return absl::OkStatus();
  absl::StatusOr<std::vector<int64_t>> values = file.GetInts(kKey);
  if (!values.ok()) return values.status();
  to->reserve(values->size());
  for (int64_t value : *values) {
    if (value < 1 || value > 6) {
      return absl::InvalidArgumentError(
          fmt::format("{}: token {} has the type {}; known are 1 to 6", kKey, to->size(), value));
    }
    to->push_back(static_cast<TokenType>(value));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> TokenizerSpecFromGguf(const GgufFile& file) {
  absl::StatusOr<std::string_view> model = file.GetString("tokenizer.ggml.model");
  if (!model.ok()) return model.status();
  const bool scored = *model == "llama";
  if (*model != "gpt2" && !scored) {
    return absl::UnimplementedError(fmt::format(
        "{} has a vocabulary of the kind '{}', which is not supported; supported are 'gpt2' (byte-level byte pairs) "
        "and 'llama' (SentencePiece with scores)",
        file.path(), *model));
  }
  TokenizerSpec spec;
  spec.model = std::string(*model);
  if (scored) {
    // What SentencePiece numbers these when nobody says otherwise.
    spec.bos_id = 1;
    spec.eos_id = 2;
  }
  absl::Status status = ReadString(file, "tokenizer.ggml.pre", "default", &spec.pre_tokenizer);
  if (status.ok()) status = ReadStrings(file, "tokenizer.ggml.tokens", &spec.tokens);
  if (status.ok()) status = ReadTokenTypes(file, &spec.token_types);
  if (status.ok()) {
    status = scored ? ReadScores(file, &spec.scores) : ReadStrings(file, "tokenizer.ggml.merges", &spec.merges);
  }
  if (status.ok() && scored) status = ReadFlag(file, "tokenizer.ggml.add_space_prefix", true, &spec.add_space_prefix);
  if (status.ok()) status = ReadId(file, "tokenizer.ggml.bos_token_id", &spec.bos_id);
  if (status.ok()) status = ReadId(file, "tokenizer.ggml.eos_token_id", &spec.eos_id);
  if (status.ok()) status = ReadId(file, "tokenizer.ggml.eot_token_id", &spec.eot_id);
  if (status.ok()) status = ReadId(file, "tokenizer.ggml.padding_token_id", &spec.pad_id);
  // Llama 3's files from before the key existed rely on the reader to put BOS first.
  const bool bos_by_default = scored || (spec.pre_tokenizer == "llama-bpe" && spec.bos_id.has_value());
  if (status.ok()) status = ReadFlag(file, "tokenizer.ggml.add_bos_token", bos_by_default, &spec.add_bos);
  if (status.ok()) status = ReadFlag(file, "tokenizer.ggml.add_eos_token", false, &spec.add_eos);
  if (status.ok()) status = ReadString(file, "tokenizer.chat_template", "", &spec.chat_template);
  if (!status.ok()) return status;
  return spec;
}

}  // namespace octet
