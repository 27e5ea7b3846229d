#include "core/base/command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <sstream>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/program.h"
#include "fmt/format.h"

namespace octet {
namespace {

std::vector<const CLI::App*> Commands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// The command that the arguments are for: `app` itself where it has none, null where the first argument names none.
const CLI::App* FindCommand(const CLI::App& app, int argc, const char* const* argv) {
  if (Commands(app).empty()) return &app;
  for (const CLI::App* command : Commands(app)) {
    if (argc > 1 && command->get_name() == argv[1]) return command;
  }
  return nullptr;
}

// The arguments, last one first as CLI11 wants them. It reads "--prompt=" as "--prompt" and takes the next argument for
// the value, so an empty value becomes an argument of its own.
std::vector<std::string> Arguments(const CLI::App* command, int argc, const char* const* argv) {
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

// What is wrong with the number of values, or with the value of a flag.
std::string AboutValues(const CLI::App& command, const std::string& what) {
  const CLI::Option* option = nullptr;  // the longest name, as --stop is part of --stop-token-id
  for (const CLI::Option* other : command.get_options()) {
    if (what.find(other->get_name()) == std::string::npos) continue;
    if (option == nullptr || other->get_name().size() > option->get_name().size()) option = other;
  }
  if (option == nullptr) return what;
  const std::string name = option->get_name();
  if (option->get_items_expected_max() == 0) return name + " takes no value";
  if (option->count() > 1) return absl::StrCat(name, " was given ", option->count(), " times; give it once");
  return name + " needs a value";
}

std::string Sentence(const CLI::App& app, const CLI::ParseError& error, const std::string& first) {
  const std::string what = error.what();
  if (dynamic_cast<const CLI::ValidationError*>(&error) != nullptr) return what;
  const auto used = app.get_subcommands();
  if (used.empty() && !Commands(app).empty()) {
    std::string text = first.empty() ? "a command is missing" : "there is no command '" + first + "'";
    text += "; " + app.get_name() + " has";
    for (const CLI::App* command : Commands(app)) text += " " + command->get_name();
    return text + "; see " + app.get_name() + " --help";
  }
  const CLI::App& command = used.empty() ? app : *used.front();
  const std::string name = used.empty() ? app.get_name() : app.get_name() + " " + command.get_name();
  const std::vector<std::string> unknown = app.remaining(true);
  std::string text = what;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !unknown.empty()) {
    text = unknown.front() == first && &command != &app
               ? "'" + first + "' stands before the command; write " + name + " first"
               : name + " does not take '" + unknown.front() + "'";
  } else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr ||
             dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    text = AboutValues(command, what);
  }
  return text + "; see " + name + " --help";
}

template <typename T>
std::string NameOf(Range<T> range) {
  const Range<T> all;
  if constexpr (std::is_integral_v<T>) return fmt::format("a whole number from {} to {}", range.min, range.max);
  if (range.min == all.min && range.max == all.max) return "a number";
  if (range.above_min) {
    return fmt::format("a number above {}{}", range.min,
                       range.max == all.max ? "" : fmt::format(" and at most {}", range.max));
  }
  return range.max == all.max ? fmt::format("a number of {} or more", range.min)
                              : fmt::format("a number from {} to {}", range.min, range.max);
}

template <typename T>
CLI::Option* AddNumberTo(CLI::App& app, const std::string& names, Range<T> range, std::function<void(T)> set,
                         const std::string& help) {
  const std::string name = names.substr(names.rfind(',') + 1);
  CLI::Option* option = app.add_option(
      names,
      [=](const CLI::results_t& values) {
        for (const std::string& text : values) {
          const auto value = ParseNumber<T>(name, text, range);
          if (!value.ok()) throw CLI::ValidationError(std::string(value.status().message()));
          set(*value);
        }
        return true;
      },
      help);
  return option->type_name("N");
}

}  // namespace

struct CommandLine::Impl {
  std::unique_ptr<CLI::App> program;  // of the program alone
  CLI::App* app = nullptr;
  std::vector<std::unique_ptr<CommandLine>> commands;
  std::function<absl::Status()> run;
};

CommandLine::CommandLine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

