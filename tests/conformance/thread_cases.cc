// Several threads, each with a stream of its own, on one device and on several: the answers are those of one thread,
// and errors belong to the call that failed. Worth most under the thread sanitizer. Rule: abi.h, A11.
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/harness.h"
#include "tests/conformance/scene.h"
#include "tests/conformance/test_cache.h"

namespace octet::conformance {
namespace {

constexpr int kThreads = 4;

Status AttentionInParallel(SideSpec side) {
  AttentionCase cases[kThreads];
  AttentionResult serial[kThreads];
  for (int i = 0; i < kThreads; ++i) {
    AttentionCase& c = cases[i];
    c.cache = Both(side);
    c.softcap = 0.5f * static_cast<float>(i);
    c.sequences = {{1, 40 + 9 * i, 0, i}, {2 + i, 20, 0, 10 + i}};
    Scene scene;
    OCTET_RETURN_IF_ERROR(scene.Init(c));
    OCTET_RETURN_IF_ERROR(scene.AppendAll());
    OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), &serial[i]));
  }
  return OnThreads(kThreads, [&](int thread) -> Status {
    const StreamOfThread own;
    Scene scene;
    OCTET_RETURN_IF_ERROR(scene.Init(cases[thread]));
    OCTET_RETURN_IF_ERROR(scene.AppendAll());
    for (int i = 0; i < 8; ++i) {
      AttentionResult result;
      OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), &result));
      EXPECT_EQ(result.out_bytes, serial[thread].out_bytes) << "thread " << thread << ", run " << i;
      EXPECT_EQ(result.lse_bytes, serial[thread].lse_bytes) << "thread " << thread << ", run " << i;
    }
    return OkStatus();
  });
}

// Each thread its own cache.
Status CachesInParallel() {
  return OnThreads(kThreads, [](int thread) -> Status {
    const StreamOfThread own;
    const CacheSpec spec = Both(Int8(64));
    TestCache cache;
    OCTET_RETURN_IF_ERROR(cache.Init(spec, 4));
    for (int i = 0; i < 4; ++i) {
      const Rows rows = NormalRows(spec, {3, 60, 17, 16, 40}, static_cast<uint64_t>(100 + 10 * thread + i));
      OCTET_RETURN_IF_ERROR(cache.Append(rows));
      std::vector<uint8_t> canonical;
      OCTET_RETURN_IF_ERROR(cache.Export({0, 1, 2, 3}, &canonical));
      cache.ExpectStored(rows, {0, 1, 2, 3}, canonical);
      Rows back = rows;
      OCTET_RETURN_IF_ERROR(cache.Gather(back));
    }
    return OkStatus();
  });
}

// One weight for all.
Status LinearInParallel() {
  DenseOps* dense = TheSubject().device->dense();
  if (dense == nullptr) return Unimplemented("the backend has no dense table");
  const Rows numbers = NormalRows(Both(Float(DType::kF32), 256, 1), std::vector<int64_t>(64, 0), 61);
  const FloatWeight host(64, 256, 3, numbers.k);
  const Support support = dense->SupportsWeight(host.desc);
  if (support.level == 0) return Unimplemented(support.reason);
  const auto weight = TheSubject().device->PrepareWeight(&TheSubject().s(), host.desc);
  if (!weight.ok()) return Promised("prepare_weight", weight.status());
  Sync();
  auto run = [&](int thread, std::vector<uint8_t>* bytes) -> Status {
    const std::vector<float> x(numbers.v.begin() + thread * 256, numbers.v.begin() + (thread + 3) * 256);
    const Block x_block(x), y(3 * 64 * 4);
    const Workspace workspace(support.workspace_bytes);
    const Tensor xt = x_block.View(DType::kF32, {3, 256}), yt = y.View(DType::kF32, {3, 64});
    const LinearArgs args = ArgsOf(xt, yt, weight->get(), workspace);
    const Status status = dense->Linear(TheSubject().s(), args);
    Sync();
    *bytes = y.Bytes();
    return Promised("linear", status);
  };
  std::vector<uint8_t> serial[kThreads];
  for (int i = 0; i < kThreads; ++i) OCTET_RETURN_IF_ERROR(run(i, &serial[i]));
  return OnThreads(kThreads, [&](int thread) -> Status {
    const StreamOfThread own;
    for (int i = 0; i < 8; ++i) {
      std::vector<uint8_t> bytes;
      OCTET_RETURN_IF_ERROR(run(thread, &bytes));
      EXPECT_EQ(bytes, serial[thread]) << "thread " << thread << ", run " << i;
    }
    return OkStatus();
  });
}

