// The vocabulary that a GGUF file carries in its tokenizer.* metadata.
// Reference: the "Tokenizer" section of ggml's docs/gguf.md.
#ifndef OCTET_CORE_TEXT_GGUF_TOKENIZER_H_
#define OCTET_CORE_TEXT_GGUF_TOKENIZER_H_

#include "absl/status/statusor.h"
#include "core/gguf/gguf_file.h"
#include "core/text/tokenizer.h"

namespace octet {

// Copies what it needs; the file may be closed afterwards. Unimplemented for a vocabulary kind other than "gpt2" and
// "llama", otherwise the file's errors for a key that is missing or has the wrong type. Fit is checked by
// Tokenizer::Create.
absl::StatusOr<TokenizerSpec> TokenizerSpecFromGguf(const GgufFile& file);

}  // namespace octet

#endif  // OCTET_CORE_TEXT_GGUF_TOKENIZER_H_
