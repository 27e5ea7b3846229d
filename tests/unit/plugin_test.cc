// The vendor's side of the C contract, spoken to through the tables as a host would: in this process, without a file.
#include <array>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/thread_pool.h"
#include "core/loader/device.h"
#include "core/loader/host_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "octet/convert.h"
#include "tests/unit/plugins/fake_backend.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Fake final : public fake::Backend {
 public:
  Fake() : Backend("fake") { current = &log_; }
  static fake::Log* current;
};
fake::Log* Fake::current = nullptr;

octet_error Error() { return convert::Sized<octet_error>(); }

CacheSide Side(Scheme scheme, int32_t head_dim) {
  CacheSide side;
  side.scheme = scheme;
  side.head_dim = head_dim;
  if (scheme != Scheme::kNone) {
    side.data_type = DType::kI8;
    side.scale_type = DType::kF32;
    side.zero_type = scheme == Scheme::kAsymmetric ? DType::kF32 : DType::kNone;
  }
  return side;
}

KvLayout Layout(Scheme scheme = Scheme::kNone) {
  KvLayout layout;
  layout.page_tokens = 4;
  layout.kv_heads = 2;
  layout.num_pages = 3;
  layout.k = layout.v = Side(scheme, 8);
  return layout;
}

class PluginTest : public ::testing::Test {
 protected:
  void SetUp() override {
    octet_error error = Error();
    table_ = plugin::Query<Fake>(nullptr, &error);
    ASSERT_NE(table_, nullptr) << error.message;
    ASSERT_EQ(table_->device->open(0, nullptr, &device_, &error), OCTET_OK) << error.message;
    ASSERT_EQ(table_->stream->create(device_, &stream_, &error), OCTET_OK) << error.message;
    log_ = Fake::current;
    log_->instead = nullptr;
  }
  void TearDown() override {
    table_->stream->destroy(stream_);
    table_->device->close(device_);
  }

  const octet_backend_v1* table_ = nullptr;
  octet_device* device_ = nullptr;
  octet_stream* stream_ = nullptr;
  fake::Log* log_ = nullptr;
};

