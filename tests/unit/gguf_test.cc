// The GGUF reader on good, broken and hostile files, and on the real models.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/gguf/gguf_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "octet/gguf_blocks.h"
#include "tests/unit/gguf_writer.h"

namespace octet {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A file of each kind of content, small enough to be cut at every byte.
GgufWriter SmallFile() {
  GgufWriter writer;
  writer.String("general.architecture", "llama").U32("general.alignment", 32).Bool("flag", true);
  writer.F32("eps", 1e-5f).F64("wide", 0.25).U8("u8", 200).I8("i8", -3).U16("u16", 60000).I16("i16", -300);
  writer.I32("i32", -70000).U64("u64", 1ull << 40).I64("i64", -(1ll << 40));
  writer.Strings("words", {"a", "", "ccc"}).I32s("ints", {1, -2, 3}).F32s("floats", {0.5f, -1.0f}).U32s("none", {});
  writer.Tensor("f32", DType::kF32, {4, 3}, FloatBytes({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  writer.Tensor("q8", DType::kQ8_0, {32, 2}, std::string(68, '\1'));
  writer.Tensor("vector", DType::kBF16, {5}, std::string(10, '\0'));
  return writer;
}

// Through a file in memory: thousands of files on a disk would take seconds.
absl::StatusOr<std::unique_ptr<GgufFile>> OpenBytes(std::string_view bytes) {
  const int fd = memfd_create("gguf", MFD_CLOEXEC);
  if (fd < 0 || write(fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    return absl::InternalError("cannot make a file in memory");
  }
  auto file = GgufFile::Open(absl::StrCat("/proc/self/fd/", fd));
  close(fd);
  return file;
}

std::string ErrorOf(std::string_view bytes) {
  const auto file = OpenBytes(bytes);
  return file.ok() ? "OK" : std::string(file.status().message());
}

std::string ErrorOf(const GgufWriter& writer) { return ErrorOf(writer.Finish()); }

TEST(GgufFileTest, ReadsMetadataOfEveryKind) {
  for (uint32_t version : {2u, 3u}) {
    GgufWriter writer = SmallFile();
    writer.version = version;
    const auto opened = OpenBytes(writer.Finish());
    ASSERT_TRUE(opened.ok()) << opened.status();
    const GgufFile& file = **opened;
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.keys().size(), 16);
    EXPECT_EQ(file.keys()[1], "general.alignment");
    EXPECT_EQ(file.GetString("general.architecture").value(), "llama");
    EXPECT_EQ(file.GetInt("general.alignment").value(), 32);
    EXPECT_EQ(file.GetInt("u8").value(), 200);
    EXPECT_EQ(file.GetInt("i8").value(), -3);
    EXPECT_EQ(file.GetInt("u16").value(), 60000);
    EXPECT_EQ(file.GetInt("i16").value(), -300);
    EXPECT_EQ(file.GetInt("i32").value(), -70000);
    EXPECT_EQ(file.GetInt("u64").value(), 1ll << 40);
    EXPECT_EQ(file.GetInt("i64").value(), -(1ll << 40));
    EXPECT_EQ(file.GetFloat("eps").value(), 1e-5f);
    EXPECT_EQ(file.GetFloat("wide").value(), 0.25);
    EXPECT_TRUE(file.GetBool("flag").value());
    EXPECT_THAT(file.GetStrings("words").value(), ElementsAre("a", "", "ccc"));
    EXPECT_THAT(file.GetInts("ints").value(), ElementsAre(1, -2, 3));
    EXPECT_THAT(file.GetInts("none").value(), ElementsAre());
    EXPECT_THAT(file.GetFloats("floats").value(), ElementsAre(0.5f, -1.0f));
    EXPECT_EQ(file.GetArraySize("words").value(), 3);
    EXPECT_EQ(file.GetArraySize("u8").status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(file.TypeOf("words"), "array of string");
    EXPECT_EQ(file.TypeOf("absent"), "");
  }
}

TEST(GgufFileTest, WrongTypeNamesTheKeyAndBothTypes) {
  const auto file = OpenBytes(SmallFile().Finish()).value();
  EXPECT_THAT(std::string(file->GetInt("eps").status().message()),
              HasSubstr("'eps' is of type float32, not an integer"));
  EXPECT_THAT(std::string(file->GetFloat("u8").status().message()), HasSubstr("'u8' is of type uint8, not a float"));
  EXPECT_THAT(std::string(file->GetBool("u8").status().message()), HasSubstr("'u8' is of type uint8, not bool"));
  EXPECT_THAT(std::string(file->GetString("words").status().message()),
              HasSubstr("'words' is of type array of string, not string"));
  EXPECT_THAT(std::string(file->GetStrings("ints").status().message()),
              HasSubstr("'ints' is of type array of int32, not array of string"));
  EXPECT_THAT(std::string(file->GetInts("words").status().message()), HasSubstr("not array of integers"));
  EXPECT_THAT(std::string(file->GetInts("u8").status().message()), HasSubstr("not array of integers"));
  EXPECT_THAT(std::string(file->GetFloats("ints").status().message()), HasSubstr("not array of float32"));
  EXPECT_EQ(file->GetInt("eps").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GgufFileTest, TextsThatGrowInAFileThatIsWrittenToAreNotFollowed) {
  GgufWriter writer;
  writer.String("general.architecture", "llama").Strings("words", {"a", "bb"});
  const std::string bytes = writer.Finish();
  const TempFile temp(bytes);
  const auto file = GgufFile::Open(temp.path()).value();
  const size_t last = bytes.rfind("bb");
  ASSERT_NE(last, std::string::npos);
  std::fstream out(temp.path(), std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(static_cast<std::streamoff>(last - sizeof(uint64_t)));
  for (int i = 0; i < 8; ++i) out.put('\x7f');
  out.close();
  EXPECT_EQ(file->GetStrings("words").status().code(), absl::StatusCode::kDataLoss);
}

TEST(GgufFileTest, AbsentKeyIsNotFoundOrTheDefault) {
  const auto file = OpenBytes(SmallFile().Finish()).value();
  EXPECT_FALSE(file->Has("absent"));
  EXPECT_EQ(file->GetInt("absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file->GetStrings("absent").status().message()), HasSubstr("no metadata key 'absent'"));
  EXPECT_EQ(file->GetIntOr("absent", 5).value(), 5);
  EXPECT_EQ(file->GetIntOr("u8", 5).value(), 200);
  EXPECT_EQ(file->GetFloatOr("absent", 0.5).value(), 0.5);
  EXPECT_TRUE(file->GetBoolOr("absent", true).value());
  EXPECT_EQ(file->GetStringOr("absent", "x").value(), "x");
  EXPECT_FALSE(file->GetIntOr("eps", 5).ok());
}

TEST(GgufFileTest, NumberAboveInt64IsAnError) {
  GgufWriter writer;
  writer.U64("big", ~0ull).U64s("bigs", {1, ~0ull});
  const auto file = OpenBytes(writer.Finish()).value();
  EXPECT_EQ(file->GetInt("big").status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(file->GetInts("bigs").status().code(), absl::StatusCode::kOutOfRange);
}

TEST(GgufFileTest, ReadsTensors) {
  const auto file = OpenBytes(SmallFile().Finish()).value();
  ASSERT_EQ(file->tensors().size(), 3);
  const GgufTensor* f32 = file->FindTensor("f32");
  ASSERT_NE(f32, nullptr);
  EXPECT_EQ(f32->rank, 2);
  EXPECT_THAT(f32->shape, ElementsAre(4, 3, 1, 1));
  EXPECT_EQ(f32->elements, 12);
  EXPECT_EQ(f32->rows, 3);
  EXPECT_EQ(f32->row_bytes, 16);
  EXPECT_EQ(f32->bytes, 48);
  std::vector<float> row(4);
  ASSERT_TRUE(DequantizeTensorRow(*f32, 2, row.data()).ok());
  EXPECT_THAT(row, ElementsAre(9, 10, 11, 12));
  EXPECT_EQ(DequantizeTensorRow(*f32, 3, row.data()).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(DequantizeTensorRow(*f32, -1, row.data()).code(), absl::StatusCode::kOutOfRange);
  const GgufTensor* q8 = file->FindTensor("q8");
  ASSERT_NE(q8, nullptr);
  EXPECT_EQ(q8->type, DType::kQ8_0);
  EXPECT_EQ(q8->row_bytes, 34);
  row.resize(32);
  ASSERT_TRUE(DequantizeTensorRow(*q8, 1, row.data()).ok());
  EXPECT_EQ(row[0], HalfToFloat(0x0101));
  EXPECT_EQ(file->FindTensor("vector")->rows, 1);
  EXPECT_EQ(file->FindTensor("absent"), nullptr);
  file->DropPages({q8->data, static_cast<size_t>(q8->bytes)});
  EXPECT_EQ(static_cast<int>(q8->data[67]), 1);
}

TEST(GgufFileTest, ReadsTensorsOfEveryType) {
  const DType types[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                         DType::kQ5_1, DType::kQ8_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
  GgufWriter writer;
  for (DType type : types) {
    const auto bytes = static_cast<size_t>(3 * GgufRowBytes(type, 512));
    writer.Tensor(absl::StrCat("t", static_cast<int>(type)), type, {512, 1, 3}, std::string(bytes, '\1'));
  }
  const auto opened = OpenBytes(writer.Finish());
  ASSERT_TRUE(opened.ok()) << opened.status();
  std::vector<float> row(512);
  for (DType type : types) {
    const GgufTensor* tensor = (*opened)->FindTensor(absl::StrCat("t", static_cast<int>(type)));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->type, type);
    EXPECT_EQ(tensor->rows, 3);
    EXPECT_TRUE(DequantizeTensorRow(*tensor, 2, row.data()).ok());
  }
}

TEST(GgufFileTest, RespectsTheFilesAlignment) {
  GgufWriter writer;
  writer.alignment = 128;
  writer.U32("general.alignment", 128);
  writer.Tensor("a", DType::kF32, {1}, FloatBytes({1})).Tensor("b", DType::kF32, {1}, FloatBytes({2}));
  const auto opened = OpenBytes(writer.Finish());
  ASSERT_TRUE(opened.ok()) << opened.status();
  float value = 0;
  ASSERT_TRUE(DequantizeTensorRow(*(*opened)->FindTensor("b"), 0, &value).ok());
  EXPECT_EQ(value, 2);
}

TEST(GgufFileTest, OtherFilesAreNotGguf) {
  for (std::string_view bytes : {"x", "GGU", "hello, world", "GGML\1\0\0\0", "PK\3\4 a zip file"}) {
    EXPECT_THAT(ErrorOf(bytes), HasSubstr(" is not a GGUF model file"));
  }
  EXPECT_EQ(GgufFile::Open("/nonexistent/model.gguf").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(GgufFile::Open("/").status().message()), HasSubstr("not a regular file"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("empty"));
}

TEST(GgufFileTest, RefusesOtherVersions) {
  for (uint32_t version : {0u, 1u, 4u, 1000u}) {
    GgufWriter writer = SmallFile();
    writer.version = version;
    EXPECT_THAT(ErrorOf(writer), HasSubstr("of version " + std::to_string(version) +
                                           ", which octet does not read; it reads versions 2 and 3"));
  }
  GgufWriter writer = SmallFile();
  writer.version = 0x03000000;
  EXPECT_THAT(ErrorOf(writer), HasSubstr("big-endian"));
}

TEST(GgufFileTest, CutAnywhereIsAnErrorAndNeverACrash) {
  const std::string bytes = SmallFile().Finish();
  ASSERT_EQ(ErrorOf(bytes), "OK");
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(ErrorOf(std::string_view(bytes).substr(0, size)), "OK") << size;
  }
}

TEST(GgufFileTest, AnyByteChangedNeverCrashes) {
  const std::string good = SmallFile().Finish();
  std::vector<float> row(1 << 12);
  int opened_files = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int change : {0x01, 0x80, 0xff}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      const auto file = OpenBytes(bytes);
      if (!file.ok()) {
        EXPECT_FALSE(file.status().message().empty());
        continue;
      }
      ++opened_files;
      for (const GgufTensor& tensor : (*file)->tensors()) {
        ASSERT_LE(tensor.row_elements(), 1 << 12);
        EXPECT_TRUE(DequantizeTensorRow(tensor, tensor.rows - 1, row.data()).ok());
      }
      for (std::string_view key : (*file)->keys()) {
        const bool one_fits = (*file)->GetInt(key).ok() + (*file)->GetFloat(key).ok() + (*file)->GetBool(key).ok() +
                                  (*file)->GetString(key).ok() + (*file)->GetInts(key).ok() +
                                  (*file)->GetFloats(key).ok() + (*file)->GetStrings(key).ok() <=
                              1;
        EXPECT_TRUE(one_fits);
      }
    }
  }
  EXPECT_GT(opened_files, 100);
}

TEST(GgufFileTest, HugeCountsAreRefusedBeforeAllocating) {
  for (uint64_t count : {uint64_t{1000}, uint64_t{1} << 32, ~uint64_t{0}}) {
    GgufWriter keys = SmallFile();
    keys.key_count = count;
    EXPECT_THAT(ErrorOf(keys), HasSubstr("metadata keys, more than fit"));
    GgufWriter tensors = SmallFile();
    tensors.tensor_count = count;
    EXPECT_THAT(ErrorOf(tensors), HasSubstr("tensors, more than fit"));
    for (GgufType element : {GgufType::kUint8, GgufType::kString, GgufType::kArray, GgufType::kFloat64}) {
      GgufWriter array;
      array.Raw("list", 9, GgufWriter::ArrayHead(element, count));
      EXPECT_THAT(ErrorOf(array), HasSubstr("'list' announces " + std::to_string(count)));
    }
    GgufWriter text;
    std::string length;
    AppendRaw(length, count);
    text.Raw("text", 8, length + "abc");
    EXPECT_THAT(ErrorOf(text), HasSubstr("the text of metadata key 'text' is incomplete"));
  }
}

TEST(GgufFileTest, DeepNestingIsRefused) {
  const auto nested = [](int levels) {
    std::string value;
    for (int i = 0; i < levels - 1; ++i) value += GgufWriter::ArrayHead(GgufType::kArray, 1);
    return value + GgufWriter::ArrayHead(GgufType::kUint8, 1) + "x";
  };
  GgufWriter shallow;
  shallow.Raw("list", 9, nested(4));
  EXPECT_EQ(ErrorOf(shallow), "OK");
  for (int levels : {5, 100, 100000}) {
    GgufWriter deep;
    deep.Raw("list", 9, nested(levels));
    EXPECT_THAT(ErrorOf(deep), HasSubstr("'list' nests arrays more than 4 levels deep"));
  }
}

TEST(GgufFileTest, BrokenMetadataIsRefused) {
  GgufWriter type;
  type.Raw("key", 13, "12345678");
  EXPECT_THAT(ErrorOf(type), HasSubstr("'key' has a value of unknown type 13"));
  GgufWriter element;
  element.Raw("key", 9, GgufWriter::ArrayHead(static_cast<GgufType>(77), 1) + "x");
  EXPECT_THAT(ErrorOf(element), HasSubstr("'key' is an array of unknown type 77"));
  GgufWriter inner;
  inner.Raw("key", 9, GgufWriter::ArrayHead(GgufType::kArray, 1) + GgufWriter::ArrayHead(static_cast<GgufType>(77), 1));
  EXPECT_THAT(ErrorOf(inner), HasSubstr("'key' holds an array of unknown type 77"));
  GgufWriter truth;
  truth.Raw("key", 7, "\2");
  EXPECT_THAT(ErrorOf(truth), HasSubstr("'key' has 2 as a truth value"));
  GgufWriter twice;
  twice.U32("key", 1).U32("key", 1);
  EXPECT_THAT(ErrorOf(twice), HasSubstr("metadata key 'key' appears twice"));
  GgufWriter unnamed;
  unnamed.U32("", 1);
  EXPECT_THAT(ErrorOf(unnamed), HasSubstr("metadata key number 0 has 0 bytes"));
  GgufWriter control;
  control.U32("a\x1b[2J\n", 1).U32("a\x1b[2J\n", 1);
  EXPECT_THAT(ErrorOf(control), HasSubstr("'a\\x1b[2J\\x0a' appears twice"));
}

TEST(GgufFileTest, BadAlignmentIsRefused) {
  for (uint32_t alignment : {0u, 1u, 4u, 24u, 0x80000000u}) {
    GgufWriter writer;
    writer.U32("general.alignment", alignment);
    EXPECT_THAT(ErrorOf(writer), HasSubstr("general.alignment is " + std::to_string(alignment)));
  }
  GgufWriter text;
  text.String("general.alignment", "32");
  EXPECT_THAT(ErrorOf(text), HasSubstr("'general.alignment' is of type string, not an integer"));
}

TEST(GgufFileTest, SplitFileIsRefused) {
  GgufWriter writer;
  writer.U16("split.count", 3);
  EXPECT_THAT(ErrorOf(writer), HasSubstr("one of 3 parts of a split model"));
}

TEST(GgufFileTest, UnreadableTensorTypeIsNamed) {
  const std::map<uint32_t, std::string> names = {{17, "type IQ2_XS"},   {10, "type Q2_K"},  {28, "type F64"},
                                                 {33, "type Q4_0_8_8"}, {39, "type MXFP4"}, {77, "type number 77"}};
  for (const auto& [number, name] : names) {
    GgufWriter writer;
    writer.RawTensor("blk.0.ffn_up.weight", number, {256}, 0, std::string(2048, 'x'));
    EXPECT_THAT(ErrorOf(writer), HasSubstr("tensor 'blk.0.ffn_up.weight' has " + name +
                                           ", which octet does not read; it reads F32, F16, BF16, Q4_0"));
  }
}

TEST(GgufFileTest, ImpossibleShapesAreRefused) {
  const std::string data(64, 'x');
  const auto error = [&](const std::vector<uint64_t>& shape, DType type = DType::kF32) {
    GgufWriter writer;
    writer.Tensor("t", type, shape, data);
    return ErrorOf(writer);
  };
  EXPECT_EQ(error({2, 2, 2, 2}), "OK");
  EXPECT_THAT(error({}), HasSubstr("tensor 't' has 0 dimensions"));
  EXPECT_THAT(error({1, 1, 1, 1, 1}), HasSubstr("tensor 't' has 5 dimensions"));
  EXPECT_THAT(error({4, 0}), HasSubstr("impossible size 0 in dimension 1"));
  EXPECT_THAT(error({~0ull}), HasSubstr("impossible size 18446744073709551615 in dimension 0"));
  EXPECT_THAT(error({1ull << 32, 1ull << 32}), HasSubstr("impossible size"));
  EXPECT_THAT(error({1ull << 62}), HasSubstr("larger than any file"));
  EXPECT_THAT(error({1ull << 60}), HasSubstr("needs 4611686018427387904 bytes"));
  EXPECT_THAT(error({33}, DType::kQ8_0), HasSubstr("rows of 33 elements, which blocks of 32 (Q8_0) do not fill"));
  EXPECT_THAT(error({32, 8}, DType::kQ4_K), HasSubstr("rows of 32 elements, which blocks of 256"));
}

TEST(GgufFileTest, MisplacedTensorsAreRefused) {
  const std::string data(256, 'x');
  GgufWriter unaligned;
  unaligned.RawTensor("t", 0, {4}, 16, data);
  EXPECT_THAT(ErrorOf(unaligned), HasSubstr("tensor 't' starts at 16, which general.alignment 32 does not divide"));
  for (uint64_t offset : {uint64_t{256}, uint64_t{1} << 40, ~uint64_t{31}}) {
    GgufWriter outside;
    outside.RawTensor("t", 0, {4}, offset, data);
    EXPECT_THAT(ErrorOf(outside), HasSubstr("tensor 't' needs 16 bytes at offset " + std::to_string(offset)));
  }
  GgufWriter overlap;
  overlap.RawTensor("b", 0, {4}, 32, data).RawTensor("a", 0, {9}, 0, "");
  EXPECT_THAT(ErrorOf(overlap), HasSubstr("tensors 'a' and 'b' overlap"));
  GgufWriter same;
  same.RawTensor("a", 0, {4}, 0, data).RawTensor("b", 0, {4}, 0, "");
  EXPECT_THAT(ErrorOf(same), HasSubstr("overlap"));
  GgufWriter twice;
  twice.RawTensor("a", 0, {4}, 0, data).RawTensor("a", 0, {4}, 32, "");
  EXPECT_THAT(ErrorOf(twice), HasSubstr("tensor 'a' appears twice"));
}

TEST(GgufFileTest, ErrorsNameTheFile) {
  const TempFile file("GGUF\3");
  EXPECT_THAT(std::string(GgufFile::Open(file.path()).status().message()), StartsWith(file.path() + " ends too early"));
}

struct Model {
  const char* file;
  size_t tensors;
  const char* architecture;
  std::map<DType, int> types;
};

TEST(GgufFileTest, OpensTheRealModels) {
  const Model models[] = {
      {"SmolLM2-135M-Instruct.Q4_1.gguf", 272, "llama", {{DType::kQ4_1, 210}, {DType::kF32, 61}, {DType::kQ8_0, 1}}},
      {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
       291,
       "qwen2",
       {{DType::kQ5_0, 133}, {DType::kF32, 121}, {DType::kQ8_0, 13}, {DType::kQ6_K, 12}, {DType::kQ4_K, 12}}},
      {"gemma-3-270m-q4_k_m.gguf",
       236,
       "gemma3",
       {{DType::kF32, 109}, {DType::kQ5_0, 81}, {DType::kQ4_K, 27}, {DType::kQ8_0, 10}, {DType::kQ6_K, 9}}},
  };
  int seen = 0;
  for (const Model& model : models) {
    const std::filesystem::path path = ModelsDir() / model.file;
    if (!std::filesystem::exists(path)) continue;
    ++seen;
    const auto opened = GgufFile::Open(path);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const GgufFile& file = **opened;
    EXPECT_EQ(file.GetString("general.architecture").value(), model.architecture);
    EXPECT_EQ(file.tensors().size(), model.tensors);
    std::map<DType, int> types;
    for (const GgufTensor& tensor : file.tensors()) ++types[tensor.type];
    EXPECT_EQ(types, model.types);
    const GgufTensor* embedding = file.FindTensor("token_embd.weight");
    ASSERT_NE(embedding, nullptr);
    EXPECT_EQ(embedding->rows, static_cast<int64_t>(file.GetStrings("tokenizer.ggml.tokens").value().size()));
    // The last row of every tensor: finite, and of a weight's size in matrices.
    std::vector<float> row;
    for (const GgufTensor& tensor : file.tensors()) {
      row.resize(static_cast<size_t>(tensor.row_elements()));
      ASSERT_TRUE(DequantizeTensorRow(tensor, tensor.rows - 1, row.data()).ok());
      const float largest = tensor.rank > 1 ? 20.0f : 1e4f;
      for (float weight : row) ASSERT_LT(std::abs(weight), largest) << tensor.name;
    }
  }
  if (seen == 0) GTEST_SKIP() << "no model in " << ModelsDir();
}

}  // namespace
}  // namespace octet
