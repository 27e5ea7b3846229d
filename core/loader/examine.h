// What becomes of one backend file: looked at as data, opened, asked for its table and its devices. Nothing that a file
// holds or a backend answers ends the process, short of its own code doing so; each refusal has its own sentence.
#ifndef OCTET_CORE_LOADER_EXAMINE_H_
#define OCTET_CORE_LOADER_EXAMINE_H_

#include <string>
#include <vector>

#include "core/loader/device.h"
#include "octet/abi.h"

namespace octet {

enum class BackendState {
  kReady,        // at least one device
  kUnavailable,  // loaded, but it has no device here
  kNotLoaded,    // the file could not be opened
  kRefused,      // the file is not a backend that this program can use
  kShadowed,     // an earlier folder has a backend of the same name
  kDeselected,   // left out by $OCTET_BACKENDS
};
const char* BackendStateName(BackendState state);

// What happened to one file.
struct BackendReport {
  std::string name, path;
  std::string abi = "-";  // "0.9", "2", or "-" where it could not be read
  std::string vendor, version, build;
  BackendState state = BackendState::kNotLoaded;
  std::string reason;               // one sentence; empty when ready
  std::vector<DeviceInfo> devices;  // device i is "<name>:i"
};

// Fills the rest of a report that has its name and path. Returns the table where the backend was loaded and
// may be used, also without a device; null otherwise. The library stays open until the process ends.
const octet_backend_v1* ExamineBackend(const octet_host_v1* host, BackendReport& report);

}  // namespace octet

#endif  // OCTET_CORE_LOADER_EXAMINE_H_
