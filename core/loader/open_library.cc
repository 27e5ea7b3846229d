#include "core/loader/open_library.h"

#include <fstream>
#include <mutex>
#include <new>
#include <string>
#include <vector>

// With the standard file system Boost.DLL is header only, but then it misses the three headers above.
#define BOOST_DLL_USE_STD_FS
#include <boost/dll/shared_library.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/loader/hints.h"

namespace octet {

absl::StatusOr<octet_backend_query_v1_fn*> OpenLibrary(const std::string& path) {
  // Never destroyed, so no library is ever closed.
  static std::mutex* const mutex = new std::mutex;
  static auto* const libraries = new std::vector<boost::dll::shared_library>;
  try {
    // The overload that throws: the other one loses the dynamic linker's text.
    boost::dll::shared_library library(path, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
    std::lock_guard<std::mutex> lock(*mutex);
    libraries->push_back(std::move(library));  // first: its code has run, so it stays even without the symbol
    return &libraries->back().get<octet_backend_query_v1_fn>("octet_backend_query_v1");
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    // "boost::dll::shared_library::load() failed (dlerror system message: TEXT): Bad file descriptor"
    std::string text = e.what();
    constexpr std::string_view kBegin = "(dlerror system message: ";
    const size_t begin = text.find(kBegin), end = text.rfind("): ");
    if (begin != std::string::npos && end != std::string::npos && end > begin) {
      text = text.substr(begin + kBegin.size(), end - begin - kBegin.size());
    }
    return absl::FailedPreconditionError(ExplainOpenError(path, text));
  }
}

}  // namespace octet
