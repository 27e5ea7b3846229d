#include "core/loader/elf_dynamic.h"

#include <algorithm>
#include <bit>
#include <string>

#include "absl/strings/str_cat.h"

namespace octet {
namespace {

constexpr uint64_t kMostLinks = 1u << 20;  // of any list in the file

// Names in the string table that glibc reads.
constexpr int64_t kTextTags[] = {DT_NEEDED, DT_SONAME, DT_RPATH,  DT_RUNPATH, DT_AUXILIARY,
                                 DT_FILTER, DT_AUDIT,  DT_CONFIG, DT_DEPAUDIT};

struct TableRule {
  int64_t tag, size_tag;
  uint64_t entry_bytes;
  int64_t entry_tag;  // says entry_bytes once more; 0 none
  const char* name;
};
constexpr TableRule kTables[] = {
    {DT_STRTAB, DT_STRSZ, 1, 0, "string table"},
    {DT_RELA, DT_RELASZ, sizeof(Elf64_Rela), DT_RELAENT, "relocation table"},
    {DT_JMPREL, DT_PLTRELSZ, sizeof(Elf64_Rela), 0, "table of function relocations"},
    {DT_RELR, DT_RELRSZ, sizeof(Elf64_Relr), DT_RELRENT, "table of relative relocations"},
    {DT_INIT_ARRAY, DT_INIT_ARRAYSZ, sizeof(Elf64_Addr), 0, "array of start functions"},
    {DT_FINI_ARRAY, DT_FINI_ARRAYSZ, sizeof(Elf64_Addr), 0, "array of end functions"},
};

}  // namespace

absl::StatusOr<ElfDynamic> ElfDynamic::Read(const ElfImage& image) {
  ElfDynamic dynamic(image);
  using Step = absl::Status (ElfDynamic::*)();
  for (const Step step : {&ElfDynamic::ReadEntries, &ElfDynamic::CheckTables, &ElfDynamic::CheckStrings,
                          &ElfDynamic::CheckHash, &ElfDynamic::CheckGnuHash}) {
    if (absl::Status status = (dynamic.*step)(); !status.ok()) return status;
  }
  // A library that exports nothing does not say how many symbols it has, and is no backend.
  if (dynamic.symbols_ == 0) return dynamic;
  if (absl::Status status = dynamic.CheckSymbols(); !status.ok()) return status;
  if (absl::Status status = dynamic.CheckVersions(); !status.ok()) return status;
  return dynamic;
}

Elf64_Sym ElfDynamic::symbol(uint64_t index) const {
  return *image_->Get<Elf64_Sym>(Value(DT_SYMTAB) + index * sizeof(Elf64_Sym));
}

std::string_view ElfDynamic::name(const Elf64_Sym& symbol) const { return *Text(symbol.st_name); }

std::optional<ElfDynamic::Table> ElfDynamic::TableOf(int64_t tag, int64_t size_tag) const {
  if (!Has(tag) || !Has(size_tag)) return std::nullopt;
  return Table{Value(tag), Value(size_tag)};
}

// The whole table ends with a NUL (CheckStrings), so a name that begins inside ends inside.
std::optional<std::string_view> ElfDynamic::Text(uint64_t offset) const {
  if (offset >= strings_.bytes) return std::nullopt;
  return reinterpret_cast<const char*>(image_->At(strings_.begin, strings_.bytes)) + offset;
}

absl::Status ElfDynamic::ReadEntries() {
  const uint64_t begin = image_->dynamic().p_vaddr;
  const uint64_t count = image_->dynamic().p_filesz / sizeof(Elf64_Dyn);
  for (uint64_t i = 0; i < count; ++i) {
    const Elf64_Dyn entry = *image_->Get<Elf64_Dyn>(begin + i * sizeof(Elf64_Dyn));
    if (entry.d_tag == DT_NULL) {
      Keep(begin, (i + 1) * sizeof(Elf64_Dyn));
      return absl::OkStatus();
    }
    values_[entry.d_tag] = entry.d_un.d_val;
    if (entry.d_tag == DT_NEEDED) needed_offsets_.push_back(entry.d_un.d_val);
    if (std::find(std::begin(kTextTags), std::end(kTextTags), entry.d_tag) != std::end(kTextTags)) {
      texts_.push_back(entry.d_un.d_val);
    }
  }
  return ElfDamaged("the dynamic section has no end");
}

absl::Status ElfDynamic::CheckTables() {
  for (const TableRule& rule : kTables) {
    if (Has(rule.tag) != Has(rule.size_tag)) {
      return ElfDamaged(absl::StrCat("its ", rule.name, " has no ", Has(rule.tag) ? "size" : "address"));
    }
    const std::optional<Table> table = TableOf(rule.tag, rule.size_tag);
    if (!table) continue;
    const bool entries_fit =
        table->bytes % rule.entry_bytes == 0 &&
        (rule.entry_tag == 0 || (Has(rule.entry_tag) && Value(rule.entry_tag) == rule.entry_bytes));
    if (!entries_fit) return ElfDamaged(absl::StrCat("its ", rule.name, " has entries of an unknown size"));
    if (image_->At(table->begin, table->bytes) == nullptr ||
        table->begin % std::min<uint64_t>(rule.entry_bytes, alignof(Elf64_Addr)) != 0) {
      return ElfDamaged(absl::StrCat("its ", rule.name, " lies outside its segments"));
    }
    if (rule.tag == DT_INIT_ARRAY || rule.tag == DT_FINI_ARRAY) {
      functions_.push_back(*table);
    } else {
      Keep(table->begin, table->bytes);
    }
  }
  if (Has(DT_JMPREL) != Has(DT_PLTREL) || (Has(DT_PLTREL) && Value(DT_PLTREL) != DT_RELA)) {
    return ElfDamaged("its table of function relocations has an unknown form");
  }
  if (!Has(DT_STRTAB)) return ElfDamaged("it has no string table");
  if (!Has(DT_SYMTAB) || (Has(DT_SYMENT) && Value(DT_SYMENT) != sizeof(Elf64_Sym))) {
    return ElfDamaged("it has no readable table of exported symbols");
  }
  for (const int64_t tag : {DT_INIT, DT_FINI}) {
    if (Has(tag) && !image_->IsCode(Value(tag))) return ElfDamaged("its start or end function lies outside its code");
  }
  if (Has(DT_PLTGOT) && !image_->IsWritable(Value(DT_PLTGOT), 1)) {
    return ElfDamaged("its table of functions of other libraries lies outside its writable segments");
  }
  return absl::OkStatus();
}

absl::Status ElfDynamic::CheckStrings() {
  strings_ = *TableOf(DT_STRTAB, DT_STRSZ);
  if (strings_.bytes == 0 || *image_->Get<char>(strings_.begin + strings_.bytes - 1) != 0) {
    return ElfDamaged("its string table has no end");
  }
  for (const uint64_t offset : texts_) {
    if (!Text(offset)) return ElfDamaged("the name of a library that it needs lies outside the string table");
  }
  for (const uint64_t offset : needed_offsets_) needed_.push_back(*Text(offset));
  return absl::OkStatus();
}

// System V: word 0 the buckets, 1 the symbols, then buckets and links, all of them numbers of symbols; 0 ends a chain.
absl::Status ElfDynamic::CheckHash() {
  if (!Has(DT_HASH)) return absl::OkStatus();
  const uint64_t at = Value(DT_HASH);
  const auto buckets = image_->Get<uint32_t>(at), symbols = image_->Get<uint32_t>(at + 4);
  if (!buckets || !symbols) return ElfDamaged("its hash table lies outside its segments");
  const uint64_t bytes = (2 + uint64_t{*buckets} + *symbols) * 4;
  if (image_->At(at, bytes) == nullptr) return ElfDamaged("its hash table lies outside its segments");
  const auto word = [&](uint64_t i) { return *image_->Get<uint32_t>(at + i * 4); };
  uint64_t links = 0;  // each symbol stands in one chain
  for (uint64_t b = 0; b < *buckets; ++b) {
    for (uint64_t i = word(2 + b); i != 0; i = word(2 + *buckets + i)) {
      if (i >= *symbols || ++links > *symbols) return ElfDamaged("its hash table names symbols that do not exist");
    }
  }
  symbols_ = *symbols;
  Keep(at, bytes);
  return absl::OkStatus();
}

absl::Status ElfDynamic::CheckGnuHash() {
  if (!Has(DT_GNU_HASH)) {
    return Has(DT_HASH) ? absl::OkStatus() : ElfDamaged("it has no readable table of exported symbols");
  }
  struct Header {
    uint32_t buckets, first, bloom_words, bloom_shift;
  };
  const uint64_t at = Value(DT_GNU_HASH);
  const auto header = image_->Get<Header>(at);
  if (!header) return ElfDamaged("its hash table lies outside its segments");
  if (!std::has_single_bit(header->bloom_words) || header->bloom_shift >= 32) {
    return ElfDamaged("its hash table has an impossible size");
  }
  const uint64_t buckets = at + sizeof(Header) + uint64_t{header->bloom_words} * 8;
  const uint64_t chains = buckets + uint64_t{header->buckets} * 4;
  if (image_->At(at, chains - at) == nullptr) return ElfDamaged("its hash table lies outside its segments");
  uint64_t end = 0;
  for (uint64_t b = 0; b < header->buckets; ++b) {
    uint64_t i = *image_->Get<uint32_t>(buckets + b * 4);
    if (i == 0) continue;
    if (i < header->first) return ElfDamaged("its hash table names symbols that do not exist");
    for (;; ++i) {  // a chain ends with an odd value
      const auto link = image_->Get<uint32_t>(chains + (i - header->first) * 4);
      if (!link || i - header->first > kMostLinks) return ElfDamaged("a chain of its hash table has no end");
      if ((*link & 1) != 0) break;
    }
    end = std::max(end, i + 1);
  }
  symbols_ = std::max(symbols_, end);
  Keep(at, chains - at + (end > 0 ? end - header->first : 0) * 4);
  return absl::OkStatus();
}

absl::Status ElfDynamic::CheckSymbols() const {
  if (symbols_ > kMostLinks || image_->At(Value(DT_SYMTAB), symbols_ * sizeof(Elf64_Sym)) == nullptr) {
    return ElfDamaged("its symbol table lies outside its segments");
  }
  for (uint64_t i = 1; i < symbols_; ++i) {
    const Elf64_Sym s = symbol(i);
    if (!Text(s.st_name)) return ElfDamaged("the name of a symbol lies outside the string table");
    const unsigned type = ELF64_ST_TYPE(s.st_info);
    const bool defined = s.st_shndx != SHN_UNDEF;
    if (defined && (type == STT_FUNC || type == STT_GNU_IFUNC) && !image_->IsCode(s.st_value)) {
      return ElfDamaged("a function that it exports lies outside its code");
    }
    const bool own = ELF64_ST_BIND(s.st_info) == STB_LOCAL || ELF64_ST_VISIBILITY(s.st_other) != STV_DEFAULT;
    if (!defined && own) {
      return ElfDamaged("a symbol that it needs is marked as its own");
    }
  }
  return absl::OkStatus();
}

absl::Status ElfDynamic::CheckVersions() {
  const bool any = Has(DT_VERNEED) || Has(DT_VERDEF);
  if (any != Has(DT_VERSYM)) return ElfDamaged("its tables of symbol versions are incomplete");
  if (!any) return absl::OkStatus();
  uint32_t highest = 1;  // 0 and 1 are "local" and "global"
  if (absl::Status status = ReadVersionNeeds(&highest); !status.ok()) return status;
  if (absl::Status status = ReadVersionDefinitions(&highest); !status.ok()) return status;
  const uint64_t at = Value(DT_VERSYM);
  if (image_->At(at, symbols_ * sizeof(Elf64_Half)) == nullptr) {
    return ElfDamaged("its table of symbol versions lies outside its segments");
  }
  for (uint64_t i = 0; i < symbols_; ++i) {
    if ((*image_->Get<Elf64_Half>(at + i * sizeof(Elf64_Half)) & 0x7fff) > highest) {
      return ElfDamaged("a symbol has a version that does not exist");
    }
  }
  Keep(at, symbols_ * sizeof(Elf64_Half));
  return absl::OkStatus();
}

absl::Status ElfDynamic::ReadVersionNeeds(uint32_t* highest) {
  if (!Has(DT_VERNEED)) return absl::OkStatus();
  const absl::Status damaged = ElfDamaged("the versions that it needs of other libraries cannot be read");
  uint64_t links = 0;
  for (uint64_t at = Value(DT_VERNEED);;) {
    const auto need = image_->Get<Elf64_Verneed>(at);
    const auto library = need ? Text(need->vn_file) : std::nullopt;
    if (!library || ++links > kMostLinks) return damaged;
    if (std::find(needed_.begin(), needed_.end(), *library) == needed_.end()) {
      return ElfDamaged("it needs versions of a library that it does not name");
    }
    Keep(at, sizeof(Elf64_Verneed));
    for (uint64_t aux_at = at + need->vn_aux;;) {
      const auto aux = image_->Get<Elf64_Vernaux>(aux_at);
      if (!aux || !Text(aux->vna_name) || ++links > kMostLinks) return damaged;
      *highest = std::max<uint32_t>(*highest, aux->vna_other & 0x7fff);
      Keep(aux_at, sizeof(Elf64_Vernaux));
      if (aux->vna_next == 0) break;
      aux_at += aux->vna_next;
    }
    if (need->vn_next == 0) return absl::OkStatus();
    at += need->vn_next;
  }
}

absl::Status ElfDynamic::ReadVersionDefinitions(uint32_t* highest) {
  if (!Has(DT_VERDEF)) return absl::OkStatus();
  uint64_t links = 0;
  for (uint64_t at = Value(DT_VERDEF);;) {
    const auto definition = image_->Get<Elf64_Verdef>(at);
    const auto aux = definition ? image_->Get<Elf64_Verdaux>(at + definition->vd_aux) : std::nullopt;
    if (!aux || !Text(aux->vda_name) || ++links > kMostLinks) {
      return ElfDamaged("the versions that it defines cannot be read");
    }
    *highest = std::max<uint32_t>(*highest, definition->vd_ndx & 0x7fff);
    Keep(at, sizeof(Elf64_Verdef));
    if (definition->vd_next == 0) return absl::OkStatus();
    at += definition->vd_next;
  }
}

}  // namespace octet
