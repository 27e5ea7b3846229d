// A backend that computes in host memory: its name and its two classes. HostMemoryBackend supplies the device, memory,
// streams and plain loops for the dense part of a model; OCTET_BACKEND defines the one exported symbol.
#include "attention.h"
#include "octet/plugin.hpp"
#include "quant.h"

namespace example {

class Backend final : public octet::HostMemoryBackend {
 public:
  Backend() : HostMemoryBackend({.name = "template", .vendor = "example", .version = "0.1.0"}) {}
  octet::QuantOps* quant() override { return &quant_; }
  octet::AttentionBackend* attention() override { return &attention_; }

 private:
  Quant quant_;
  Attention attention_;
};

}  // namespace example

OCTET_BACKEND(example::Backend);
