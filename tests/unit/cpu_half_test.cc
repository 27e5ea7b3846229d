// Dense operations of the CPU backend on f16 and bf16 rows: the f32 operation on the same values, rounded once to
// nearest even, at any thread count, on strided rows, and without allocating once warm.
#include <string>
#include <vector>

#include "octet/half.h"
#include "tests/unit/cpu_rig.h"

namespace octet {
namespace {

using testing::Error;
using testing::RandomFloats;
using testing::Rig;

constexpr int64_t kTokens = 64, kColumns = 1000, kStride = 1016, kVocabulary = 40;

uint16_t Narrow(DType type, float x) { return type == DType::kF16 ? FloatToHalf(x) : FloatToBf16(x); }
float Widen(DType type, uint16_t x) { return type == DType::kF16 ? HalfToFloat(x) : Bf16ToFloat(x); }
float Rounded(DType type, float x) { return Widen(type, Narrow(type, x)); }

// One device on which an operation runs with rows of `type`, all inputs rounded to `round` first.
class Bench {
 public:
  Bench(int threads, DType type, DType round) : rig_(threads), type_(type), round_(round) {
    desc_.struct_size = sizeof desc_;
    part_.struct_size = sizeof part_;
    part_.dtype = OCTET_F32;
    part_.rows = kVocabulary;
    part_.row_stride_bytes = kColumns * 4;
    part_.data = weights_.data();
    desc_.num_parts = 1;
    desc_.columns = kColumns;
    desc_.parts = &parts_;
    desc_.use = OCTET_WEIGHT_LINEAR | OCTET_WEIGHT_EMBED | OCTET_WEIGHT_EXACT;
    desc_.max_tokens = kTokens;
    desc_.x_type = desc_.y_type = static_cast<octet_dtype>(type);
    support_.struct_size = sizeof support_;
    Error error;
    EXPECT_EQ(rig_.table->dense->supports_weight(rig_.device, &desc_, &support_, &error), OCTET_OK) << error.message;
    EXPECT_EQ(support_.level, type == DType::kF32 ? 2 : 1);
    EXPECT_EQ(rig_.table->dense->prepare_weight(rig_.stream, &desc_, &weight_, &error), OCTET_OK) << error.message;
    workspace_ = rig_.Alloc(support_.workspace_bytes);
  }
  ~Bench() { rig_.table->dense->release_weight(weight_); }

  // Rows kStride apart; what lies between them is 3.
  octet_tensor Rows(uint32_t seed, int64_t columns = kColumns) {
    const std::vector<float> values = RandomFloats(static_cast<size_t>(kTokens * columns), seed);
    octet_tensor t = MakeTensor(rig_.Alloc(static_cast<uint64_t>(kTokens * kStride * 4)), type_, {kTokens, kStride});
    t.shape[1] = columns;
    for (int64_t i = 0; i < kTokens * kStride; ++i) {
      const int64_t c = i % kStride;
      Set(t, i, c < columns ? Rounded(round_, values[static_cast<size_t>(i / kStride * columns + c)]) : 3.0f);
    }
    return t;
  }
  std::vector<float> Get(const octet_tensor& t) {
    std::vector<float> values;
    for (int64_t i = 0; i < kTokens * kStride; ++i) {
      float x;
      if (type_ == DType::kF32) {
        std::memcpy(&x, rig_.Map(t.buffer) + 4 * i, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, rig_.Map(t.buffer) + 2 * i, 2);
        x = Widen(type_, bits);
      }
      values.push_back(x);
    }
    return values;
  }

