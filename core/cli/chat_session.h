// One conversation with a model: its messages, the prompt that the model's chat template makes of them, and a cache
// that is not computed again for what was said before.
#ifndef OCTET_CORE_CLI_CHAT_SESSION_H_
#define OCTET_CORE_CLI_CHAT_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/cli/chat_format.h"
#include "core/model/generator.h"
#include "core/model/runner.h"
#include "core/text/tokenizer.h"
#include "nlohmann/json_fwd.hpp"

namespace octet {

// A bound for Encode(text).size() that costs no encoding: no token covers more bytes than the longest one has.
int64_t FewestTokens(const Tokenizer& tokenizer, std::string_view text);

// Thread-compatible. `format`, `tokenizer` and `runner` are borrowed.
class ChatSession {
 public:
  ChatSession(const ChatFormat& format, const Tokenizer& tokenizer, Runner& runner,
              const std::optional<std::string>& system);
  ~ChatSession();

  // Adds a message ("user", or "tool" for what a tool returned), answers it and adds the answer, also one that was cut
  // short. The message is taken back where there is no answer: after an error, and when `options.cancel` came before
  // the first piece of text. InvalidArgument, Unimplemented and ResourceExhausted say why this message cannot be asked;
  // any other error comes from the device or the model. The callbacks are Generate's.
  absl::StatusOr<Generation> Ask(std::string_view role, const std::string& text, const GenerateOptions& options,
                                 const std::function<void(std::string_view)>& on_text = {},
                                 const std::function<void(double)>& on_prompt = {});

  // Forgets all messages but the system's.
  void Reset();

  const nlohmann::ordered_json& messages() const { return *messages_; }
  bool answered() const;                                                       // since it began, or since Reset
  int64_t room() const { return sequence_.runner().options().max_model_len; }  // tokens
  int64_t tokens() const { return tokens_; }  // of the conversation, after the last answer

 private:
  const ChatFormat& format_;
  const Tokenizer& tokenizer_;
  CachedSequence sequence_;
  size_t kept_messages_;
  int64_t tokens_ = 0;
  std::unique_ptr<nlohmann::ordered_json> messages_;
};

}  // namespace octet

#endif  // OCTET_CORE_CLI_CHAT_SESSION_H_
