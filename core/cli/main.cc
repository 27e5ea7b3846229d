// octet: language models with an INT8 KV cache, on any backend that can be loaded.
#include <string>

#include "core/base/command_line.h"
#include "core/base/program.h"
#include "core/cli/commands.h"
#include "core/cli/file_fault.h"

namespace {

absl::StatusOr<int> Octet(int argc, char** argv) {
  octet::CommandLine program("octet", "Runs language models whose KV cache is INT8 end to end.");
  program.SetVersion(std::string("octet ") + OCTET_VERSION);
  program.SetFooter(
      "Exit codes:\n"
      "  0    done\n"
      "  1    anything else: the device, the machine or the output failed, or a limit of quality does not hold\n"
      "  2    the command line, a message or a file is wrong\n"
      "  3    not supported, or not available here\n"
      "  130  ended by Ctrl-C (SIGINT); 141: by the reader of stdout going away (SIGPIPE); 143: by SIGTERM\n");
  octet::AddRun(program);
  octet::AddInfo(program);
  octet::AddTokenize(program);
  octet::AddQuality(program);
  octet::AddBench(program);
  const auto parsed = program.Parse(argc, argv);
  if (!parsed.ok()) return parsed.status();
  if (!*parsed) return octet::kExitDone;
  if (absl::Status status = program.RunCommand(); !status.ok()) return status;
  return octet::kExitDone;
}

}  // namespace

int main(int argc, char** argv) {
  octet::AnswerFileFaults();
  return octet::RunProgram("octet", [=] { return Octet(argc, argv); });
}