  // The operations, each on fresh tensors; the answer with what lies between its rows.
  std::vector<float> Run(const std::string& name) {
    const octet_dense_ops& dense = *rig_.table->dense;
    octet_tensor x = Rows(1), y = Rows(2);
    const octet_tensor gain = rig_.Put(RandomFloats(kColumns, 3), {kColumns});
    const octet_tensor bias = rig_.Put(RandomFloats(kColumns, 4), {kColumns});
    Error error;
    octet_code code = OCTET_INTERNAL;
    if (name == "rms") {
      code = dense.norm(rig_.stream, OCTET_NORM_RMS, &x, &gain, nullptr, 1e-6f, &y, &error);
    } else if (name == "layer in place") {
      y = x;
      code = dense.norm(rig_.stream, OCTET_NORM_LAYER, &x, &gain, &bias, 1e-6f, &x, &error);
    } else if (name == "silu gated") {
      y.shape[1] = kColumns / 2;
      code = dense.activation(rig_.stream, OCTET_ACT_SILU_GATED, &x, &y, &error);
    } else if (name == "gelu") {
      code = dense.activation(rig_.stream, OCTET_ACT_GELU, &x, &y, &error);
    } else if (name == "add") {
      code = dense.add(rig_.stream, &x, &y, &error);
    } else if (name == "rope") {
      std::vector<int32_t> positions;
      for (int32_t t = 0; t < kTokens; ++t) positions.push_back(t * 7 % 10);
      const octet_tensor at = rig_.Put(DType::kI32, positions, {kTokens});
      const octet_tensor table = rig_.Put(RandomFloats(10 * 50 * 2, 5), {10, 50, 2});
      octet_tensor heads = y;  // [tokens][10][100]
      heads.rank = 3;
      heads.shape[1] = 10;
      heads.shape[2] = 100;
      heads.stride[1] = 100;
      code = dense.rope(rig_.stream, &heads, &at, &table, 0, &error);
    } else if (name == "embed") {
      std::vector<int32_t> ids;
      for (int32_t t = 0; t < kTokens; ++t) ids.push_back(static_cast<int32_t>(t * 7 % kVocabulary));
      const octet_tensor id = rig_.Put(DType::kI32, ids, {kTokens});
      code = dense.embed(rig_.stream, weight_, &id, 1.5f, &y, &error);
    } else {  // linear, a few tokens or all, everything fused
      const octet_tensor out_bias = rig_.Put(RandomFloats(kVocabulary, 6), {kVocabulary});
      x.shape[0] = y.shape[0] = name == "linear few" ? 3 : kTokens;
      y.shape[1] = kVocabulary;
      octet_linear_args a{};
      a.struct_size = sizeof a;
      a.norm_eps = 1e-6f;
      a.x = &x;
      a.y = a.residual = &y;
      a.bias = &out_bias;
      a.norm_gain = name == "linear plain" ? nullptr : &gain;
      a.w = weight_;
      a.workspace = workspace_;
      code = dense.linear(rig_.stream, &a, &error);
    }
    EXPECT_EQ(code, OCTET_OK) << name << ": " << error.message;
    return Get(y);
  }

 private:
  void Set(const octet_tensor& t, int64_t i, float x) {
    if (type_ == DType::kF32) {
      std::memcpy(rig_.Map(t.buffer) + 4 * i, &x, 4);
    } else {
      const uint16_t bits = Narrow(type_, x);
      std::memcpy(rig_.Map(t.buffer) + 2 * i, &bits, 2);
    }
  }

  Rig rig_;
  DType type_, round_;
  std::vector<float> weights_ = RandomFloats(kVocabulary * kColumns, 9);
  octet_weight_part part_{};
  const octet_weight_part* parts_ = &part_;
  octet_weight_desc desc_{};
  octet_support support_{};
  octet_weight* weight_ = nullptr;
  octet_buffer* workspace_ = nullptr;
};

const char* const kOperations[] = {"rms",  "layer in place", "silu gated", "gelu",         "add",
                                   "rope", "embed",          "linear",     "linear plain", "linear few"};

TEST(CpuHalfTest, EqualsTheF32OperationRoundedOnceAtAnyThreadCount) {
  for (DType type : {DType::kF16, DType::kBF16}) {
    Bench f32(2, DType::kF32, type);
    for (int threads : {1, 3}) {
      Bench half(threads, type, type);
      for (const char* name : kOperations) {
        std::vector<float> want = f32.Run(name);
        for (float& x : want) x = Rounded(type, x);
        const std::vector<float> got = half.Run(name);
        ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * 4), 0)
            << DTypeName(type) << " " << name << ", " << threads << " threads";
      }
    }
  }
}

TEST(CpuHalfTest, ScratchIsKeptAndDoesNotGrow) {
  Rig rig(3);
  const auto held = [&] {
    octet_memory_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(rig.table->memory->info(rig.device, &info, nullptr), OCTET_OK);
    return info.held_bytes;
  };
  octet_tensor x = MakeTensor(rig.Alloc(64 * 1000 * 2, 0), DType::kBF16, {64, 1000});
  const octet_tensor gain = rig.Put(RandomFloats(1000, 1), {1000});
  const auto norm = [&] {
    Error error;
    EXPECT_EQ(rig.table->dense->norm(rig.stream, OCTET_NORM_RMS, &x, &gain, nullptr, 1e-6f, &x, &error), OCTET_OK)
        << error.message;
  };
  const uint64_t before = held();
  norm();
  const uint64_t warm = held();
  EXPECT_EQ(warm - before, 3u * 2 * 1008 * 4);  // a row in and a row out for each worker
  for (int i = 0; i < 5; ++i) norm();
  x.shape[0] = 2;
  norm();
  EXPECT_EQ(held(), warm);
}

}  // namespace
}  // namespace octet
