// A backend as a vendor would write it.
#include "tests/unit/plugins/fake_backend.h"

namespace {
class Good final : public fake::Backend {
 public:
  Good() : Backend("good") {}
};
}  // namespace
OCTET_BACKEND(Good);
