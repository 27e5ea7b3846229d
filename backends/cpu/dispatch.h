// Which instruction set's kernels a device uses: an ordered list, best first, each entry with a reason when it
// declines.
#ifndef OCTET_BACKENDS_CPU_DISPATCH_H_
#define OCTET_BACKENDS_CPU_DISPATCH_H_

#include <memory>
#include <string>
#include <string_view>

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/onednn_linear.h"
#include "octet/backend.hpp"
#include "octet/status.h"

namespace octet_cpu {

// `isa`: "v2", "v3", "avxvnni", "v4", "vnni", "amx" or "portable", as this build and processor have them; empty: the
// environment variable OCTET_CPU_ISA, or else the first that does not decline. InvalidArgument for an unknown name,
// Unavailable for one that this processor cannot run. OCTET_VERBOSE=dispatch logs the choice and each refusal. Tables
// live until the process ends. Thread-safe.
octet::StatusOr<const KernelTable*> ChooseKernels(std::string_view isa, const octet::HostServices& host);

// Who computes prompts' linear layers of fast weights: null, the kernels; or oneDNN. `prompts`: "own", "onednn" (in the
// first of its types that is quick here) or "onednn-TYPE"; empty: the environment variable OCTET_CPU_PROMPTS, or else
// what measured faster with these kernels. InvalidArgument for an unknown name, Unavailable with the reason where
// oneDNN was asked for and cannot be had. Logs as ChooseKernels does. Thread-safe.
octet::StatusOr<std::shared_ptr<OneDnn>> ChoosePrompts(std::string_view prompts, const KernelTable& kernels,
                                                       const octet::HostServices& host);

// "x86-64-v4+amx,x86-64-v4+vnni,x86-64-v4,x86-64-v3+avxvnni,x86-64-v3,x86-64-v2": what this library was built with.
std::string KernelTargets();

}  // namespace octet_cpu

#endif  // OCTET_BACKENDS_CPU_DISPATCH_H_
