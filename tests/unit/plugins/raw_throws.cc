// Backends that let a C++ exception through the C boundary, each from another function.
#include <stdexcept>

#include "tests/unit/plugins/fake_backend.h"

namespace {

class Throws final : public fake::Backend {
 public:
  Throws() : Backend(VARIANT_NAME) {}
};

}  // namespace

extern "C" const octet_backend_v1* octet_backend_query_v1(const octet_host_v1* host, octet_error* error) {
#if defined(VARIANT_QUERY_THROWS)
  throw std::runtime_error("not for the host's eyes");
#elif defined(VARIANT_QUERY_THROWS_INT)
  throw 7;
#endif
  static octet_backend_v1 table = *octet::plugin::Query<Throws>(host, error);
  static octet_device_ops device = *table.device;
  table.device = &device;
#if defined(VARIANT_COUNT_THROWS)
  device.count = [](uint32_t*, octet_error*) -> octet_code { throw std::runtime_error("not for the host's eyes"); };
#elif defined(VARIANT_DESCRIBE_THROWS)
  device.describe = [](uint32_t, octet_device_info*, octet_error*) -> octet_code { throw 7; };
#endif
  return &table;
}
