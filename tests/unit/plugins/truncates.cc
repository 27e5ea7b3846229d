// A backend that, when its device is opened, cuts the file that $OCTET_TEST_TRUNCATE names to nothing: a model file
// that shrinks at a known moment of a whole program's run.
#include <unistd.h>

#include <cstdlib>

#include "tests/unit/plugins/fake_backend.h"

namespace {
class Truncates final : public fake::Backend {
 public:
  Truncates() : Backend("truncates") {}
  octet::StatusOr<std::unique_ptr<octet::OpenDevice>> Open(uint32_t index, std::string_view options) override {
    const char* file = std::getenv("OCTET_TEST_TRUNCATE");
    if (file == nullptr || truncate(file, 0) != 0) return octet::Internal("cannot cut $OCTET_TEST_TRUNCATE");
    return Backend::Open(index, options);
  }
};
}  // namespace
OCTET_BACKEND(Truncates);
