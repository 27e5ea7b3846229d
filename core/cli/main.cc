// octet: language models with an INT8 KV cache, on any backend that can be loaded.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/cli/commands.h"
#include "core/cli/exit_code.h"
#include "core/cli/file_fault.h"

namespace {

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : Commands(app)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

// The arguments, last one first as CLI11 wants them. It reads "--prompt=" as "--prompt" and takes the next argument for
// the value, so an empty value becomes an argument of its own.
std::vector<std::string> Arguments(const CLI::App& app, int argc, char** argv) {
  const CLI::App* command = argc > 1 ? FindCommand(app, argv[1]) : nullptr;
  const auto takes_value = [command](const std::string& name) {
    const CLI::Option* option = command == nullptr ? nullptr : command->get_option_no_throw(name);
    return option != nullptr && option->get_items_expected_min() > 0;
  };
  std::vector<std::string> args;
  bool is_value = false;  // of the option before
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    const bool is_name = !is_value && arg.starts_with("-");
    const bool empty_value = is_name && arg.ends_with("=") && takes_value(arg.substr(0, arg.size() - 1));
    if (empty_value) arg.pop_back();
    is_value = is_name && !empty_value && takes_value(arg);
    args.push_back(std::move(arg));
    if (empty_value) args.emplace_back();
  }
  return {args.rbegin(), args.rend()};
}

// CLI11's words for what octet does not have do not say what it has.
int FinishParse(const CLI::App& app, const CLI::ParseError& error, const std::string& first) {
  if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
  const auto used = app.get_subcommands();
  const std::string help = used.empty() ? "octet --help" : "octet " + used.front()->get_name() + " --help";
  const std::vector<std::string> unknown = app.remaining(true);
  std::string text = error.what();
  if (used.empty()) {
    text = first.empty() ? "a command is missing" : "there is no command '" + first + "'";
    text += "; octet has";
    for (const CLI::App* command : Commands(app)) text += " " + command->get_name();
  } else if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !unknown.empty()) {
    text = "octet " + used.front()->get_name() + " does not take '" + unknown.front() + "'";
  }
  return octet::Finish(absl::InvalidArgumentError(text + "; see " + help));
}

// Parses and runs; what goes wrong in an expected way ends here.
int Main(int argc, char** argv) {
  CLI::App app("Runs language models whose KV cache is INT8 end to end.", "octet");
  app.set_version_flag("--version", std::string("octet ") + OCTET_VERSION);
  app.require_subcommand(1);
  octet::Command chosen;
  octet::AddRun(app, chosen);
  octet::AddInfo(app, chosen);
  octet::AddTokenize(app, chosen);
  octet::AddQuality(app, chosen);
  try {
    app.parse(Arguments(app, argc, argv));
  } catch (const CLI::ParseError& error) {
    return FinishParse(app, error, argc > 1 ? argv[1] : "");
  }
  absl::Status status = chosen();
  if (status.ok() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    status = absl::UnknownError("the output could not be written to stdout in full");
  }
  return octet::Finish(status);
}

// For what is caught below: without a further allocation.
int Fail(const char* what, const char* more = "") {
  std::fprintf(stderr, "octet: %s%s\n", what, more);
  return octet::kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  octet::AnswerFileFaults();
  try {
    return Main(argc, argv);
  } catch (const std::bad_alloc&) {
    return Fail("the machine, or the limit that was set for this process, has too little memory for this");
  } catch (const std::system_error& error) {  // output that cannot be written, threads that cannot be started
    return Fail("the system refused: ", error.what());
  } catch (const std::exception& error) {
    return Fail("octet has failed, which is a bug of its own: ", error.what());
  }
}
