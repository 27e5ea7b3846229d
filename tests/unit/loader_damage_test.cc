// A good backend, damaged byte by byte wherever the dynamic linker looks. What the preflight lets through is loaded in
// a process of its own, which must end by itself: with a ready backend or with a sentence, never by a signal.
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/loader/elf_preflight.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "octet/convert.h"

namespace octet {
namespace {

using ::testing::MatchesRegex;

namespace fs = std::filesystem;

using Bytes = std::vector<std::byte>;

// A process with a sanitizer takes long to start.
constexpr int kChildEvery = convert::BuildSanitizer() == std::string_view("none") ? 1 : 16;

Bytes ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Typed access to a file's headers; the file is good, so nothing is checked.
class GoodElf {
 public:
  explicit GoodElf(Bytes& bytes) : bytes_(bytes) {}

  template <typename T>
  T& At(uint64_t offset) const {
    return *reinterpret_cast<T*>(bytes_.data() + offset);
  }
  Elf64_Ehdr& header() const { return At<Elf64_Ehdr>(0); }
  Elf64_Phdr& segment(uint32_t type, int skip = 0) const {
    for (uint64_t i = 0;; ++i) {
      auto& segment = At<Elf64_Phdr>(header().e_phoff + i * sizeof(Elf64_Phdr));
      if (segment.p_type == type && skip-- == 0) return segment;
    }
  }
  // File offset of the entry of a tag.
  uint64_t EntryAt(int64_t tag) const {
    for (uint64_t at = segment(PT_DYNAMIC).p_offset;; at += sizeof(Elf64_Dyn)) {
      if (At<Elf64_Dyn>(at).d_tag == tag) return at;
    }
  }
  Elf64_Dyn& entry(int64_t tag) const { return At<Elf64_Dyn>(EntryAt(tag)); }
  uint64_t value(int64_t tag) const { return entry(tag).d_un.d_val; }
  uint64_t Offset(uint64_t address) const {
    for (int i = 0;; ++i) {
      const Elf64_Phdr& load = segment(PT_LOAD, i);
      if (address >= load.p_vaddr && address - load.p_vaddr < load.p_filesz)
        return address - load.p_vaddr + load.p_offset;
    }
  }

 private:
  Bytes& bytes_;
};

class LoaderDamageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(::testing::TempDir()) / ("octet_damage_" + std::to_string(getpid()));
    fs::create_directories(dir_);
    whole_ = ReadFile(std::string(OCTET_TEST_PLUGINS) + "/liboctet_backend_gpu.so");
    ASSERT_TRUE(InspectElf(whole_).ok()) << InspectElf(whole_).status();
    ASSERT_EQ(Load(whole_, "undamaged"), "ready: \n");
  }
  void TearDown() override { fs::remove_all(dir_); }

