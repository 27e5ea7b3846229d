// Runs a fuzz target over every file of the folders named on the command line: how corpora are replayed where there is
// no libFuzzer. A failure is a crash or an abort; the name of the file being run is printed first where it happens.
// Reference: https://llvm.org/docs/LibFuzzer.html#fuzz-target

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::string g_running;  // changed only between inputs

// The sanitizers print their own report; without them this is all that names the input.
void NameInput(int signal_number) {
  const char* const parts[] = {"\nwhile running ", g_running.c_str(), "\n"};
  for (const char* part : parts) {
    if (write(STDERR_FILENO, part, std::char_traits<char>::length(part)) < 0) break;
  }
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

int RunFolder(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) paths.push_back(entry.path().string());
  }
  if (error || paths.empty()) {
    std::fprintf(stderr, "%s: no inputs to run%s%s\n", folder.c_str(), error ? ": " : "",
                 error ? error.message().c_str() : "");
    return 1;
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (file.bad() || !file.is_open()) {
      std::fprintf(stderr, "cannot read %s\n", path.c_str());
      return 1;
    }
    // Exactly as many bytes as the input has, so that a sanitizer sees the first one beyond.
    const auto copy = std::make_unique<uint8_t[]>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), copy.get());
    g_running = path;
    LLVMFuzzerTestOneInput(copy.get(), bytes.size());
  }
  std::printf("%zu inputs of %s\n", paths.size(), folder.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER...\n", argv[0]);
    return 2;
  }
  std::signal(SIGABRT, NameInput);
  for (int i = 1; i < argc; ++i) {
    if (const int failed = RunFolder(argv[i]); failed != 0) return failed;
  }
  return 0;
}
