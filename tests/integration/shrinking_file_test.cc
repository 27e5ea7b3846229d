// A model file that somebody shortens or writes to while octet reads it: a status where the change can be seen, and the
// program's one sentence and exit code 1 where reading it raises SIGBUS.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/cli/file_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "octet/convert.h"
#include "tests/integration/random_model.h"
#include "tests/integration/tiny_engine.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace fs = std::filesystem;

// A file on the way to a device, stopped where a test wants to damage it.
struct Loading {
  Loading() : temp(RandomModel({}).File()) {
    file = *GgufFile::Open(temp.path());
    model = *Model::Prepare(CpuDevice(), *file, {.exact = true, .max_step_tokens = 32});
  }
  void CutTo(uint64_t bytes) { fs::resize_file(temp.path(), bytes); }

  TempFile temp;
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<Model> model;
};

TEST(ShrinkingFileTest, AChangeThatReadingDoesNotMeetIsToldAfterLoading) {
  // The rest of the last page reads as zeros: nothing fails, and the last weight would be wrong.
  Loading loading;
  const uint64_t size = fs::file_size(loading.temp.path());
  ASSERT_NE(size % static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), 1u);
  loading.CutTo(size - 1);
  const absl::Status status = loading.model->Upload();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(loading.temp.path() + " was changed while octet read it"),
                    HasSubstr("it had " + std::to_string(size) + " bytes and has " + std::to_string(size - 1))));
}

TEST(ShrinkingFileTest, AFileThatIsWrittenToInPlaceIsToldAfterLoading) {
  Loading loading;
  const auto later = fs::last_write_time(loading.temp.path()) + std::chrono::seconds(1);
  fs::last_write_time(loading.temp.path(), later);
  EXPECT_EQ(loading.model->Upload().code(), absl::StatusCode::kDataLoss);
}

TEST(ShrinkingFileTest, ALoadedModelNeedsItsFileNoMore) {
  Loading loading;
  ASSERT_TRUE(loading.model->Upload().ok());
  loading.CutTo(0);
  RunnerOptions options;
  options.max_model_len = 32;
  auto runner = Runner::Prepare(*loading.model, options);
  ASSERT_TRUE(runner.ok()) << runner.status();
  ASSERT_TRUE((*runner)->Allocate().ok());
  Sequence sequence(**runner, {1, 2, 3});
  const SequenceInput input = sequence.Next(3, false);
  EXPECT_TRUE((*runner)->Step({&input, 1}).ok());
}

using ShrinkingFileDeathTest = ::testing::Test;

TEST(ShrinkingFileDeathTest, MeetingTheNewEndIsOneSentence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string sentence =
      "^octet: /.* was cut short while octet used it, or its disk could not be read; "
      "run again once it is whole\n$";
  EXPECT_EXIT(
      {
        AnswerFileFaults();
        Loading loading;
        loading.CutTo(0);
        loading.model->Upload().IgnoreError();
      },
      ::testing::ExitedWithCode(1), sentence);
  EXPECT_EXIT(  // in the middle: by the first weight that is done
      {
        AnswerFileFaults();
        Loading loading;
        loading.model->Upload([](double, void* arg) { static_cast<Loading*>(arg)->CutTo(4096); }, &loading)
            .IgnoreError();
      },
      ::testing::ExitedWithCode(1), sentence);
  EXPECT_EXIT(  // while its description is read
      {
        AnswerFileFaults();
        TempFile temp(RandomModel({}).File());
        auto file = *GgufFile::Open(temp.path());
        fs::resize_file(temp.path(), 0);
        Model::Prepare(CpuDevice(), *file, {}).status().IgnoreError();
      },
      ::testing::ExitedWithCode(1), sentence);
}

TEST(ShrinkingFileDeathTest, AnotherBusErrorKeepsItsEffect) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (convert::BuildSanitizer() != std::string_view("none")) GTEST_SKIP() << "the sanitizer has a handler of its own";
  EXPECT_EXIT(
      {
        AnswerFileFaults();
        raise(SIGBUS);  // caught once, which takes the handler away
        raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace octet