  // What load_one prints; a failure and "" where a signal ended it.
  std::string Load(const Bytes& bytes, const std::string& what) {
    const fs::path file = dir_ / "liboctet_backend_gpu.so", out = dir_ / "out";
    fs::remove(file);  // never a file that another process has mapped
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    std::string program = OCTET_LOAD_ONE, path = file.string();
    char* const argv[] = {program.data(), path.data(), nullptr};
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, program.c_str(), &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    int status = 0;
    waitpid(child, &status, 0);
    // glibc's own "Inconsistency detected by ld.so" ends with 127.
    const bool by_itself = WIFEXITED(status) && WEXITSTATUS(status) <= 1;
    EXPECT_TRUE(by_itself) << what << ": " << (WIFSIGNALED(status) ? "signal " : "exit code ")
                           << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    std::ifstream in(out);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  // One sentence from the preflight, or a child that ends by itself.
  void LoadDamaged(const Bytes& bytes, const std::string& what) {
    const auto report = InspectElf(bytes);
    if (!report.ok()) {
      EXPECT_THAT(std::string(report.status().message()), MatchesRegex("[^\n]+")) << what;
      ++refused_;
    } else if (++accepted_ % kChildEvery == 0) {
      Load(bytes, what);
    }
  }

  // Every byte of [begin, begin + bytes) in turn: all its bits, then its lowest one.
  void FlipAll(const char* what, uint64_t begin, uint64_t bytes, const std::function<bool(uint64_t)>& skip = {}) {
    for (uint64_t at = begin; at < begin + bytes; ++at) {
      if (skip && skip(at)) continue;
      for (const int mask : {0xff, 0x01}) {
        whole_[at] ^= static_cast<std::byte>(mask);
        LoadDamaged(whole_, std::string(what) + ", byte " + std::to_string(at) + " ^ " + std::to_string(mask));
        whole_[at] ^= static_cast<std::byte>(mask);
      }
    }
  }

  std::string Refusal(const std::function<void(const GoodElf&)>& damage) {
    Bytes bytes = whole_;
    damage(GoodElf(bytes));
    const auto report = InspectElf(bytes);
    return report.ok() ? "accepted" : std::string(report.status().message());
  }

  fs::path dir_;
  Bytes whole_;
  int accepted_ = 0, refused_ = 0;
};

TEST_F(LoaderDamageTest, NoByteOfTheHeadersEndsTheProcess) {
  const GoodElf elf(whole_);
  FlipAll("ELF header", 0, sizeof(Elf64_Ehdr));
  const uint64_t segments = elf.header().e_phoff;
  FlipAll("program headers", segments, uint64_t{elf.header().e_phnum} * sizeof(Elf64_Phdr), [&](uint64_t at) {
    const uint64_t in_entry = (at - segments) % sizeof(Elf64_Phdr);  // nobody reads p_paddr
    return in_entry >= offsetof(Elf64_Phdr, p_paddr) && in_entry < offsetof(Elf64_Phdr, p_filesz);
  });
  EXPECT_GT(refused_, 500);
}

TEST_F(LoaderDamageTest, NoByteOfTheDynamicSectionEndsTheProcess) {
  const GoodElf elf(whole_);
  const Elf64_Phdr& dynamic = elf.segment(PT_DYNAMIC);
  // An address of a function that stays inside the code is beyond what can be seen: the lowest two bytes of these.
  std::set<uint64_t> unseen;
  for (const int64_t tag : {DT_INIT, DT_FINI}) {
    unseen.insert(elf.EntryAt(tag) + offsetof(Elf64_Dyn, d_un));
    unseen.insert(elf.EntryAt(tag) + offsetof(Elf64_Dyn, d_un) + 1);
  }
  FlipAll("dynamic section", dynamic.p_offset, dynamic.p_filesz, [&](uint64_t at) { return unseen.contains(at); });
  EXPECT_GT(refused_, 500);
}

TEST_F(LoaderDamageTest, NoByteOfTheHashStringAndVersionTablesEndsTheProcess) {
  const GoodElf elf(whole_);
  const uint64_t hash = elf.Offset(elf.value(DT_GNU_HASH)), symbols = elf.Offset(elf.value(DT_SYMTAB));
  FlipAll("hash table", hash, symbols - hash);
  FlipAll("string table", elf.Offset(elf.value(DT_STRTAB)), elf.value(DT_STRSZ));
  const uint64_t versions = elf.Offset(elf.value(DT_VERSYM));
  FlipAll("versions", versions, elf.Offset(elf.value(DT_RELA)) - versions);
}

TEST_F(LoaderDamageTest, NoByteOfTheSymbolAndRelocationTablesLeadsOutOfTheFile) {
  // A value that stays inside the right segment is beyond what can be seen, so only the preflight looks at these.
  const GoodElf elf(whole_);
  const uint64_t symbols = elf.Offset(elf.value(DT_SYMTAB)), strings = elf.Offset(elf.value(DT_STRTAB));
  for (uint64_t at = symbols + sizeof(Elf64_Sym); at < strings; at += sizeof(Elf64_Sym)) {
    FlipAll("symbol", at, offsetof(Elf64_Sym, st_value));
  }
  const uint64_t relocations = elf.Offset(elf.value(DT_RELA)), bytes = elf.value(DT_RELASZ);
  for (uint64_t at = relocations; at < relocations + bytes; ++at) {
    const bool low = (at - relocations) % 8 < 2;  // bytes that move an address or index by less than the file's size
    whole_[at] ^= std::byte{0xff};
    if (!low) LoadDamaged(whole_, "relocation byte " + std::to_string(at));
    whole_[at] ^= std::byte{0xff};
  }
}

TEST_F(LoaderDamageTest, NoCutFileEndsTheProcess) {
  for (size_t n = 0; n < whole_.size(); n += n < 4096 ? 61 : 509) {
    LoadDamaged(Bytes(whole_.begin(), whole_.begin() + static_cast<ptrdiff_t>(n)), "cut to " + std::to_string(n));
  }
}

TEST_F(LoaderDamageTest, EachDamageHasItsOwnSentence) {
  constexpr uint64_t kOutside = 0x40000000;
  struct Case {
    const char* says;
    std::function<void(const GoodElf&)> damage;
  };
  const auto set = [](int64_t tag, uint64_t value) {
    return [=](const GoodElf& elf) { elf.entry(tag).d_un.d_val = value; };
  };
  const auto remove = [](int64_t tag) { return [=](const GoodElf& elf) { elf.entry(tag).d_tag = 0x6abcdef0; }; };
  const Case cases[] = {
      {"its string table lies outside its segments", set(DT_STRTAB, kOutside)},
      {"its string table lies outside its segments", set(DT_STRSZ, kOutside)},
      {"its string table has no end", set(DT_STRSZ, 3)},
      {"its string table has no size", remove(DT_STRSZ)},
      {"it has no string table",
       [&](const GoodElf& elf) {
         remove(DT_STRTAB)(elf);
         remove(DT_STRSZ)(elf);
       }},
      {"its symbol table lies outside its segments", set(DT_SYMTAB, kOutside)},
      {"it has no readable table of exported symbols", remove(DT_SYMTAB)},
      {"it has no readable table of exported symbols", set(DT_SYMENT, 16)},
      {"it has no readable table of exported symbols", remove(DT_GNU_HASH)},
      {"its hash table lies outside its segments", set(DT_GNU_HASH, kOutside)},
      {"its hash table has an impossible size",
       [](const GoodElf& elf) { elf.At<uint32_t>(elf.Offset(elf.value(DT_GNU_HASH)) + 8) = 3; }},
      {"the name of a library that it needs lies outside the string table", set(DT_NEEDED, kOutside)},
      {"its relocation table lies outside its segments", set(DT_RELA, kOutside)},
      {"its relocation table has no address", remove(DT_RELA)},
      {"its relocation table has entries of an unknown size", set(DT_RELAENT, 8)},
      {"its relocation table has entries of an unknown size", remove(DT_RELAENT)},
      {"its table of function relocations has an unknown form", set(DT_PLTREL, DT_REL)},
      {"it has fewer relative relocations than it says", set(DT_RELACOUNT, 1000)},
      {"its array of start functions lies outside its segments", set(DT_INIT_ARRAY, kOutside)},
      {"its array of end functions has no size", remove(DT_FINI_ARRAYSZ)},
      {"its start or end function lies outside its code", set(DT_INIT, kOutside)},
      {"its tables of symbol versions are incomplete", remove(DT_VERSYM)},
      {"the versions that it needs of other libraries cannot be read", set(DT_VERNEED, kOutside)},
      {"its table of symbol versions lies outside its segments", set(DT_VERSYM, kOutside)},
      {"a symbol has a version that does not exist",
       [](const GoodElf& elf) { elf.At<Elf64_Half>(elf.Offset(elf.value(DT_VERSYM)) + 2) = 0x7000; }},
      {"the name of a symbol lies outside the string table",
       [=](const GoodElf& elf) { elf.At<Elf64_Sym>(elf.Offset(elf.value(DT_SYMTAB)) + 24).st_name = kOutside; }},
      {"a symbol that it needs is marked as its own",
       [=](const GoodElf& elf) { elf.At<Elf64_Sym>(elf.Offset(elf.value(DT_SYMTAB)) + 24).st_info = 0; }},
      {"a relocation lies outside its writable segments",
       [](const GoodElf& elf) { elf.At<Elf64_Rela>(elf.Offset(elf.value(DT_RELA))).r_offset = 0x10; }},
      {"a relocation names a symbol that does not exist",
       [](const GoodElf& elf) {
         auto& info = elf.At<Elf64_Rela>(elf.Offset(elf.value(DT_JMPREL))).r_info;
         info = ELF64_R_INFO(9999, ELF64_R_TYPE(info));
       }},
      {"a relocation would change the tables that the dynamic linker reads",
       [](const GoodElf& elf) {
         elf.At<Elf64_Rela>(elf.Offset(elf.value(DT_RELA))).r_offset = elf.segment(PT_DYNAMIC).p_vaddr + 8;
       }},
      {"a function of its start or end lies outside its code",
       [=](const GoodElf& elf) {
         for (uint64_t at = elf.Offset(elf.value(DT_RELA));; at += sizeof(Elf64_Rela)) {
           auto& relocation = elf.At<Elf64_Rela>(at);
           if (relocation.r_offset != elf.value(DT_INIT_ARRAY)) continue;
           relocation.r_addend = 0;
           return;
         }
       }},
      {"a segment lies beyond the end of the file",
       [=](const GoodElf& elf) { elf.segment(PT_LOAD).p_filesz = kOutside; }},
      {"its segments overlap or are out of order",
       [](const GoodElf& elf) { elf.segment(PT_LOAD, 1).p_vaddr = elf.segment(PT_LOAD).p_vaddr; }},
      {"a segment is not aligned to pages", [](const GoodElf& elf) { elf.segment(PT_LOAD).p_vaddr += 8; }},
      {"a segment may not be read", [](const GoodElf& elf) { elf.segment(PT_LOAD, 1).p_flags = PF_X; }},
      {"a segment has an impossible size or address", [](const GoodElf& elf) { elf.segment(PT_LOAD).p_memsz = 1; }},
      {"the dynamic section lies outside its segments",
       [=](const GoodElf& elf) { elf.segment(PT_DYNAMIC).p_vaddr = kOutside; }},
      {"the dynamic section has no end", [](const GoodElf& elf) { elf.segment(PT_DYNAMIC).p_filesz = 16; }},
      {"what becomes read-only after loading lies outside its writable segments",
       [=](const GoodElf& elf) { elf.segment(PT_GNU_RELRO).p_memsz = kOutside; }},
      {"its notes or unwind tables lie outside its segments",
       [=](const GoodElf& elf) { elf.segment(PT_GNU_EH_FRAME).p_vaddr = kOutside; }},
      {"its segments and its section table disagree",
       [](const GoodElf& elf) { elf.segment(PT_LOAD, 1).p_offset += 0x1000; }},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Refusal(c.damage), std::string("the file is cut short or damaged: ") + c.says);
  }
}

