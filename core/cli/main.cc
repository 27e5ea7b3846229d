// octet: language models with an INT8 KV cache, on any backend that can be loaded.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>

#include "core/cli/commands.h"
#include "core/cli/exit_code.h"

namespace {

// CLI11 spreads its messages over lines; a failure here is one sentence.
int FinishParse(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  std::string text = error.what();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  const auto used = app.get_subcommands();
  text += "; see octet " + (used.empty() ? std::string() : used.front()->get_name() + " ") + "--help";
  return octet::Finish(absl::InvalidArgumentError(text));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs language models whose KV cache is INT8 end to end.", "octet");
  app.set_version_flag("--version", std::string("octet ") + OCTET_VERSION);
  app.require_subcommand(1);
  octet::Command chosen;
  octet::AddRun(app, chosen);
  octet::AddInfo(app, chosen);
  octet::AddTokenize(app, chosen);
  octet::AddQuality(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return FinishParse(app, error);
  }
  try {
    absl::Status status = chosen();
    if (status.ok() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
      status = absl::UnknownError("the output could not be written to stdout in full");
    }
    return octet::Finish(status);
  } catch (const std::bad_alloc&) {
    return octet::Finish(absl::ResourceExhaustedError("the machine has too little memory for this"));
  } catch (const std::system_error& error) {  // of fmt::print
    return octet::Finish(absl::UnknownError(std::string("the output could not be written: ") + error.what()));
  }
}