TEST_F(PluginTest, QueryGivesTheSameTableFromEveryThread) {
  std::array<const octet_backend_v1*, 8> tables{};
  std::vector<std::thread> threads;
  for (auto& table : tables) threads.emplace_back([&table] { table = plugin::Query<Fake>(nullptr, nullptr); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(tables, Each(table_));
  EXPECT_STREQ(table_->name, "fake");
  EXPECT_STREQ(table_->version, "1.2.3");
  EXPECT_EQ(table_->abi_draft, OCTET_ABI_DRAFT);
  EXPECT_THAT(table_->build, AllOf(HasSubstr("compiler="), HasSubstr("sanitizer="), HasSubstr("targets=")));
  EXPECT_EQ(table_->fused, nullptr);
}

struct Thrown {
  const char* name;
  std::function<Status()> hook;
  octet_code code;
  const char* text;
};

TEST_F(PluginTest, WhatABackendThrowsBecomesACodeAndASentence) {
  const Thrown cases[] = {
      {"bad_alloc", []() -> Status { throw std::bad_alloc(); }, OCTET_RESOURCE_EXHAUSTED,
       "choose_layout: out of host memory"},
      {"exception", []() -> Status { throw std::runtime_error("the table is upside down"); }, OCTET_INTERNAL,
       "the table is upside down"},
      {"number", []() -> Status { throw 42; }, OCTET_INTERNAL,
       "choose_layout: the backend threw something that is no std::exception"},
      {"status", [] { return DataLoss("the device is gone"); }, OCTET_DATA_LOSS, "the device is gone"},
  };
  for (const Thrown& c : cases) {
    log_->instead = c.hook;
    convert::CKvLayout layout(Layout());
    octet_error error = Error();
    EXPECT_EQ(table_->quant->choose_layout(device_, &layout.layout, &layout.k, &layout.v, nullptr, &error), c.code)
        << c.name;
    EXPECT_EQ(error.code, c.code) << c.name;
    EXPECT_STREQ(error.message, c.text);
    EXPECT_EQ(error.message_len, std::strlen(c.text));
    EXPECT_EQ(table_->quant->choose_layout(device_, &layout.layout, &layout.k, &layout.v, nullptr, nullptr), c.code)
        << "NULL error";
  }
}

TEST_F(PluginTest, MessagesAreCutBetweenCharactersAndWithinTheCallersSize) {
  std::string text(1006, 'x');
  text += "\xE2\x82\xAC\xE2\x82\xAC";  // two euro signs, the first of which would cross byte 1007
  log_->instead = [&] { return Internal(text); };
  convert::CKvLayout layout(Layout());
  const auto fail = [&](octet_error* error) {
    EXPECT_EQ(table_->quant->choose_layout(device_, &layout.layout, &layout.k, &layout.v, nullptr, error),
              OCTET_INTERNAL);
  };
  octet_error error = Error();
  fail(&error);
  EXPECT_EQ(error.message_len, 1006u);
  EXPECT_EQ(std::string(error.message), std::string(1006, 'x'));

  text = "ab\xE2\x82\xACrest";
  error = Error();
  error.struct_size = offsetof(octet_error, message) + 5;  // "ab" + part of the euro sign + NUL
  std::memset(error.message, 0x7F, sizeof error.message);
  fail(&error);
  EXPECT_STREQ(error.message, "ab");
  EXPECT_EQ(error.message[5], 0x7F) << "written beyond struct_size (A4)";
}

TEST_F(PluginTest, NullArgumentsAreRefusedBySentence) {
  octet_error error = Error();
  convert::CKvLayout layout(Layout());
  EXPECT_EQ(table_->device->open(0, nullptr, nullptr, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "out is NULL");
  EXPECT_EQ(table_->memory->alloc(nullptr, 1, OCTET_MEMORY_DEVICE, nullptr, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "device is NULL");
  EXPECT_EQ(table_->quant->append(stream_, nullptr, nullptr, nullptr, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "octet_kv_layout is NULL");
  EXPECT_EQ(table_->quant->append(stream_, &layout.layout, nullptr, nullptr, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "octet_kv_layer is NULL");
  EXPECT_EQ(table_->quant->append(nullptr, &layout.layout, nullptr, nullptr, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "stream is NULL");
  layout.layout.v = nullptr;
  EXPECT_EQ(table_->quant->supports(device_, &layout.layout, OCTET_F32, nullptr, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "octet_support is NULL");
  EXPECT_EQ(table_->attention->run(stream_, nullptr, nullptr, nullptr, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "plan is NULL");
}

TEST_F(PluginTest, DestroyAcceptsNull) {
  table_->memory->free(nullptr);
  table_->stream->destroy(nullptr);
  table_->stream->destroy_event(nullptr);
  table_->attention->release_plan(nullptr);
  table_->device->close(nullptr);
}

#ifndef NDEBUG
// Reports success without a weight.
class EmptyHanded final : public DenseOps {
 public:
  Support SupportsWeight(const WeightDesc&) const override { return Support::Yes(1, "none"); }
  StatusOr<Weight*> PrepareWeight(Stream&, const WeightDesc&) override { return static_cast<Weight*>(nullptr); }
  void ReleaseWeight(Weight*) override {}
  Status Linear(Stream&, const LinearArgs&) override { return Unimplemented("none"); }
  Status Embed(Stream&, const Weight&, const Tensor&, float, const Tensor&) override { return Unimplemented("none"); }
  Status Norm(Stream&, NormKind, const Tensor&, const Tensor&, const Tensor*, float, const Tensor&) override {
    return Unimplemented("none");
  }
  Status Rope(Stream&, const Tensor&, const Tensor&, const Tensor&, bool) override { return Unimplemented("none"); }
  Status Activate(Stream&, Activation, const Tensor&, const Tensor&) override { return Unimplemented("none"); }
  Status Add(Stream&, const Tensor&, const Tensor&) override { return Unimplemented("none"); }
  Status GatherRows(Stream&, const Tensor&, const Tensor&, const Tensor&) override { return Unimplemented("none"); }
};
class EmptyHandedBackend final : public fake::Backend {
 public:
  EmptyHandedBackend() : Backend("empty_handed") {}
  DenseOps* dense() override { return &ops_; }

 private:
  EmptyHanded ops_;
};

TEST(EmptyHandedTest, SuccessWithoutAWeightIsAnError) {
  octet_error error = Error();
  const octet_backend_v1* table = plugin::Query<EmptyHandedBackend>(nullptr, &error);
  ASSERT_NE(table, nullptr) << error.message;
  octet_device* device = nullptr;
  octet_stream* stream = nullptr;
  ASSERT_EQ(table->device->open(0, nullptr, &device, &error), OCTET_OK);
  ASSERT_EQ(table->stream->create(device, &stream, &error), OCTET_OK);
  const WeightPart part{.rows = 1, .row_stride_bytes = 4, .data = "abcd"};
  const convert::CWeightDesc desc({.columns = 1, .parts = {&part, 1}, .max_tokens = 1});
  octet_weight* weight = nullptr;
  EXPECT_EQ(table->dense->prepare_weight(stream, &desc.desc, &weight, &error), OCTET_INTERNAL);
  EXPECT_EQ(weight, nullptr);
  EXPECT_THAT(error.message, HasSubstr("made no object"));
  table->stream->destroy(stream);
  table->device->close(device);
}

TEST_F(PluginTest, DebugBuildsTellOfHandlesThatOutliveTheirDevice) {
  std::string seen;
  SetBackendLogSink([&](int, std::string_view text) { seen += text; });
  octet_error error = Error();
  ASSERT_NE(plugin::Query<Fake>(MakeHostTable(nullptr), &error), nullptr);
  KvLayout layout = Layout();
  AttentionDesc desc;
  desc.q_heads = 2;
  desc.kv = &layout;
  desc.limits = {.requests = 1, .query_tokens = 1, .kv_len = 1, .pages = 1};
  const convert::CAttentionDesc c(desc);
  octet_plan* plan = nullptr;
  ASSERT_EQ(table_->attention->make_plan(device_, &c.desc, nullptr, 0, &plan, &error), OCTET_OK) << error.message;
  table_->stream->destroy(std::exchange(stream_, nullptr));
  table_->device->close(std::exchange(device_, nullptr));
  EXPECT_EQ(seen, "the last device was closed with 1 plans alive");
  table_->attention->release_plan(plan);
  SetBackendLogSink(nullptr);
}
#endif

// A descriptor of a host that is one field ahead.
struct LongerLayout {
  octet_kv_layout layout;
  uint64_t later_field;
};

TEST_F(PluginTest, ALongerDescriptorIsReadWhereItsTailIsZeroAndRefusedOtherwise) {
  convert::CKvLayout c(Layout());
  LongerLayout longer{c.layout, 0};
  longer.layout.struct_size = sizeof longer;
  octet_support support = convert::Sized<octet_support>();
  octet_error error = Error();
  EXPECT_EQ(table_->quant->supports(device_, &longer.layout, OCTET_F32, &support, &error), OCTET_OK) << error.message;
  EXPECT_EQ(support.level, 1);
  longer.later_field = 1ull << 40;
  EXPECT_EQ(table_->quant->supports(device_, &longer.layout, OCTET_F32, &support, &error), OCTET_UNIMPLEMENTED);
  EXPECT_THAT(error.message, AllOf(HasSubstr("octet_kv_layout"), HasSubstr("older ABI minor")));
}

TEST_F(PluginTest, ADescriptorOfImpossibleSizeIsRefused) {
  for (uint32_t size : {0u, 4u, static_cast<uint32_t>(sizeof(octet_kv_layout)) - 1, 0xFFFFFFFFu}) {
    convert::CKvLayout c(Layout());
    c.layout.struct_size = size;
    octet_support support = convert::Sized<octet_support>();
    octet_error error = Error();
    EXPECT_EQ(table_->quant->supports(device_, &c.layout, OCTET_F32, &support, &error), OCTET_INVALID_ARGUMENT) << size;
    EXPECT_THAT(error.message, StartsWith("octet_kv_layout has struct_size"));
  }
}

TEST_F(PluginTest, AnOutStructIsNotWrittenBeyondItsSize) {
  struct {
    octet_device_info info;
    uint64_t guard;
  } longer{};
  longer.guard = 0x1234;
  longer.info.struct_size = sizeof longer;
  octet_error error = Error();
  ASSERT_EQ(table_->device->describe(0, &longer.info, &error), OCTET_OK) << error.message;
  EXPECT_EQ(longer.guard, 0x1234u);
  EXPECT_EQ(longer.info.struct_size, sizeof longer);
  EXPECT_EQ(longer.info.kind, static_cast<uint32_t>(OCTET_DEVICE_CPU));
  octet_device_info shorter = convert::Sized<octet_device_info>();
  shorter.struct_size = 8;
  EXPECT_EQ(table_->device->describe(0, &shorter, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_EQ(shorter.memory_bytes, 0u);
}

TEST_F(PluginTest, UnknownEnumerationValuesAreUnsupported) {
  octet_error error = Error();
  octet_support support = convert::Sized<octet_support>();
  for (int field = 0; field < 3; ++field) {
    KvLayout layout = Layout(Scheme::kSymmetric);
    if (field == 0) layout.k.scheme = static_cast<Scheme>(77);
    if (field == 1) layout.k.axis = static_cast<Axis>(77);
    if (field == 2) layout.k.data_type = static_cast<DType>(77);
    convert::CKvLayout c(layout);
    ASSERT_EQ(table_->quant->supports(device_, &c.layout, OCTET_F32, &support, &error), OCTET_OK) << error.message;
    EXPECT_EQ(support.level, 0);
    EXPECT_THAT(support.reason, HasSubstr("unknown")) << field;
  }
  octet_buffer* buffer = nullptr;
  EXPECT_EQ(table_->memory->alloc(device_, 16, 9, &buffer, &error), OCTET_UNIMPLEMENTED);
}

TEST_F(PluginTest, MemoryIsCheckedCountedAndMapped) {
  octet_error error = Error();
  octet_buffer* buffer = nullptr;
  ASSERT_EQ(table_->memory->alloc(device_, 1000, OCTET_MEMORY_DEVICE, &buffer, &error), OCTET_OK) << error.message;
  octet_memory_info info = convert::Sized<octet_memory_info>();
  ASSERT_EQ(table_->memory->info(device_, &info, &error), OCTET_OK);
  EXPECT_EQ(info.held_bytes, 1000u);
  EXPECT_GT(info.total_bytes, 1000u);

  ASSERT_EQ(table_->memory->fill(stream_, buffer, 0, 1000, 7, &error), OCTET_OK);
  ASSERT_EQ(table_->memory->write(stream_, buffer, 996, "abcd", 4, &error), OCTET_OK);
  ASSERT_EQ(table_->memory->copy(stream_, buffer, 0, buffer, 996, 4, &error), OCTET_OK);
  char back[6] = {};
  ASSERT_EQ(table_->memory->read(stream_, buffer, 0, back, 5, &error), OCTET_OK);
  EXPECT_STREQ(back, "abcd\x07");
  void* host = nullptr;
  ASSERT_EQ(table_->memory->map(buffer, &host, &error), OCTET_OK);
  EXPECT_EQ(std::memcmp(host, "abcd", 4), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(host) % 256, 0u);

  EXPECT_EQ(table_->memory->write(stream_, buffer, 997, "abcd", 4, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, HasSubstr("leave the buffer of 1000 bytes"));
  EXPECT_EQ(table_->memory->read(stream_, buffer, ~0ull, back, 2, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_EQ(table_->memory->write(stream_, buffer, 0, nullptr, 1, &error), OCTET_INVALID_ARGUMENT);
  table_->memory->free(buffer);
  ASSERT_EQ(table_->memory->info(device_, &info, &error), OCTET_OK);
  EXPECT_EQ(info.held_bytes, 0u);

  EXPECT_EQ(table_->memory->alloc(device_, 0, OCTET_MEMORY_DEVICE, &buffer, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_EQ(table_->memory->alloc(device_, 1ull << 60, OCTET_MEMORY_DEVICE, &buffer, &error), OCTET_RESOURCE_EXHAUSTED);
  EXPECT_THAT(error.message, HasSubstr("cannot allocate 1152921504606846976 bytes"));
  EXPECT_EQ(buffer, nullptr);
}

TEST_F(PluginTest, UnknownDevicesAndOptionsAreRefused) {
  octet_error error = Error();
  octet_device* device = nullptr;
  EXPECT_EQ(table_->device->open(1, nullptr, &device, &error), OCTET_NOT_FOUND);
  EXPECT_EQ(table_->device->open(0, "threads=4", &device, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_STREQ(error.message, "backend fake has no option 'threads'");
  EXPECT_EQ(table_->device->open(0, "threads", &device, &error), OCTET_INVALID_ARGUMENT);
  EXPECT_EQ(device, nullptr);
}

// ---- Both sides together: core's adapters over the tables.

class RoundTripTest : public PluginTest {
 protected:
  void SetUp() override {
    PluginTest::SetUp();
    auto device = Device::Open(table_, 0, "fake:0", "");
    ASSERT_TRUE(device.ok()) << device.status();
    d_ = *std::move(device);
  }
  void TearDown() override {
    d_.reset();
    PluginTest::TearDown();
  }
  std::unique_ptr<Device> d_;
};

void ExpectSame(const KvLayout& got, const KvLayout& want) {
  EXPECT_EQ(got.page_tokens, want.page_tokens);
  EXPECT_EQ(got.kv_heads, want.kv_heads);
  EXPECT_EQ(got.num_pages, want.num_pages);
  EXPECT_EQ(got.offset_block, want.offset_block);
  EXPECT_EQ(got.layer_bytes, want.layer_bytes);
  EXPECT_EQ(got.v_is_k, want.v_is_k);
  EXPECT_EQ(got.has_k_extra, want.has_k_extra);
  for (const auto& [a, b] :
       {std::pair{&got.k, &want.k}, std::pair{&got.v, &want.v}, std::pair{&got.k_extra, &want.k_extra}}) {
    EXPECT_EQ(a->data_type, b->data_type);
    EXPECT_EQ(a->scheme, b->scheme);
    EXPECT_EQ(a->axis, b->axis);
    EXPECT_EQ(a->group, b->group);
    EXPECT_EQ(a->scale_type, b->scale_type);
    EXPECT_EQ(a->zero_type, b->zero_type);
    EXPECT_EQ(a->head_dim, b->head_dim);
    EXPECT_EQ(a->rotation, b->rotation);
    EXPECT_EQ(a->order, b->order);
    EXPECT_EQ(a->data_base, b->data_base);
    EXPECT_EQ(a->scale_base, b->scale_base);
    EXPECT_EQ(a->zero_base, b->zero_base);
    EXPECT_EQ(a->data_stride, b->data_stride);
    EXPECT_EQ(a->scale_stride, b->scale_stride);
    EXPECT_EQ(a->zero_stride, b->zero_stride);
  }
}

TEST_F(RoundTripTest, EveryFieldOfADescriptorArrives) {
  KvLayout layout = Layout(Scheme::kAsymmetric);
  layout.offset_block = 64;
  layout.k.group = 4;
  layout.k.rotation = 8;
  layout.k.scale_type = layout.k.zero_type = DType::kBF16;
  layout.v.axis = Axis::kHead;
  layout.has_k_extra = true;
  layout.k_extra = Side(Scheme::kNone, 16);
  KvLayout chosen = layout, canonical = layout;
  ASSERT_TRUE(CanonicalLayout(canonical).ok());
  ASSERT_TRUE(d_->quant().ChooseLayout(chosen).ok());
  ExpectSame(chosen, canonical);

  KvLayout want = canonical;
  want.k.order = 3;
  want.v.zero_base = 1ull << 40;
  want.v.zero_stride = {1, 2, 3};
  (void)d_->quant().Supports(want, DType::kF32);
  ExpectSame(log_->layout, want);
  want.v_is_k = true;
  want.v = want.k;
  (void)d_->quant().Supports(want, DType::kF32);
  ExpectSame(log_->layout, want);
}

TEST_F(RoundTripTest, AppendedRowsComeBackAndSkippedOnesStay) {
  KvLayout layout = Layout();
  ASSERT_TRUE(d_->quant().ChooseLayout(layout).ok());
  auto cache = d_->Alloc(layout.layer_bytes);
  auto work = d_->Alloc(4096);
  auto stream = d_->CreateStream();
  ASSERT_TRUE(cache.ok() && work.ok() && stream.ok());
  float* host = static_cast<float*>(*d_->Map(work->get()));
  for (int i = 0; i < 96; ++i) host[i] = static_cast<float>(i);
  int64_t* slots = reinterpret_cast<int64_t*>(host + 512);
  slots[0] = 11;
  slots[1] = -1;
  slots[2] = 4;
  const Tensor k = MakeTensor(work->get(), DType::kF32, {3, 2, 8});
  const Tensor v = MakeTensor(work->get(), DType::kF32, {3, 2, 8}, 192);
  const Tensor slot = MakeTensor(work->get(), DType::kI64, {3}, 2048);
  const KvLayer layer{.layer = 5, .cache = cache->get()};
  ASSERT_TRUE(d_->quant().Append(*stream->get(), layout, layer, {.k = &k, .v = &v, .slots = &slot}).ok());
  EXPECT_EQ(log_->layer.layer, 5);
  std::fill_n(host, 96, -1.0f);
  const Status gathered = d_->quant().Gather(*stream->get(), layout, layer, {.k = &k, .v = &v, .slots = &slot});
  ASSERT_TRUE(gathered.ok()) << gathered.message();
  for (int i = 0; i < 96; ++i) {
    const bool skipped = i / 16 % 3 == 1;
    EXPECT_EQ(host[i], skipped ? -1.0f : static_cast<float>(i)) << i;
  }
  slots[2] = 12;
  const Status beyond = d_->quant().Append(*stream->get(), layout, layer, {.k = &k, .v = &v, .slots = &slot});
  EXPECT_EQ(beyond.code(), Code::kInvalidArgument);
  EXPECT_EQ(beyond.message(), "fake:0: slots[2] is 12; the cache has 12 slots, and -1 skips a row");
}

TEST_F(RoundTripTest, APlanTakesStepsAndEndsWithItsOwner) {
  KvLayout layout = Layout();
  ASSERT_TRUE(d_->quant().ChooseLayout(layout).ok());
  AttentionDesc desc;
  desc.q_heads = 6;
  desc.causal = false;
  desc.window = 4;
  desc.scale = 0.5f;
  desc.softcap = 30.0f;
  desc.out_type = DType::kBF16;
  desc.exact = true;
  desc.kv = &layout;
  desc.limits = {.requests = 2, .query_tokens = 4, .kv_len = 12, .pages = 6};
  const Support support = d_->attention().Supports(desc);
  EXPECT_EQ(support.level, 2) << support.reason;
  EXPECT_EQ(support.kernel, "recorder");
  EXPECT_EQ(support.workspace_bytes, 4096u);
  auto plan = d_->attention().MakePlan(desc, nullptr, 0);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(log_->plans_alive, 1);
  EXPECT_EQ(log_->desc.q_heads, 6);
  EXPECT_FALSE(log_->desc.causal);
  EXPECT_EQ(log_->desc.window, 4);
  EXPECT_EQ(log_->desc.scale, 0.5f);
  EXPECT_EQ(log_->desc.softcap, 30.0f);
  EXPECT_EQ(log_->desc.out_type, DType::kBF16);
  EXPECT_TRUE(log_->desc.exact);
  EXPECT_EQ(log_->desc.limits.kv_len, 12);
  EXPECT_EQ(log_->desc.limits.pages, 6);

  auto stream = d_->CreateStream();
  ASSERT_TRUE(stream.ok());
  const int32_t q_start[] = {0, 1, 3}, kv_len[] = {5, 9}, kv_begin[] = {0, 4}, page_start[] = {0, 2, 4},
                pages[] = {0, 2, 1, 0};
  const Batch batch{.requests = 2,
                    .q_start = q_start,
                    .kv_len = kv_len,
                    .kv_begin = kv_begin,
                    .page_start = page_start,
                    .pages = pages};
  const Status refilled = d_->attention().Refill(*stream->get(), **plan, batch);
  ASSERT_TRUE(refilled.ok()) << refilled.message();
  EXPECT_THAT(log_->pages, ElementsAre(0, 2, 1, 0));

  const int32_t wrong[] = {0, 3, 1, 0};
  Batch bad = batch;
  bad.pages = wrong;
  EXPECT_EQ(d_->attention().Refill(*stream->get(), **plan, bad).message(),
            "fake:0: batch: page 3 does not exist; the cache has 3");
  const int32_t long_kv[] = {5, 13};
  bad = batch;
  bad.kv_len = long_kv;
  EXPECT_EQ(d_->attention().Refill(*stream->get(), **plan, bad).code(), Code::kResourceExhausted);
  const int32_t begin_late[] = {4, 4};
  bad = batch;
  bad.kv_begin = begin_late;
  EXPECT_THAT(d_->attention().Refill(*stream->get(), **plan, bad).message(), HasSubstr("at most 1"));

  auto work = d_->Alloc(65536);
  ASSERT_TRUE(work.ok());
  const Tensor q = MakeTensor(work->get(), DType::kF32, {3, 6, 8}),
               out = MakeTensor(work->get(), DType::kBF16, {3, 6, 8}, 4096);
  auto cache = d_->Alloc(layout.layer_bytes);
  const KvLayer layer{.layer = 7, .cache = cache->get()};
  EXPECT_TRUE(d_->attention().Run(*stream->get(), **plan, layer, {.q = &q, .out = &out}).ok());
  EXPECT_EQ(log_->layer.layer, 7);
  EXPECT_EQ(log_->args.out->offset, 4096u);
  const Status refused = d_->attention().Run(*stream->get(), **plan, layer, {.q = &out, .out = &out});
  EXPECT_EQ(refused.message(), "fake:0: q is bf16 [3, 6, 8] of rank 3; it must be f32 [3, 6, 8]");
  plan->reset();
  EXPECT_EQ(log_->plans_alive, 0);
}

TEST_F(RoundTripTest, ARefusedDescriptorIsNoSupportWithItsReason) {
  AttentionDesc desc;
  desc.kv = nullptr;
  EXPECT_EQ(d_->attention().Supports(desc).level, 0);
  KvLayout layout = Layout();
  desc.kv = &layout;
  desc.q_heads = 3;
  desc.limits = {.requests = 1, .query_tokens = 1, .kv_len = 1, .pages = 1};
  EXPECT_EQ(d_->attention().Supports(desc).reason, "attention: q_heads is 3; it must be a multiple of kv_heads 2");
}

TEST_F(RoundTripTest, MemoryAndEventsGoThroughTheDevice) {
  auto stream = d_->CreateStream();
  auto event = d_->CreateEvent();
  auto buffer = d_->Alloc(256, MemoryKind::kHostVisible);
  ASSERT_TRUE(stream.ok() && event.ok() && buffer.ok());
  EXPECT_TRUE(d_->Fill(stream->get(), buffer->get(), 0, 256, 0).ok());
  EXPECT_TRUE(d_->Write(stream->get(), buffer->get(), 8, "hello", 6).ok());
  EXPECT_TRUE(d_->Copy(stream->get(), buffer->get(), 100, buffer->get(), 8, 6).ok());
  EXPECT_TRUE(d_->Record(stream->get(), event->get()).ok());
  EXPECT_TRUE(d_->Wait(stream->get(), event->get()).ok());
  EXPECT_TRUE(d_->EventSync(event->get()).ok());
  char back[6];
  EXPECT_TRUE(d_->Read(stream->get(), buffer->get(), 100, back, 6).ok());
  EXPECT_TRUE(d_->Sync(stream->get()).ok());
  EXPECT_STREQ(back, "hello");
  EXPECT_EQ(d_->memory()->held_bytes, 256u);
  EXPECT_EQ(d_->Read(stream->get(), buffer->get(), 255, back, 6).message(),
            "fake:0: read: 6 bytes at 255 leave the buffer of 256 bytes");
}

// ---- Parts that need no device

TEST(TableCheckTest, NamesWhatIsMissing) {
  octet_error error = Error();
  octet_backend_v1 table = *plugin::Query<Fake>(nullptr, &error);
  const auto refusal = [&] {
    auto device = Device::Open(&table, 0, "x:0", "");
    return device.ok() ? "" : std::string(device.status().message());
  };
  table.stream = nullptr;
  EXPECT_THAT(refusal(), HasSubstr("its table has no stream, which version 1"));
  table = *plugin::Query<Fake>(nullptr, &error);
  octet_quant_ops quant = *table.quant;
  quant.gather = nullptr;
  table.quant = &quant;
  EXPECT_THAT(refusal(), HasSubstr("no function quant.gather"));
  quant = *plugin::Query<Fake>(nullptr, &error)->quant;
  quant.struct_size -= 8;
  EXPECT_THAT(refusal(), HasSubstr("its quant table has 56 bytes; version 1 of the backend ABI has 64"));
  table = *plugin::Query<Fake>(nullptr, &error);
  table.struct_size -= 8;
  EXPECT_THAT(refusal(), HasSubstr("its table has 112 bytes"));
  table = *plugin::Query<Fake>(nullptr, &error);
  table.abi_draft = OCTET_ABI_DRAFT - 1;
  EXPECT_THAT(refusal(), HasSubstr("built for backend ABI 0.8; this program has 0.9"));
}

TEST(CanonicalLayoutTest, PlacesRunsInOrderAndAligned) {
  KvLayout layout = Layout(Scheme::kSymmetric);
  layout.page_tokens = 16;
  layout.k.head_dim = 64;
  layout.v = Side(Scheme::kAsymmetric, 24);
  layout.v.group = 8;
  ASSERT_TRUE(CheckLayout(layout).ok());
  ASSERT_TRUE(CanonicalLayout(layout).ok());
  EXPECT_EQ(layout.k.data_base, 0u);
  EXPECT_EQ(layout.v.data_base, 1024u);   // 16 rows of 64 codes
  EXPECT_EQ(layout.k.scale_base, 1408u);  // 16 rows of 24 codes are 384 bytes
  EXPECT_EQ(layout.v.scale_base, 1536u);  // 16 scales are 64 bytes, up to 128
  EXPECT_EQ(layout.v.zero_base, 1792u);   // 16 x 3 scales are 192 bytes, up to 256
  EXPECT_THAT(layout.k.data_stride, ElementsAre(4096, 2048, 64));
  EXPECT_THAT(layout.v.data_stride, ElementsAre(4096, 2048, 24));
  EXPECT_THAT(layout.k.scale_stride, ElementsAre(4096, 2048, 4));
  EXPECT_THAT(layout.v.scale_stride, ElementsAre(4096, 2048, 12));
  EXPECT_THAT(layout.k.zero_stride, ElementsAre(0, 0, 0));
  EXPECT_EQ(layout.layer_bytes, 3u * 4096);
  EXPECT_EQ(*CanonicalPageBytes(layout), 4096u);
}

TEST(CanonicalLayoutTest, RefusesWhatNoMachineHolds) {
  KvLayout layout = Layout();
  layout.page_tokens = 65536;
  layout.kv_heads = 65536;
  layout.num_pages = 0x7FFFFFFF;
  layout.k.head_dim = layout.v.head_dim = 576;
  ASSERT_TRUE(CheckLayout(layout).ok());
  EXPECT_THAT(CanonicalLayout(layout).message(), HasSubstr("more than 2^62 bytes"));
}

TEST(CheckLayoutTest, NamesEachImpossibleField) {
  struct Case {
    void (*spoil)(KvLayout&);
    const char* text;
  };
  const Case cases[] = {
      {[](KvLayout& l) { l.page_tokens = 0; }, "page_tokens 0"},
      {[](KvLayout& l) { l.num_pages = -1; }, "num_pages -1"},
      {[](KvLayout& l) { l.offset_block = -64; }, "offset_block"},
      {[](KvLayout& l) { l.k.head_dim = 12; }, "K cache: head_dim is 12"},
      {[](KvLayout& l) { l.v.head_dim = 584; }, "V cache: head_dim is 584"},
      {[](KvLayout& l) { l.k.rotation = 3; }, "rotation is 3"},
      {[](KvLayout& l) { l.k.rotation = 16; }, "rotation is 16"},
      {[](KvLayout& l) { l.k.rotation = -8; }, "rotation is -8"},
      {[](KvLayout& l) { l.k.group = 3; }, "group is 3"},
      {[](KvLayout& l) {
         l.k.axis = Axis::kHead;
         l.k.group = 4;
       },
       "group is 4"},
      {[](KvLayout& l) { l.k.scale_type = DType::kF16; }, "scales of type f16"},
      {[](KvLayout& l) {
         l.v.axis = Axis::kTensor;
         l.v.scale_type = DType::kBF16;
       },
       "static scales are f32"},
      {[](KvLayout& l) { l.k.zero_type = DType::kF32; }, "zero_type is f32"},
      {[](KvLayout& l) { l.k.data_type = DType::kF16; }, "quantized data of type f16"},
      {[](KvLayout& l) { l.k.scheme = Scheme::kNone; }, "int8 needs a quantization scheme"},
      {[](KvLayout& l) {
         l.has_k_extra = true;
         l.k_extra = l.k;
         l.k_extra.axis = Axis::kHead;
       },
       "extra K cache: static scales"},
  };
  ASSERT_TRUE(CheckLayout(Layout(Scheme::kSymmetric)).ok());
  for (const Case& c : cases) {
    KvLayout layout = Layout(Scheme::kSymmetric);
    c.spoil(layout);
    EXPECT_THAT(CheckLayout(layout).message(), HasSubstr(c.text));
  }
}

TEST(CheckTensorTest, RefusesWhatWouldLeaveTheBuffer) {
  std::atomic<uint64_t> held{0};
  HostBuffer buffer(256, &held);
  auto* handle = reinterpret_cast<Buffer*>(static_cast<DeviceBuffer*>(&buffer));
  Tensor t = MakeTensor(handle, DType::kF32, {4, 8}, 128);
  EXPECT_TRUE(CheckTensorInside("x", &t, DType::kF32, {-1, 8}).ok());
  t.offset = 132;
  EXPECT_THAT(CheckTensorInside("x", &t, DType::kF32, {4, 8}).message(),
              HasSubstr("128 bytes at 132 leave the buffer"));
  t.offset = 126;
  EXPECT_THAT(CheckTensorInside("x", &t, DType::kF32, {4, 8}).message(), HasSubstr("not a multiple of 4"));
  t.offset = 0;
  t.stride[0] = INT64_MAX / 2;
  EXPECT_FALSE(CheckTensorInside("x", &t, DType::kF32, {4, 8}).ok());
  t.stride[0] = -8;
  EXPECT_THAT(CheckTensorInside("x", &t, DType::kF32, {4, 8}).message(), HasSubstr("negative stride"));
  t = MakeTensor(handle, DType::kF32, {4, 8});
  t.stride[1] = 2;
  EXPECT_THAT(CheckTensorInside("x", &t, DType::kF32, {4, 8}).message(), HasSubstr("not contiguous"));
  EXPECT_THAT(CheckTensorInside("x", &t, DType::kF32, {4, 9}).message(), HasSubstr("it must be f32 [4, 9]"));
  EXPECT_THAT(CheckTensorInside("x", nullptr, DType::kF32, {4}).message(), HasSubstr("x is NULL"));
  const Tensor empty = MakeTensor(nullptr, DType::kF32, {0, 8});
  EXPECT_TRUE(CheckTensorInside("x", &empty, DType::kF32, {-1, 8}).ok());
}

TEST(CheckTensorTest, LengthsThatOverflowAreNeitherEmptyNorInTheTable) {
  std::atomic<uint64_t> held{0};
  HostBuffer buffer(4096, &held);
  auto* handle = reinterpret_cast<Buffer*>(static_cast<DeviceBuffer*>(&buffer));
  std::memset(buffer.data(), 0, buffer.bytes());
  Tensor table = MakeTensor(handle, DType::kF32, {1, 2, 8}, 2048);
  table.shape[0] = int64_t{1} << 62;
  table.stride[0] = 0;
  EXPECT_EQ(NumElements(table), INT64_MAX);
  KvLayout layout = Layout();
  layout.offset_block = 64;
  ASSERT_TRUE(CanonicalLayout(layout).ok());
  KvLayer layer{.cache = handle, .k_offset = &table};
  const Tensor k = MakeTensor(handle, DType::kF32, {1, 2, 8}), slots = MakeTensor(handle, DType::kI64, {1}, 256);
  const Tensor positions = MakeTensor(handle, DType::kI32, {1}, 512);
  *HostData<int32_t>(positions) = 128;
  const KvTokens tokens{.k = &k, .v = &k, .slots = &slots, .positions = &positions};
  EXPECT_TRUE(CheckHostTokens(layout, layer, tokens, false).ok());
  table = MakeTensor(handle, DType::kF32, {2, 2, 8}, 2048);
  EXPECT_THAT(CheckHostTokens(layout, layer, tokens, false).message(),
              HasSubstr("positions[0] is 128; the K offset table has 2 blocks of 64"));
}

TEST(HostServicesTest, LoopUsesThePoolAndCarriesExceptionsBack) {
  ThreadPool pool(3);
  octet_error error = Error();
  ASSERT_NE(plugin::Query<Fake>(MakeHostTable(&pool), &error), nullptr) << error.message;
  const HostServices host;
  EXPECT_EQ(host.max_workers(), 3u);
  std::vector<int> visits(1000);
  host.ParallelFor(1000, [&](uint32_t worker, int64_t begin, int64_t end) {
    EXPECT_LT(worker, 3u);
    for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
  });
  EXPECT_THAT(visits, Each(1));
  EXPECT_THROW(host.ParallelFor(100, [](uint32_t, int64_t, int64_t) { throw std::runtime_error("x"); }),
               std::runtime_error);
  ASSERT_NE(plugin::Query<Fake>(MakeHostTable(nullptr), &error), nullptr);
  const std::thread::id here = std::this_thread::get_id();
  ParallelFor(50, [&](uint32_t worker, int64_t, int64_t) {
    EXPECT_EQ(worker, 0u);
    EXPECT_EQ(std::this_thread::get_id(), here);
  });
}

TEST(HostServicesTest, LogReachesTheSink) {
  std::string seen;
  SetBackendLogSink([&](int level, std::string_view text) { seen += std::to_string(level) + std::string(text); });
  octet_error error = Error();
  ASSERT_NE(plugin::Query<Fake>(MakeHostTable(nullptr), &error), nullptr);
  HostServices().Log(2, "careful");
  EXPECT_EQ(seen, "2careful");
  SetBackendLogSink(nullptr);
}

TEST(ConvertTest, WeightsOfManyPartsArriveWhole) {
  std::vector<WeightPart> parts(20);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i] = {.dtype = DType::kQ4_K, .rows = static_cast<int64_t>(i + 1), .row_stride_bytes = 144, .data = &parts[i]};
  }
  for (size_t n : {size_t{1}, size_t{8}, size_t{9}, size_t{20}}) {
    const WeightDesc desc{
        .columns = 256, .parts = {parts.data(), n}, .linear = false, .embed = true, .exact = true, .max_tokens = 9};
    const convert::CWeightDesc c(desc);
    convert::PartList<WeightPart> storage;
    WeightDesc back;
    ASSERT_TRUE(convert::FromC(&c.desc, &storage, &back).ok());
    ASSERT_EQ(back.parts.size(), n);
    EXPECT_EQ(back.parts[n - 1].data, &parts[n - 1]);
    EXPECT_EQ(back.rows(), static_cast<int64_t>(n * (n + 1) / 2));
    EXPECT_TRUE(!back.linear && back.embed && back.exact);
    EXPECT_EQ(back.max_tokens, 9);
  }
  octet_weight_desc bad = convert::Sized<octet_weight_desc>();
  convert::PartList<WeightPart> storage;
  WeightDesc back;
  EXPECT_THAT(convert::FromC(&bad, &storage, &back).message(), HasSubstr("num_parts is 0"));
  bad.num_parts = 1;
  EXPECT_THAT(convert::FromC(&bad, &storage, &back).message(), HasSubstr("parts is NULL"));
}

TEST(ConvertTest, AnErrorOfSupportsIsToldApartFromNo) {
  const octet_support support = convert::Sized<octet_support>();
  octet_error error = Error();
  convert::WriteError(OCTET_DATA_LOSS, "the device fell off the bus", {}, &error);
  EXPECT_EQ(convert::ReadSupport(OCTET_UNIMPLEMENTED, error, support).reason, "the device fell off the bus");
  EXPECT_EQ(convert::ReadSupport(OCTET_INVALID_ARGUMENT, error, support).reason, "the device fell off the bus");
  const Support lost = convert::ReadSupport(OCTET_DATA_LOSS, error, support);
  EXPECT_EQ(lost.level, 0);
  EXPECT_EQ(lost.reason, "the backend could not say (code 15): the device fell off the bus");
}

TEST(ConvertTest, AnAnswerWithoutAReasonIsToldAsSuch) {
  octet_support support = convert::Sized<octet_support>();
  EXPECT_FALSE(convert::ReadSupport(OCTET_OK, Error(), support).reason.empty());
  support.level = 9;
  EXPECT_EQ(convert::ReadSupport(OCTET_OK, Error(), support).level, 0);
  EXPECT_EQ(convert::ReadStatus(999, Error()).code(), Code::kUnknown);
  EXPECT_THAT(convert::ReadStatus(OCTET_INTERNAL, Error()).message(), HasSubstr("gave no reason"));
  octet_error unterminated = Error();
  std::memset(unterminated.message, 'y', sizeof unterminated.message);
  EXPECT_EQ(convert::ReadStatus(OCTET_INTERNAL, unterminated).message().size(), sizeof unterminated.message);
}

}  // namespace
}  // namespace octet
