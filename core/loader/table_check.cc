#include "core/loader/table_check.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "octet/convert.h"

namespace octet {
namespace {

absl::Status Missing(const char* what) {
  return absl::FailedPreconditionError(
      absl::StrCat("its table has no ", what, ", which version 1 of the backend ABI requires"));
}

// A table of functions of which all first-release entries must be set.
template <typename Table>
absl::Status CheckPart(const char* name, const Table* part) {
  if (part == nullptr) return Missing(name);
  if (part->struct_size < convert::kFirstSize<Table>) {
    return absl::FailedPreconditionError(absl::StrCat("its ", name, " table has ", part->struct_size,
                                                      " bytes; version 1 of the backend ABI has ",
                                                      convert::kFirstSize<Table>));
  }
  return absl::OkStatus();
}

#define REQUIRE_ENTRY(part, entry)                                                  \
  do {                                                                              \
    if (table.part->entry == nullptr) return Missing("function " #part "." #entry); \
  } while (false)

#define REQUIRE_PART(part)                                                               \
  do {                                                                                   \
    if (absl::Status status = CheckPart(#part, table.part); !status.ok()) return status; \
  } while (false)

}  // namespace

std::string AbiText(const octet_backend_v1& table) {
  return table.abi_draft != 0 ? absl::StrCat("0.", table.abi_draft)
                              : absl::StrCat(OCTET_ABI_MAJOR, ".", table.abi_minor);
}

absl::Status CheckTable(const octet_backend_v1& table) {
  constexpr size_t kIdentity = offsetof(octet_backend_v1, name);
  const size_t first = convert::kFirstSize<octet_backend_v1>;
  if (table.struct_size < kIdentity || (table.abi_draft == OCTET_ABI_DRAFT && table.struct_size < first)) {
    return absl::FailedPreconditionError(
        absl::StrCat("its table has ", table.struct_size, " bytes; version 1 of the backend ABI has ", first));
  }
  if (table.abi_draft != OCTET_ABI_DRAFT) {
    octet_backend_v1 ours{};
    ours.abi_minor = OCTET_ABI_MINOR;
    ours.abi_draft = OCTET_ABI_DRAFT;
    return absl::FailedPreconditionError(
        absl::StrCat("built for backend ABI ", AbiText(table), "; this program has ", AbiText(ours),
                     ", and drafts do not mix: rebuild the backend with this version"));
  }
  if (table.name == nullptr || table.vendor == nullptr || table.version == nullptr || table.build == nullptr) {
    return Missing("name, vendor, version or build text");
  }
  REQUIRE_PART(device);
  REQUIRE_ENTRY(device, count);
  REQUIRE_ENTRY(device, describe);
  REQUIRE_ENTRY(device, open);
  REQUIRE_ENTRY(device, close);
  REQUIRE_PART(memory);
  REQUIRE_ENTRY(memory, info);
  REQUIRE_ENTRY(memory, alloc);
  REQUIRE_ENTRY(memory, free);
  REQUIRE_ENTRY(memory, map);
  REQUIRE_ENTRY(memory, write);
  REQUIRE_ENTRY(memory, read);
  REQUIRE_ENTRY(memory, copy);
  REQUIRE_ENTRY(memory, fill);
  REQUIRE_PART(stream);
  REQUIRE_ENTRY(stream, create);
  REQUIRE_ENTRY(stream, destroy);
  REQUIRE_ENTRY(stream, sync);
  REQUIRE_ENTRY(stream, create_event);
  REQUIRE_ENTRY(stream, destroy_event);
  REQUIRE_ENTRY(stream, record);
  REQUIRE_ENTRY(stream, wait);
  REQUIRE_ENTRY(stream, event_sync);
  REQUIRE_PART(quant);
  REQUIRE_ENTRY(quant, choose_layout);
  REQUIRE_ENTRY(quant, supports);
  REQUIRE_ENTRY(quant, append);
  REQUIRE_ENTRY(quant, gather);
  REQUIRE_ENTRY(quant, copy_pages);
  REQUIRE_ENTRY(quant, export_pages);
  REQUIRE_ENTRY(quant, import_pages);
  REQUIRE_PART(attention);
  REQUIRE_ENTRY(attention, supports);
  REQUIRE_ENTRY(attention, make_plan);
  REQUIRE_ENTRY(attention, refill);
  REQUIRE_ENTRY(attention, run);
  REQUIRE_ENTRY(attention, release_plan);
  if (table.dense != nullptr) {
    REQUIRE_PART(dense);
    REQUIRE_ENTRY(dense, supports_weight);
    REQUIRE_ENTRY(dense, prepare_weight);
    REQUIRE_ENTRY(dense, release_weight);
    REQUIRE_ENTRY(dense, linear);
    REQUIRE_ENTRY(dense, embed);
    REQUIRE_ENTRY(dense, norm);
    REQUIRE_ENTRY(dense, rope);
    REQUIRE_ENTRY(dense, activation);
    REQUIRE_ENTRY(dense, add);
    REQUIRE_ENTRY(dense, gather_rows);
  }
  if (table.fused != nullptr) {  // each entry is optional
    REQUIRE_PART(fused);
    REQUIRE_ENTRY(fused, supports);
  }
  if (table.graph != nullptr) {
    REQUIRE_PART(graph);
    REQUIRE_ENTRY(graph, begin);
    REQUIRE_ENTRY(graph, end);
    REQUIRE_ENTRY(graph, launch);
    REQUIRE_ENTRY(graph, release);
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceInfo> DescribeDevice(const octet_backend_v1& table, uint32_t index) {
  octet_device_info c = convert::Sized<octet_device_info>();
  octet_error error = convert::Sized<octet_error>();
  const octet_code code = table.device->describe(index, &c, &error);
  if (code != OCTET_OK) return ToAbsl(convert::ReadStatus(code, error));
  if (!std::has_single_bit(c.preferred_alignment) || c.lanes == 0) {
    return absl::InternalError(absl::StrCat("device ", index, " is described with a preferred alignment of ",
                                            c.preferred_alignment, " and ", c.lanes,
                                            " lanes; the first must be a power of two, the second 1 or more"));
  }
  DeviceInfo info;
  info.kind = c.kind == OCTET_DEVICE_CPU || c.kind == OCTET_DEVICE_GPU ? static_cast<DeviceInfo::Kind>(c.kind)
                                                                       : DeviceInfo::Kind::kOther;
  info.name = convert::ReadText(c.name);
  info.arch = convert::ReadText(c.arch);
  info.memory_bytes = c.memory_bytes;
  info.preferred_alignment = c.preferred_alignment;
  info.lanes = c.lanes;
  return info;
}

}  // namespace octet
