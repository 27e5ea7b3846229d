// How a model wants a conversation written down: its chat template, and the tools that are offered to it.
#ifndef OCTET_CORE_CLI_CHAT_FORMAT_H_
#define OCTET_CORE_CLI_CHAT_FORMAT_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"
#include "nlohmann/json_fwd.hpp"

namespace octet {

// The list of tools that the file `path` holds, `text`; its form is that of "tools" in the OpenAI API's chat
// completions. InvalidArgument names the path and the entry that is none.
absl::StatusOr<nlohmann::ordered_json> ParseTools(const std::string& path, std::string_view text);

// Immutable.
class ChatFormat {
 public:
  // `tools_path`: a file with a list of tools in the OpenAI form; empty for none. InvalidArgument when the model has no
  // template or the file is no such list, NotFound when there is none; Unimplemented when the template leaves tools
  // out.
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

}  // namespace octet

#endif  // OCTET_CORE_CLI_CHAT_FORMAT_H_
