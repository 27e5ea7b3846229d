#include "tests/conformance/harness.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "gtest/gtest.h"
#include "tests/reference/float_types.h"

namespace octet::conformance {
namespace {

constexpr uint8_t kGuard = 0xa5;
bool only_list = false;
thread_local Stream* thread_stream = nullptr;
std::string not_run;  // of the current case

class FunctionCase : public testing::Test {
 public:
  explicit FunctionCase(std::function<Status()> body) : body_(std::move(body)) {}
  void TestBody() override {
    if (only_list) return;
    not_run.clear();
    const Status status = body_();
    if (!not_run.empty()) GTEST_SKIP() << kNotRun << not_run;
    if (status.code() == Code::kUnimplemented) GTEST_SKIP() << status.message();
    if (!status.ok()) ADD_FAILURE() << status.message();
  }

 private:
  std::function<Status()> body_;
};

// A basic service of the device.
void Need(const char* what, const absl::Status& status) {
  if (status.ok()) return;
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  std::printf("fail         %s.%s\n  the device can no longer %s: %s\n  no further case can run\n",
              test != nullptr ? test->test_suite_name() : "?", test != nullptr ? test->name() : "?", what,
              std::string(status.message()).c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

}  // namespace

Subject& TheSubject() {
  static Subject& subject = *new Subject;
  return subject;
}

Stream& Subject::s() const { return thread_stream != nullptr ? *thread_stream : *stream.get(); }

StreamOfThread::StreamOfThread() {
  auto stream = TheSubject().device->CreateStream();
  Need("create a stream", stream.status());
  stream_ = *std::move(stream);
  thread_stream = stream_.get();
}
StreamOfThread::~StreamOfThread() { thread_stream = nullptr; }

absl::StatusOr<std::unique_ptr<Device>> OpenAgain() {
  const Subject& subject = TheSubject();
  return Device::Open(subject.table(), subject.index, subject.device->id(), subject.options);
}

OnDevice::OnDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {
  auto stream = device_->CreateStream();
  Need("create a stream", stream.status());
  stream_ = *std::move(stream);
  std::swap(device_, TheSubject().device);
  std::swap(stream_, TheSubject().stream);
}
OnDevice::~OnDevice() {
  std::swap(device_, TheSubject().device);
  std::swap(stream_, TheSubject().stream);
}

void OnlyListCases() { only_list = true; }

void AddCase(std::string name, std::function<Status()> body) {
  const size_t dot = name.find('.');
  testing::RegisterTest(name.substr(0, dot).c_str(), name.substr(dot + 1).c_str(), nullptr, nullptr, __FILE__, __LINE__,
                        [body = std::move(body)]() -> testing::Test* { return new FunctionCase(body); });
}

Status NotRun(const std::string& why) {
  not_run = why;
  return OkStatus();
}

octet_error Error() {
  octet_error error{};
  error.struct_size = sizeof(error);
  return error;
}

void ExpectRefusal(octet_code code, const octet_error& error, const char* what) {
  EXPECT_NE(code, OCTET_OK) << what;
  EXPECT_EQ(error.code, code) << what;
  EXPECT_NE(error.message[0], '\0') << what << " gives no reason";
  EXPECT_EQ(error.message_len, strnlen(error.message, sizeof(error.message))) << what;
}

void ExpectRefused(const char* what, const Status& status) {
  Sync();
  EXPECT_FALSE(status.ok()) << what << " was accepted";
  EXPECT_FALSE(status.message().empty()) << what << " was refused without a reason";
}

Status Promised(const char* call, const Status& status) {
  if (status.ok()) return status;
  return Internal(std::string(call) + " failed although supports promised it (rule A10): " + status.message());
}

void Sync() { Need("sync", TheSubject().device->Sync(&TheSubject().s())); }

Block::Block(uint64_t bytes, uint8_t fill) : bytes_(bytes) {
  Device& device = *TheSubject().device;
  Stream* stream = &TheSubject().s();
  auto buffer = device.Alloc(bytes + 2 * kGuardBytes);
  Need("allocate", buffer.status());
  buffer_ = *std::move(buffer);
  Need("fill", device.Fill(stream, buffer_.get(), 0, bytes + 2 * kGuardBytes, kGuard));
  if (bytes > 0) Need("fill", device.Fill(stream, buffer_.get(), kGuardBytes, bytes, fill));
}

Block::Block(const void* contents, uint64_t bytes) : Block(bytes) {
  if (bytes > 0) {
    input_.assign(static_cast<const uint8_t*>(contents), static_cast<const uint8_t*>(contents) + bytes);
    Need("write", TheSubject().device->Write(&TheSubject().s(), buffer(), kGuardBytes, contents, bytes));
    Sync();
  }
}

Block::Block(DType type, const std::vector<float>& contents) : Block(contents.size() * ElementBytes(type)) {
  const size_t width = static_cast<size_t>(ElementBytes(type));
  std::vector<uint8_t> bytes(contents.size() * width);
  for (size_t i = 0; i < contents.size(); ++i) reference::StoreFloat(type, contents[i], &bytes[i * width]);
  Write(bytes);
  input_ = std::move(bytes);
}

Block::~Block() {
  if (!input_.empty() && Bytes() != input_) ADD_FAILURE() << "an input of " << bytes_ << " bytes was written to";
  std::vector<uint8_t> guard(kGuardBytes);
  for (uint64_t start : {uint64_t{0}, kGuardBytes + bytes_}) {
    Need("read", TheSubject().device->Read(&TheSubject().s(), buffer(), start, guard.data(), kGuardBytes));
    Sync();
    const auto changed = std::find_if(guard.begin(), guard.end(), [](uint8_t b) { return b != kGuard; });
    if (changed == guard.end()) continue;
    const int64_t at = static_cast<int64_t>(start) + (changed - guard.begin()) - static_cast<int64_t>(kGuardBytes);
    ADD_FAILURE() << "a guard byte changed at byte " << at << " of a region of " << bytes_ << " bytes";
  }
}

Tensor Block::View(DType type, std::initializer_list<int64_t> shape) const {
  return MakeTensor(buffer(), type, shape, kGuardBytes);
}

std::vector<uint8_t> Block::Bytes() const {
  std::vector<uint8_t> bytes(bytes_);
  if (bytes_ > 0) {
    Need("read", TheSubject().device->Read(&TheSubject().s(), buffer(), kGuardBytes, bytes.data(), bytes_));
    Sync();
  }
  return bytes;
}

std::vector<float> Block::Floats(DType type) const {
  const std::vector<uint8_t> bytes = Bytes();
  const size_t width = static_cast<size_t>(ElementBytes(type));
  std::vector<float> values(bytes.size() / width);
  for (size_t i = 0; i < values.size(); ++i) values[i] = reference::LoadFloat(type, &bytes[i * width]);
  return values;
}

void Block::Write(const std::vector<uint8_t>& contents) {
  input_.clear();
  if (contents.empty()) return;
  Need("write", TheSubject().device->Write(&TheSubject().s(), buffer(), kGuardBytes, contents.data(), contents.size()));
  Sync();
}

FloatWeight::FloatWeight(int64_t rows, int64_t columns, int32_t max_tokens, std::vector<float> contents)
    : values(std::move(contents)),
      part{DType::kF32, rows, columns * static_cast<int64_t>(sizeof(float)), values.data(), nullptr} {
  desc.columns = columns;
  desc.parts = {&part, 1};
  desc.max_tokens = max_tokens;
}

bool Untouched(const Block& block, const char* what) {
  const std::vector<uint8_t> bytes = block.Bytes();
  const auto changed = std::find_if(bytes.begin(), bytes.end(), [](uint8_t b) { return b != 0xff; });
  if (changed == bytes.end()) return true;
  ADD_FAILURE() << what << " was written at byte " << changed - bytes.begin() << " by a call that refused";
  return false;
}

}  // namespace octet::conformance
