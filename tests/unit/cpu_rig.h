// A device of the CPU backend behind its C table, for unit tests: memory, tensors made from vectors, and host tables
// with thread pools of different sizes.
#ifndef OCTET_TESTS_UNIT_CPU_RIG_H_
#define OCTET_TESTS_UNIT_CPU_RIG_H_

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/base/thread_pool.h"
#include "gtest/gtest.h"
#include "octet/abi.h"
#include "octet/tensor.h"

namespace octet::testing {

// Lives until the process ends, as the contract asks.
inline const octet_host_v1* HostWithThreads(int threads) {
  static auto& hosts = *new std::deque<octet_host_v1>;
  octet_host_v1 host{};
  host.struct_size = sizeof host;
  host.ctx = new ThreadPool(threads);
  host.parallel_for = [](void* ctx, int64_t n, void (*body)(void*, uint32_t, int64_t, int64_t), void* arg) {
    static_cast<ThreadPool*>(ctx)->ParallelFor(n, body, arg);
  };
  host.max_workers = static_cast<uint32_t>(threads);
  return &hosts.emplace_back(host);
}

inline const octet_host_v1* SharedHost(int threads) {
  static const octet_host_v1* const hosts[] = {HostWithThreads(1), HostWithThreads(2), HostWithThreads(3)};
  return hosts[threads - 1];
}

struct Error : octet_error {
  Error() : octet_error{} { struct_size = sizeof(octet_error); }
};

#define OCTET_ASSERT_OK(call)                             \
  do {                                                    \
    ::octet::testing::Error error;                        \
    ASSERT_EQ((call)(&error), OCTET_OK) << error.message; \
  } while (false)

class Rig {
 public:
  explicit Rig(int threads = 2, const char* options = nullptr) {
    Error error;
    table = octet_backend_query_v1(SharedHost(threads), &error);
    EXPECT_NE(table, nullptr) << error.message;
    EXPECT_EQ(table->device->open(0, options, &device, &error), OCTET_OK) << error.message;
    EXPECT_EQ(table->stream->create(device, &stream, &error), OCTET_OK) << error.message;
  }
  ~Rig() {
    for (octet_buffer* buffer : buffers_) table->memory->free(buffer);
    table->stream->destroy(stream);
    table->device->close(device);
  }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  octet_buffer* Alloc(uint64_t bytes, uint8_t fill = 0xff) {
    Error error;
    octet_buffer* buffer = nullptr;
    EXPECT_EQ(table->memory->alloc(device, std::max<uint64_t>(bytes, 1), OCTET_MEMORY_DEVICE, &buffer, &error),
              OCTET_OK)
        << error.message;
    std::memset(Map(buffer), fill, bytes);
    buffers_.push_back(buffer);
    return buffer;
  }
  uint8_t* Map(octet_buffer* buffer) {
    void* host = nullptr;
    EXPECT_EQ(table->memory->map(buffer, &host, nullptr), OCTET_OK);
    return static_cast<uint8_t*>(host);
  }
  template <typename T>
  octet_tensor Put(DType type, const std::vector<T>& values, std::initializer_list<int64_t> shape) {
    octet_buffer* buffer = Alloc(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(Map(buffer), values.data(), values.size() * sizeof(T));
    return MakeTensor(buffer, type, shape);
  }
  octet_tensor Put(const std::vector<float>& values, std::initializer_list<int64_t> shape) {
    return Put(DType::kF32, values, shape);
  }
  octet_tensor New(std::initializer_list<int64_t> shape) {  // f32, NaN
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return MakeTensor(Alloc(static_cast<uint64_t>(n) * 4), DType::kF32, shape);
  }
  // The elements of an f32 tensor, row by row.
  std::vector<float> Get(const octet_tensor& t) {
    std::vector<float> values;
    const auto* data = reinterpret_cast<const float*>(Map(t.buffer) + t.offset);
    const int64_t n = NumElements(t);
    for (int64_t i = 0; i < n; ++i) {
      int64_t rest = i, at = 0;
      for (int d = t.rank - 1; d >= 0; rest /= t.shape[d], --d) at += rest % t.shape[d] * t.stride[d];
      values.push_back(data[at]);
    }
    return values;
  }

  const octet_backend_v1* table = nullptr;
  octet_device* device = nullptr;
  octet_stream* stream = nullptr;

 private:
  std::vector<octet_buffer*> buffers_;
};

inline std::vector<float> RandomFloats(size_t n, uint32_t seed, float size = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> values(n);
  for (float& v : values) v = normal(random);
  return values;
}

}  // namespace octet::testing

#endif  // OCTET_TESTS_UNIT_CPU_RIG_H_