Status DevicesInParallel() {
  return OnThreads(kThreads, [](int thread) -> Status {
    for (int i = 0; i < 8; ++i) {
      auto device = OpenAgain();
      if (!device.ok()) return Promised("open", device.status());
      const auto stream = (*device)->CreateStream();
      if (!stream.ok()) return Promised("create stream", stream.status());
      const auto buffer = (*device)->Alloc(4096);
      if (!buffer.ok()) return Promised("alloc", buffer.status());
      const std::vector<uint8_t> sent(4096, static_cast<uint8_t>(16 * thread + i));
      std::vector<uint8_t> got(4096);
      for (const absl::Status& status :
           {(*device)->Write(stream->get(), buffer->get(), 0, sent.data(), sent.size()),
            (*device)->Read(stream->get(), buffer->get(), 0, got.data(), got.size()), (*device)->Sync(stream->get())}) {
        OCTET_RETURN_IF_ERROR(Promised("write, read and sync", status));
      }
      EXPECT_EQ(got, sent) << "thread " << thread;
      KvLayout layout = LayoutOf(Both(Int8(64)), 8);
      const Status chosen = (*device)->quant().ChooseLayout(layout);
      if (!chosen.ok() && chosen.code() != Code::kUnimplemented) return chosen;
    }
    return OkStatus();
  });
}

Status ErrorsStayWithTheirCall() {
  const octet_memory_ops& memory = *TheSubject().table()->memory;
  auto fail = [&](int thread) {
    octet_error error = Error();
    octet_buffer* buffer = nullptr;
    const octet_code code = memory.alloc(TheSubject().device->handle(), uint64_t{64} + static_cast<uint64_t>(thread),
                                         100 + static_cast<uint32_t>(thread), &buffer, &error);
    ExpectRefusal(code, error, "alloc of an unknown kind");
    return std::string(error.message);
  };
  std::string serial[kThreads];
  for (int i = 0; i < kThreads; ++i) serial[i] = fail(i);
  return OnThreads(kThreads, [&](int thread) {
    for (int i = 0; i < 100; ++i) EXPECT_EQ(fail(thread), serial[thread]);
    return OkStatus();
  });
}

// A stream, a plan and a cache made on one thread and used on another.
Status WorkMovesBetweenThreads() {
  AttentionCase c;
  c.cache = Both(Int8(64));
  c.sequences = {{1, 37, 0, 0}, {5, 20, 0, 1}};
  Scene scene;
  OCTET_RETURN_IF_ERROR(scene.Init(c));
  for (int i = 0; i < 3; ++i) {
    const Status status = OnThreads(1, [&](int) -> Status {
      AttentionResult result;
      OCTET_RETURN_IF_ERROR(scene.AppendAll());
      OCTET_RETURN_IF_ERROR(scene.Run(scene.WholePieces(), &result));
      scene.Check(scene.WholePieces(), result);
      return OkStatus();
    });
    OCTET_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

}  // namespace

void AddThreadCases() {
  for (const SideSpec& side : {Int8(64), Float(DType::kF32), Float(DType::kBF16)}) {
    AddCase("Threads.AttentionInParallelEqualsSerial/" + NameOf(side), [side] { return AttentionInParallel(side); });
  }
  AddCase("Threads.CachesInParallel/i8_token_rot64", CachesInParallel);
  AddCase("Threads.LinearInParallelEqualsSerial/f32", LinearInParallel);
  AddCase("Threads.DevicesInParallel/open_write_read_close", DevicesInParallel);
  AddCase("Threads.ErrorsStayWithTheirCall/alloc", ErrorsStayWithTheirCall);
  AddCase("Threads.WorkMovesBetweenThreads/attention", WorkMovesBetweenThreads);
}

}  // namespace octet::conformance
