// What a backend does with the pages of a KV cache: choose their layout, write rows into them, read rows back, move
// pages. Implemented by a backend (plugin.hpp turns it into the C table), called by core through the loader.
#ifndef OCTET_QUANT_OPS_H_
#define OCTET_QUANT_OPS_H_

#include "octet/kv_cache.h"
#include "octet/status.h"

namespace octet {
inline namespace v1 {

// One object per open device. Calls on different streams may run at the same time (rule A11). Work is ordered by the
// stream; a call may return before it is done. Errors: Unimplemented for a descriptor whose Supports level is 0,
// InvalidArgument for tensors that do not fit it; nothing is written in either case.
class QuantOps {
 public:
  virtual ~QuantOps() = default;

  // Fills order, bases, strides and layer_bytes of a layout whose other fields are set.
  virtual Status ChooseLayout(KvLayout& layout) const = 0;

  // May rows of type `input` be appended to and gathered from such a layout?
  virtual Support Supports(const KvLayout& layout, DType input) const = 0;

  // Offset, rotation, quantization and store of tokens.k and tokens.v into tokens.slots, in the arithmetic order that
  // docs/numerics.md fixes: equal input gives equal pages on every backend. Tensors as in octet_kv_tokens.
  virtual Status Append(Stream& stream, const KvLayout& layout, const KvLayer& layer, const KvTokens& tokens) = 0;

  // The reverse, into tokens.k and tokens.v (either may be null): dequantized, rotation undone, offset added.
  virtual Status Gather(Stream& stream, const KvLayout& layout, const KvLayer& layer, const KvTokens& tokens) = 0;

  // pairs: i32 [n][2], source page and destination page; destinations are distinct and none of them is a source.
  virtual Status CopyPages(Stream& stream, const KvLayout& layout, const KvLayer& layer, const Tensor& pairs) = 0;

  // Between pages (i32 [n]) of this layout and canonical pages, one after the other from `offset` bytes of the buffer.
  virtual Status ExportPages(Stream& stream, const KvLayout& layout, const KvLayer& layer, const Tensor& pages,
                             Buffer& canonical, uint64_t offset) = 0;
  virtual Status ImportPages(Stream& stream, const KvLayout& layout, const KvLayer& layer, const Tensor& pages,
                             Buffer& canonical, uint64_t offset) = 0;
};

}  // namespace v1
}  // namespace octet

#endif  // OCTET_QUANT_OPS_H_