CommandLine::CommandLine(const std::string& program, const std::string& help) : impl_(std::make_unique<Impl>()) {
  impl_->program = std::make_unique<CLI::App>(help, program);
  impl_->app = impl_->program.get();
}

CommandLine::~CommandLine() = default;

void CommandLine::SetVersion(const std::string& version) { impl_->app->set_version_flag("--version", version); }

void CommandLine::SetFooter(const std::string& text) { impl_->app->footer(text); }

CommandLine& CommandLine::AddCommand(const std::string& name, const std::string& help) {
  impl_->app->require_subcommand(1);
  auto command = std::make_unique<Impl>();
  command->app = impl_->app->add_subcommand(name, help);
  impl_->commands.push_back(std::unique_ptr<CommandLine>(new CommandLine(std::move(command))));
  return *impl_->commands.back();
}

void CommandLine::SetRun(std::function<absl::Status()> run) { impl_->run = std::move(run); }

void CommandLine::AddText(const std::string& names, std::string* value, const std::string& help, Text kind) {
  CLI::Option* option = impl_->app->add_option(names, *value, help);
  if (kind == Text::kRequired) option->required();
  if (kind == Text::kShowsDefault) option->capture_default_str();
}

void CommandLine::AddTexts(const std::string& names, std::vector<std::string>* values, const std::string& help,
                           Texts kind) {
  CLI::Option* option = impl_->app->add_option(names, *values, help);
  if (kind == Texts::kOneEach) option->allow_extra_args(false);
  if (kind == Texts::kManyRequired) option->required();
}

void CommandLine::AddFlag(const std::string& names, bool* value, const std::string& help) {
  impl_->app->add_flag(names, *value, help);
}

bool CommandLine::Has(const std::string& name) const { return impl_->app->count(name) > 0; }

absl::Status CommandLine::RunCommand() const {
  for (const auto& command : impl_->commands) {
    if (command->impl_->app->parsed()) return command->impl_->run();
  }
  return absl::FailedPreconditionError("no command was parsed");
}

absl::StatusOr<bool> CommandLine::Parse(int argc, const char* const* argv) {
  CLI::App& app = *impl_->app;
  try {
    app.parse(Arguments(FindCommand(app, argc, argv), argc, argv));
    return true;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      return absl::InvalidArgumentError(Sentence(app, error, argc > 1 ? argv[1] : ""));
    }
    std::ostringstream answer;
    app.exit(error, answer, answer);
    Print(answer.str());
    return false;
  }
}

template <typename T>
absl::StatusOr<T> ParseNumber(std::string_view what, std::string_view text, Range<T> range) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  // A NaN is in no range.
  if (whole && value >= range.min && value <= range.max && !(range.above_min && value == range.min)) return value;
  return absl::InvalidArgumentError(fmt::format("{} is '{}'; use {}", what, text, NameOf(range)));
}

template <typename T>
void CommandLine::AddNumber(const std::string& names, Range<T> range, std::function<void(T)> set,
                            const std::string& help, Numbers kind) {
  CLI::Option* option = AddNumberTo<T>(*impl_->app, names, range, std::move(set), help);
  if (kind == Numbers::kRepeatable) option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
}

template <typename T>
void CommandLine::AddNumber(const std::string& names, Range<T> range, T* value, const std::string& help) {
  AddNumberTo<T>(
      *impl_->app, names, range, [value](T number) { *value = number; }, help)
      ->default_str(fmt::format("{}", *value));
}

#define OCTET_NUMBER(T)                                                                                          \
  template absl::StatusOr<T> ParseNumber(std::string_view, std::string_view, Range<T>);                          \
  template void CommandLine::AddNumber(const std::string&, Range<T>, std::function<void(T)>, const std::string&, \
                                       Numbers);                                                                 \
  template void CommandLine::AddNumber(const std::string&, Range<T>, T*, const std::string&);
OCTET_NUMBER(int32_t)
OCTET_NUMBER(int64_t)
OCTET_NUMBER(uint32_t)
OCTET_NUMBER(uint64_t)
OCTET_NUMBER(double)
#undef OCTET_NUMBER

}  // namespace octet
