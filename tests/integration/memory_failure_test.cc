// Every allocation of load, plan and step fails once: the device's through its tables, the host's through operator new.
// Each time the request ends with an error, nothing stays allocated, and the next run gives the same logits.
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/thread_pool.h"
#include "core/gguf/gguf_file.h"
#include "core/loader/device.h"
#include "core/loader/host_table.h"
#include "core/loader/open_library.h"
#include "core/loader/registry.h"
#include "core/model/model.h"
#include "core/model/runner.h"
#include "core/sampling/sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "octet/convert.h"
#include "tests/integration/count_allocations.h"
#include "tests/integration/random_model.h"

namespace octet {
namespace {

using ::testing::ContainsRegex;

constexpr char kCpuBackend[] = OCTET_BUILD_DIR "/lib/octet/backends/liboctet_backend_cpu.so";

// ---- The CPU backend with creating calls that count, and of which one fails.

const octet_backend_v1* g_real = nullptr;
int64_t g_until_failure = 0;  // 1: the next call
int64_t g_alive = 0;          // handles made and not given back

template <typename Handle, typename Call>
octet_code Create(Handle** out, octet_error* error, Call&& call) {
  if (g_until_failure > 0 && --g_until_failure == 0) {
    return convert::WriteError(OCTET_RESOURCE_EXHAUSTED, "made to fail", {}, error);
  }
  const octet_code code = call();
  if (code == OCTET_OK && *out != nullptr) ++g_alive;
  return code;
}

template <typename Handle>
void Destroy(Handle* handle, void (*destroy)(Handle*)) {
  if (handle != nullptr) --g_alive;
  destroy(handle);
}

const octet_backend_v1* FailingCpu() {
  static octet_backend_v1 table = *g_real;
  static octet_device_ops device = *g_real->device;
  static octet_memory_ops memory = *g_real->memory;
  static octet_stream_ops stream = *g_real->stream;
  static octet_attention_ops attention = *g_real->attention;
  static octet_dense_ops dense = *g_real->dense;
  table.device = &device;
  table.memory = &memory;
  table.stream = &stream;
  table.attention = &attention;
  table.dense = &dense;
  device.open = [](uint32_t index, const char* options, octet_device** out, octet_error* error) {
    return Create(out, error, [&] { return g_real->device->open(index, options, out, error); });
  };
  device.close = [](octet_device* handle) { Destroy(handle, g_real->device->close); };
  memory.alloc = [](octet_device* on, uint64_t bytes, uint32_t kind, octet_buffer** out, octet_error* error) {
    return Create(out, error, [&] { return g_real->memory->alloc(on, bytes, kind, out, error); });
  };
  memory.free = [](octet_buffer* handle) { Destroy(handle, g_real->memory->free); };
  stream.create = [](octet_device* on, octet_stream** out, octet_error* error) {
    return Create(out, error, [&] { return g_real->stream->create(on, out, error); });
  };
  stream.destroy = [](octet_stream* handle) { Destroy(handle, g_real->stream->destroy); };
  attention.make_plan = [](octet_device* on, const octet_attention_desc* desc, octet_buffer* workspace, uint64_t offset,
                           octet_plan** out, octet_error* error) {
    return Create(out, error, [&] { return g_real->attention->make_plan(on, desc, workspace, offset, out, error); });
  };
  attention.release_plan = [](octet_plan* handle) { Destroy(handle, g_real->attention->release_plan); };
  dense.prepare_weight = [](octet_stream* on, const octet_weight_desc* desc, octet_weight** out, octet_error* error) {
    return Create(out, error, [&] { return g_real->dense->prepare_weight(on, desc, out, error); });
  };
  dense.release_weight = [](octet_weight* handle) { Destroy(handle, g_real->dense->release_weight); };
  return &table;
}

// ---- One request from the file to its second token

using Logits = std::vector<float>;

absl::StatusOr<Logits> Request(const std::string& path, const char** part) {
  const auto in = [part](const char* what) { *part = what; };
  in("open the device");
  auto device = Device::Open(FailingCpu(), 0, "cpu:0", "");
  if (!device.ok()) return device.status();
  in("open the file");
  auto file = GgufFile::Open(path);
  if (!file.ok()) return file.status();
  in("prepare the model");
  auto model = Model::Prepare(**device, **file, {.exact = false, .max_step_tokens = 16});
  if (!model.ok()) return model.status();
  in("upload");
  if (auto status = (*model)->Upload(); !status.ok()) return status;
  in("plan");
  RunnerOptions options;
  options.kv.dtype = DType::kI8;
  options.kv.page_tokens = 4;
  options.max_model_len = 16;
  auto runner = Runner::Prepare(**model, options);
  if (!runner.ok()) return runner.status();
  in("allocate");
  if (auto status = (*runner)->Allocate(); !status.ok()) return status;
  in("step");
  PageTable pages(&(*runner)->cache().pool());
  std::vector<int32_t> tokens = {5, 1, 7, 3, 2};
  if (auto status = pages.Reserve(6); !status.ok()) return status;
  SequenceInput input{.tokens = tokens, .cached = 0, .pages = &pages};
  auto step = (*runner)->Step({&input, 1});
  if (!step.ok()) return step.status();
  in("sample");
  SamplingParams sampling;
  sampling.temperature = 0.8f;
  sampling.top_k = 10;
  auto sampler = Sampler::Create(sampling);
  if (!sampler.ok()) return sampler.status();
  auto next = sampler->Sample(*step, tokens);
  if (!next.ok()) return next.status();
  in("second step");
  const int32_t id = *next;
  input = {.tokens = {&id, 1}, .cached = 5, .pages = &pages};
  step = (*runner)->Step({&input, 1});
  if (!step.ok()) return step.status();
  in("done");
  return Logits(step->begin(), step->end());
}

// What the program makes of an exception.
absl::StatusOr<Logits> Answer(const std::string& path, const char** part) {
  try {
    return Request(path, part);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  }
}

// A model whose K bias asks for offset tables, so that every kind of buffer is made.
const std::string& ModelBytes() {
  static const std::string bytes = [] {
    RandomModelSpec spec;
    spec.architecture = "qwen2";
    spec.hidden = 32;
    spec.q_heads = 2;
    spec.kv_heads = 1;
    spec.ffn = 32;
    spec.k_bias = 20;
    spec.types = {{"ffn_down", DType::kQ8_0}};
    return RandomModel(spec).File();
  }();
  return bytes;
}

class MemoryFailureTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static ThreadPool pool(2);
    auto query = OpenLibrary(kCpuBackend);
    ASSERT_TRUE(query.ok()) << query.status();
    octet_error error = convert::Sized<octet_error>();
    g_real = (*query)(MakeHostTable(&pool), &error);
    ASSERT_NE(g_real, nullptr) << error.message;
  }
  void SetUp() override {
    for (int i = 0; i < 2; ++i) {  // the second run finds what is made once per process
      auto logits = Answer(temp_.path(), &part_);
      ASSERT_TRUE(logits.ok()) << part_ << ": " << logits.status();
      expected_ = *std::move(logits);
    }
    ASSERT_EQ(expected_.size(), 67u);
  }

