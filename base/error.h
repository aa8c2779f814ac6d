// SPDX-License-Identifier: Apache-2.0
//
// The error that tensor code throws, and its bridge to absl::Status.
//
// What a caller gets wrong in tensor code (shapes, layouts, meshes) throws `Error`, so that
// expressions stay readable. What depends on the outside world (files, environment, peers) returns
// `absl::Status`. `Catch` turns the first into the second at a boundary:
//
//   absl::Status status = Catch([&] { y = MatMul(a, b); });
#ifndef SHARDMESH_BASE_ERROR_H_
#define SHARDMESH_BASE_ERROR_H_

#include <exception>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace shardmesh {

/// An exception that carries an absl::StatusCode and a message.
class Error : public std::exception {
 public:
  /// kOk becomes kUnknown: an error stays one, with its message, as a Status too.
  Error(absl::StatusCode code, std::string message)
      : code_(code == absl::StatusCode::kOk ? absl::StatusCode::kUnknown : code),
        message_(std::move(message)) {}

  absl::StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }
  absl::Status ToStatus() const { return absl::Status(code_, message_); }

 private:
  absl::StatusCode code_;
  std::string message_;
};

/// Throws Error(code, StrCat(parts...)).
template <typename... Parts>
[[noreturn]] void Throw(absl::StatusCode code, const Parts&... parts) {
  throw Error(code, absl::StrCat(parts...));
}

/// Throws Error(kInvalidArgument, StrCat(parts...)): the caller passed something that does not fit.
template <typename... Parts>
[[noreturn]] void ThrowInvalid(const Parts&... parts) {
  throw Error(absl::StatusCode::kInvalidArgument, absl::StrCat(parts...));
}

/// Throws the Error that corresponds to a non-OK `status`; does nothing if it is OK.
void ThrowIfError(const absl::Status& status);

/// The Status of an exception: an Error keeps its code, std::bad_alloc becomes kResourceExhausted,
/// anything else kInternal. Never OK.
absl::Status StatusOf(std::exception_ptr exception);

/// Runs `fn` and returns what it threw as a Status, or OK.
absl::Status Catch(absl::FunctionRef<void()> fn);

}  // namespace shardmesh

#endif  // SHARDMESH_BASE_ERROR_H_
