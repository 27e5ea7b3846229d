// Finds backend libraries, looks at each before running any of its code, opens the good ones for the life of the
// process, and picks a device by name.
#ifndef OCTET_CORE_LOADER_REGISTRY_H_
#define OCTET_CORE_LOADER_REGISTRY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/thread_pool.h"
#include "core/loader/device.h"
#include "core/loader/examine.h"

namespace octet {

struct RegistryOptions {
  std::vector<std::string> backend_paths;  // --backend-path: files or folders, searched first
  ThreadPool* pool = nullptr;              // lent to backends as parallel_for; must outlive every device; null: none
};

// Thread-compatible. Libraries that were opened stay open until the process ends, whatever happens to the registry.
class Registry {
 public:
  // Searches and loads. Never fails as a whole: each file's fate is in reports(). InvalidArgument only where a
  // --backend-path does not exist.
  static absl::StatusOr<std::unique_ptr<Registry>> Load(const RegistryOptions& options);

  const std::vector<BackendReport>& reports() const { return reports_; }
  // What was searched, in order, for people: "/opt/octet/lib/octet/backends (2 files)".
  const std::vector<std::string>& searched() const { return searched_; }

  // "auto" takes the first ready GPU, then another accelerator, then the CPU (of several backends for it, the one with
  // more SIMD lanes); "cuda" is "cuda:0". A named device that is not ready is an error with its reason and never
  // another device: Unavailable (known backend, not ready), NotFound (no such backend or index; the sentence lists what
  // there is) or InvalidArgument (neither "auto", NAME nor NAME:NUMBER). `options` is handed to the backend's open,
  // whose errors are passed on.
  absl::StatusOr<std::unique_ptr<Device>> Open(const std::string& device, const std::string& options = "");

  // The sentence that says what "auto" chose and why; empty before Open("auto").
  const std::string& choice() const { return choice_; }

 private:
  Registry() = default;

  std::vector<BackendReport> reports_;
  std::vector<const octet_backend_v1*> tables_;  // parallel to reports_, null where not loaded
  std::vector<std::string> searched_;
  std::string choice_;
};

}  // namespace octet

#endif  // OCTET_CORE_LOADER_REGISTRY_H_
