// Writes the models of tiny_chat_model.h for tests that run whole programs. Usage: write_tiny_chat_model FOLDER
#include <fstream>
#include <iostream>
#include <string>

#include "tests/integration/tiny_chat_model.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_tiny_chat_model FOLDER\n";
    return 2;
  }
  const std::string folder = std::string(argv[1]) + "/";
  const auto write = [&folder](const char* name, const std::string& bytes) {
    return static_cast<bool>(std::ofstream(folder + name, std::ios::binary) << bytes << std::flush);
  };
  const bool ok = write("chat.gguf", octet::TinyChatModelFile()) && write("base.gguf", octet::TinyChatModelFile("")) &&
                  write("no_tools.gguf", octet::TinyChatModelFile("{{ messages[-1].content }}"));
  if (!ok) std::cerr << "the models cannot be written to " << folder << "\n";
  return ok ? 0 : 1;
}
