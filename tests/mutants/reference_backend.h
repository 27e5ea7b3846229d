// A backend made of the reference: every operation decodes to double, calls tests/reference and stores the answer. It
// is the kit's own yardstick (it must pass everything that it supports) and the body in which faults are planted. Slow
// on purpose. Rows lie by the strides of the layout; the latent cache of MLA is refused.
#ifndef OCTET_TESTS_MUTANTS_REFERENCE_BACKEND_H_
#define OCTET_TESTS_MUTANTS_REFERENCE_BACKEND_H_

#include <memory>

#include "octet/abi.h"
#include "octet/attention_backend.h"
#include "octet/dense_ops.h"
#include "octet/fused_ops.h"
#include "octet/quant_ops.h"

namespace octet::mutants {

// Without state of their own: usable from several devices and threads.
std::unique_ptr<QuantOps> MakeReferenceQuant();
std::unique_ptr<AttentionBackend> MakeReferenceAttention();
std::unique_ptr<DenseOps> MakeReferenceDense();
std::unique_ptr<FusedOps> MakeReferenceFused();

// What the entry symbol of a library answers; a mutant may change a copy of the table first.
const octet_backend_v1* ReferenceQuery(const octet_host_v1* host, octet_error* error);

}  // namespace octet::mutants

#endif  // OCTET_TESTS_MUTANTS_REFERENCE_BACKEND_H_
