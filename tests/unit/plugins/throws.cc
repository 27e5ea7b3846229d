// A backend whose constructor throws: the query answers NULL with its text.
#include <stdexcept>

#include "tests/unit/plugins/fake_backend.h"

namespace {
class Throws final : public fake::Backend {
 public:
  Throws() : Backend("throws") { throw std::runtime_error("the licence file is missing"); }
};
}  // namespace
OCTET_BACKEND(Throws);