  void ExpectAnUnfailedRunWorks(int64_t after) {
    const auto logits = Answer(temp_.path(), &part_);
    ASSERT_TRUE(logits.ok()) << "after failure " << after << ", " << part_ << ": " << logits.status();
    EXPECT_EQ(*logits, expected_) << "after failure " << after;
  }

  TempFile temp_{ModelBytes()};
  Logits expected_;
  const char* part_ = "";  // how far a run came
};

TEST_F(MemoryFailureTest, EveryDeviceAllocationMayFail) {
  int64_t failures = 0;
  for (bool failed = true; failed; ++failures) {
    g_until_failure = failures + 1;
    {
      const auto logits = Answer(temp_.path(), &part_);
      failed = g_until_failure == 0;
      EXPECT_EQ(logits.ok(), !failed) << "call " << failures << ", " << part_;
      if (failed) {
        EXPECT_EQ(logits.status(), absl::ResourceExhaustedError("cpu:0: made to fail")) << part_;
      }
    }
    g_until_failure = 0;
    EXPECT_EQ(g_alive, 0) << "call " << failures << ", " << part_;
    ExpectAnUnfailedRunWorks(failures);
  }
  // A device, 2 streams, 10 weights, 5 buffers, a plan.
  EXPECT_GT(failures, 15);
}

