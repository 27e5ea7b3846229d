// Success, or an error code with one sentence for the person who asked: the C++ form of octet_code and octet_error.
#ifndef OCTET_STATUS_H_
#define OCTET_STATUS_H_

#include <optional>
#include <string>
#include <utility>

#include "octet/abi.h"

namespace octet {
inline namespace v1 {

enum class Code : octet_code {
  kOk = OCTET_OK,
  kCancelled = OCTET_CANCELLED,
  kUnknown = OCTET_UNKNOWN,
  kInvalidArgument = OCTET_INVALID_ARGUMENT,
  kNotFound = OCTET_NOT_FOUND,
  kResourceExhausted = OCTET_RESOURCE_EXHAUSTED,
  kFailedPrecondition = OCTET_FAILED_PRECONDITION,
  kOutOfRange = OCTET_OUT_OF_RANGE,
  kUnimplemented = OCTET_UNIMPLEMENTED,
  kInternal = OCTET_INTERNAL,
  kUnavailable = OCTET_UNAVAILABLE,
  kDataLoss = OCTET_DATA_LOSS,
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
inline Status NotFound(std::string m) { return {Code::kNotFound, std::move(m)}; }
inline Status ResourceExhausted(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }
inline Status FailedPrecondition(std::string m) { return {Code::kFailedPrecondition, std::move(m)}; }
inline Status Unimplemented(std::string m) { return {Code::kUnimplemented, std::move(m)}; }
inline Status Internal(std::string m) { return {Code::kInternal, std::move(m)}; }
inline Status Unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
inline Status DataLoss(std::string m) { return {Code::kDataLoss, std::move(m)}; }

// A value or the reason why there is none. value() and operator* need ok().
template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor): as absl::StatusOr
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) status_ = Internal("a StatusOr was made from an OK status without a value");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

#define OCTET_RETURN_IF_ERROR(expr)                                             \
  do {                                                                          \
    if (auto octet_status_ = (expr); !octet_status_.ok()) return octet_status_; \
  } while (false)

}  // namespace v1
}  // namespace octet

#endif  // OCTET_STATUS_H_
