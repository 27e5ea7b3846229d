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
#include "core/model/generator.h"
#include "core/model/runner.h"
#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"
#include "nlohmann/json_fwd.hpp"

namespace octet {

// A bound for Encode(text).size() that costs no encoding: no token covers more bytes than the longest one has.
int64_t FewestTokens(const Tokenizer& tokenizer, std::string_view text);

// The list of tools that the file `path` holds, `text`; its form is that of "tools" in the OpenAI API's chat
// completions. InvalidArgument names the path and the entry that is none.
absl::StatusOr<nlohmann::ordered_json> ParseTools(const std::string& path, std::string_view text);

// A model's chat template, with the tools that are offered to the model. Immutable.
class ChatFormat {
 public:
  // `tools_path`: a file with a list of tools in the OpenAI form; empty for none. InvalidArgument when the model has no
  // template or the file is no such list; Unimplemented when the template leaves tools out.
  static absl::StatusOr<ChatFormat> Create(const Tokenizer& tokenizer, const std::string& tools_path);
  ChatFormat(ChatFormat&&) noexcept;
  ~ChatFormat();

  bool has_tools() const { return tools_ != nullptr; }
  // The prompt for the answer to these messages, special tokens spelled out.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& messages) const;

 private:
  ChatFormat(ChatTemplate chat, const Tokenizer& tokenizer);

  ChatTemplate template_;
  std::string bos_, eos_;
  std::unique_ptr<const nlohmann::ordered_json> tools_;  // null: none
};

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
