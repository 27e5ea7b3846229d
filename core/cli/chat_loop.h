// octet run --chat: lines in, answers out, until the user ends it.
#ifndef OCTET_CORE_CLI_CHAT_LOOP_H_
#define OCTET_CORE_CLI_CHAT_LOOP_H_

#include "absl/status/status.h"
#include "core/cli/chat_session.h"

namespace octet {

// Reads messages and commands from stdin and streams the answers to stdout; what else there is to say goes to stderr.
// On a terminal Ctrl-C stops the answer. A message that cannot be asked is a sentence, and the conversation goes on;
// InvalidArgument at the end where stdin is no terminal and that happened. Other errors of a device or a model end it.
absl::Status RunChat(ChatSession& session, bool has_tools, GenerateOptions options);

}  // namespace octet

#endif  // OCTET_CORE_CLI_CHAT_LOOP_H_
