// A tiny llama model that chats: random weights, a token per byte, a chat template, and answers of lowercase letters
// that depend on all that was said. For tests only.
#ifndef OCTET_TESTS_INTEGRATION_TINY_CHAT_MODEL_H_
#define OCTET_TESTS_INTEGRATION_TINY_CHAT_MODEL_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/tiny_model.h"

namespace octet {

inline constexpr int32_t kTinyChatStart = 256, kTinyChatEnd = 257;  // <|im_start|>, <|im_end|>

// ChatML, with the tools as a message of their own.
inline constexpr char kTinyChatTemplate[] =
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.content == 'refuse' %}{{ raise_exception('not like this') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// `chat_template` empty: no template in the file.
inline std::string TinyChatModelFile(const std::string& chat_template = kTinyChatTemplate, uint32_t context = 16384) {
  TinyModel model;
  model.vocab = 258;
  model.hidden = 32;
  model.context = context;
  model.tied_head = false;
  model.without = {"output.weight"};
  GgufWriter writer = TinyModelFile(model);

  // Only letters and the end token have logits other than 0.
  std::mt19937 random(7);
  std::vector<float> head(model.vocab * model.hidden, 0.0f);
  for (uint32_t id = 0; id < model.vocab; ++id) {
    if ((id < 'a' || id > 'z') && id != kTinyChatEnd) continue;
    for (uint32_t c = 0; c < model.hidden; ++c) {
      head[id * model.hidden + c] = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f;
    }
  }
  writer.Tensor("output.weight", DType::kF32, {model.hidden, model.vocab}, FloatBytes(head));

  // GPT-2's alphabet: a printable byte is itself, the n-th of the others U+0100 + n.
  std::vector<std::string> tokens;
  uint32_t others = 0;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const uint32_t c = printable ? byte : 256 + others++;
    tokens.push_back(c < 0x80 ? std::string(1, static_cast<char>(c))
                              : std::string{static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 0x3f))});
  }
  tokens.insert(tokens.end(), {"<|im_start|>", "<|im_end|>"});
  std::vector<int32_t> types(256, 1);
  types.insert(types.end(), {3, 3});
  writer.String("tokenizer.ggml.model", "gpt2").Strings("tokenizer.ggml.tokens", tokens);
  writer.I32s("tokenizer.ggml.token_type", types).Strings("tokenizer.ggml.merges", {});
  writer.U32("tokenizer.ggml.eos_token_id", kTinyChatEnd);
  if (!chat_template.empty()) writer.String("tokenizer.chat_template", chat_template);
  return writer.Finish();
}

}  // namespace octet

#endif  // OCTET_TESTS_INTEGRATION_TINY_CHAT_MODEL_H_
