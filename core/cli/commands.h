// The commands of octet. Each Add... puts one on the command line, with the function that RunCommand calls; its status
// is what RunProgram turns into the exit code.
#ifndef OCTET_CORE_CLI_COMMANDS_H_
#define OCTET_CORE_CLI_COMMANDS_H_

namespace octet {

class CommandLine;

void AddBench(CommandLine& program);
void AddRun(CommandLine& program);
void AddInfo(CommandLine& program);
void AddTokenize(CommandLine& program);
void AddQuality(CommandLine& program);

}  // namespace octet

#endif  // OCTET_CORE_CLI_COMMANDS_H_