TEST_F(MemoryFailureTest, EveryHostAllocationMayFail) {
  int64_t nth = 1, tolerated = 0;
  const int64_t before = LiveAllocations();
  for (;; ++nth) {
    FailAllocation(nth);
    bool ok = false, same = false;
    {
      const auto logits = Answer(temp_.path(), &part_);
      const bool failed = AllocationHasFailed();
      FailAllocation(0);
      if (!failed) break;
      ok = logits.ok();
      same = ok && *logits == expected_;
      if (!ok) {
        // A backend that could not answer a question for want of memory has said no.
        EXPECT_THAT(logits.status().ToString(), ContainsRegex("RESOURCE_EXHAUSTED|out of host memory"))
            << "allocation " << nth << ", " << part_;
      }
    }
    // Some allocations are only a convenience, but then the answer is the right one.
    EXPECT_EQ(ok, same) << "allocation " << nth << ", " << part_;
    tolerated += ok;
    EXPECT_EQ(g_alive, 0) << "allocation " << nth << ", " << part_;
    ASSERT_EQ(LiveAllocations(), before) << "allocation " << nth << ", " << part_;
    if (nth % 8 == 1) ExpectAnUnfailedRunWorks(nth);
  }
  EXPECT_GT(nth, 300);
  EXPECT_LT(tolerated, 10);
}

// A search takes a hundred times as long under sanitizers, so they see a part of its failures.
constexpr int64_t kSearchStep = convert::BuildSanitizer() == std::string_view("none") ? 1 : 512;

TEST_F(MemoryFailureTest, EveryAllocationOfTheSearchForBackendsMayFail) {
  // Opened libraries and the tables lent to them stay for ever, so only the outcome counts here.
  const RegistryOptions options{.backend_paths = {kCpuBackend, OCTET_BUILD_DIR "/tests/plugins"}};
  ASSERT_TRUE(Registry::Load(options).ok());
  int64_t nth = 1;
  for (;; nth += kSearchStep) {
    FailAllocation(nth);
    bool failed = true;
    absl::Status status;
    try {
      auto registry = Registry::Load(options);
      status = registry.ok() ? (*registry)->Open("cpu").status() : registry.status();
      failed = AllocationHasFailed();
    } catch (const std::bad_alloc&) {
    }
    FailAllocation(0);
    // A refusal has its sentence, also the one that a backend gave for want of memory.
    EXPECT_EQ(status.ok(), status.message().empty()) << "allocation " << nth << ": " << status;
    if (!failed) {
      EXPECT_TRUE(status.ok()) << status;
      break;
    }
    if (nth % 16 != 1) continue;
    auto registry = Registry::Load(options);
    ASSERT_TRUE(registry.ok()) << registry.status();
    EXPECT_TRUE((*registry)->Open("cpu").ok()) << "after failure " << nth;
  }
  EXPECT_GT(nth, 100);
}

TEST_F(MemoryFailureTest, EveryAllocationOfAThreadPoolMayFail) {
  const int64_t before = LiveAllocations();
  int64_t nth = 1;
  for (;; ++nth) {
    FailAllocation(nth);
    bool failed = false;
    try {
      const ThreadPool pool(3);
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    FailAllocation(0);
    EXPECT_EQ(LiveAllocations(), before) << nth;
    if (!failed) break;
  }
  EXPECT_GT(nth, 3);
}

}  // namespace
}  // namespace octet
