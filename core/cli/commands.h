// The subcommands of octet. Each Add... puts one on the command line; the function it sets runs after parsing and
// returns the status that RunProgram turns into the exit code.
#ifndef OCTET_CORE_CLI_COMMANDS_H_
#define OCTET_CORE_CLI_COMMANDS_H_

#include <functional>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace octet {

using Command = std::function<absl::Status()>;

void AddRun(CLI::App& app, Command& chosen);
void AddInfo(CLI::App& app, Command& chosen);
void AddTokenize(CLI::App& app, Command& chosen);
void AddQuality(CLI::App& app, Command& chosen);

}  // namespace octet

#endif  // OCTET_CORE_CLI_COMMANDS_H_
