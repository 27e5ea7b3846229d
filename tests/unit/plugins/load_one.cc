// Loads one backend file as octet does, prints what became of it, and ends like any program, so that the library's end
// functions run too: what loader_damage_test runs in a process of its own. Usage: load_one FILE
#include <unistd.h>

#include <cstdio>

#include "core/loader/registry.h"

int main(int, char** argv) {
  alarm(60);  // a damaged library may also wait for ever
  const auto registry = octet::Registry::Load({.backend_paths = {argv[1]}});
  if (!registry.ok() || (*registry)->reports().empty()) return 3;
  const octet::BackendReport& report = (*registry)->reports()[0];
  std::printf("%s: %s\n", octet::BackendStateName(report.state), report.reason.c_str());
  return report.state == octet::BackendState::kReady ? 0 : 1;
}