TEST_F(LoaderDamageTest, ManyVersionsTimesManyRelocationsTakeNoTime) {
  constexpr uint32_t kVersions = 1'000'000, kRelocations = 400'000;
  constexpr uint64_t kPage = 4096, kAddress = 0x10000000;
  Bytes bytes = whole_;
  bytes.resize((bytes.size() + kPage - 1) / kPage * kPage);
  const uint64_t begin = bytes.size();
  const auto append = [&bytes](const auto& values) {
    const auto raw = std::as_bytes(std::span(values));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  };
  // One every four bytes: hash, number, name and link of a version are words of those before and behind it.
  std::vector<uint32_t> versions(kVersions + 3, 4);
  versions[1] = 0x7fffu << 16;  // the first one's number: no symbol has a higher
  versions.back() = 0;          // no link
  versions.resize((versions.size() + 1) / 2 * 2);
  const GoodElf good(whole_);
  std::vector<Elf64_Rela> relocations(good.value(DT_RELASZ) / sizeof(Elf64_Rela));
  std::memcpy(relocations.data(), whole_.data() + good.Offset(good.value(DT_RELA)), good.value(DT_RELASZ));
  relocations.resize(relocations.size() + kRelocations, relocations[0]);
  append(versions);
  append(relocations);

  const GoodElf elf(bytes);
  const uint64_t size = bytes.size() - begin;
  elf.segment(PT_GNU_STACK) = {PT_LOAD, PF_R, begin, kAddress, kAddress, size, size, kPage};
  elf.At<Elf64_Verneed>(elf.Offset(elf.value(DT_VERNEED))).vn_aux =
      static_cast<uint32_t>(kAddress - elf.value(DT_VERNEED));
  elf.entry(DT_RELA).d_un.d_val = kAddress + versions.size() * sizeof(uint32_t);
  elf.entry(DT_RELASZ).d_un.d_val = relocations.size() * sizeof(Elf64_Rela);

  const std::clock_t start = std::clock();
  const auto report = InspectElf(bytes);
  EXPECT_TRUE(report.ok()) << report.status();
  EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 20);  // each with each: minutes
}

}  // namespace
}  // namespace octet
