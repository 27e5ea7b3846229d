#include "core/loader/hints.h"

#include <cctype>

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

struct Hint {
  std::string_view prefix;  // of the library's name
  std::string_view provider;
  bool versioned;  // the number after ".so." belongs to the provider's name
};

constexpr Hint kHints[] = {
    {"libcuda.so", "the NVIDIA driver", false},
    {"libnvidia-ml.so", "the NVIDIA driver", false},
    {"libcudart.so", "CUDA runtime", true},
    {"libcublas", "CUDA toolkit", true},
    {"libcudnn", "cuDNN", true},
    {"libnvrtc.so", "CUDA toolkit", true},
    {"libnccl.so", "NCCL", true},
    {"libamdhip64.so", "ROCm runtime", true},
    {"libhsa-runtime64.so", "ROCm runtime", false},
    {"librocblas.so", "rocBLAS of ROCm", false},
    {"libhipblas", "hipBLAS of ROCm", false},
    {"libMIOpen.so", "MIOpen of ROCm", false},
    {"libze_loader.so", "the Level Zero loader (package libze1)", false},
    {"libsycl.so", "the oneAPI runtime", false},
    {"libOpenCL.so", "an OpenCL loader (package ocl-icd-libopencl1)", false},
    {"libvulkan.so", "the Vulkan loader (package libvulkan1)", false},
    {"libdnnl.so", "oneDNN (package libdnnl2 or libdnnl3)", false},
    {"libgomp.so", "the GCC OpenMP runtime (package libgomp1)", false},
    {"libomp.so", "the LLVM OpenMP runtime (package libomp5)", false},
    {"libiomp5.so", "the Intel OpenMP runtime", false},
    {"libtbb.so", "oneTBB (package libtbb12)", false},
    {"libstdc++.so", "the GCC C++ library (package libstdc++6)", false},
    {"libc++.so", "the LLVM C++ library (package libc++1)", false},
};

std::string_view Basename(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

std::string LibraryHint(std::string_view library) {
  library = Basename(library);
  for (const Hint& hint : kHints) {
    if (!library.starts_with(hint.prefix)) continue;
    const size_t so = library.find(".so.");
    if (!hint.versioned || so == std::string_view::npos) return std::string(hint.provider);
    std::string_view version = library.substr(so + 4);
    version = version.substr(0, version.find('.'));
    return absl::StrCat(std::string(hint.provider), " ", std::string(version));
  }
  return "";
}

std::string ExplainOpenError(std::string_view path, std::string_view text) {
  // glibc: "<library>: cannot open shared object file: <reason>"
  const size_t colon = text.find(": ");
  const std::string_view subject = colon == std::string_view::npos ? std::string_view() : text.substr(0, colon);
  if (text.find("cannot open shared object file") != std::string_view::npos && !subject.empty() && subject != path) {
    const std::string hint = LibraryHint(subject);
    const bool absent = text.find("No such file") != std::string_view::npos;
    return absl::StrCat("needs ", std::string(subject), ", which ", absent ? "is not installed" : "could not be opened",
                        hint.empty() ? "" : absl::StrCat(" (it comes with ", hint, ")"));
  }
  const size_t undefined = text.find("undefined symbol: ");
  if (undefined != std::string_view::npos) {
    std::string_view symbol = text.substr(undefined + 18);
    size_t end = 0;
    while (end < symbol.size() && (std::isalnum(static_cast<unsigned char>(symbol[end])) != 0 || symbol[end] == '_' ||
                                   symbol[end] == '.' || symbol[end] == '@')) {
      ++end;
    }
    return absl::StrCat("needs the symbol ", std::string(symbol.substr(0, end)),
                        ", which neither it nor the libraries it names provide: it must be linked again");
  }
  const size_t version = text.find("version `");
  if (version != std::string_view::npos && text.find("not found") != std::string_view::npos) {
    const std::string_view name = text.substr(version + 9);
    return absl::StrCat(
        "needs ", std::string(name.substr(0, name.find('\''))), " of ", std::string(Basename(subject)),
        ", which is newer than the one installed here: build the backend on an older system or link the "
        "C++ library into it");
  }
  return absl::StrCat("the dynamic linker refused it: ", std::string(text));
}

}  // namespace octet
