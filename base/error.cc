// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/base/error.h"

#include <new>

namespace shardmesh {

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw Error(status.code(), std::string(status.message()));
}

absl::Status StatusOf(std::exception_ptr exception) {
  if (exception == nullptr) return absl::InternalError("an error without an exception");
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error.ToStatus();
  } catch (const std::bad_alloc& error) {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory: ", error.what()));
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  } catch (...) {
    return absl::InternalError("an exception that is not a std::exception");
  }
}

absl::Status Catch(absl::FunctionRef<void()> fn) {
  try {
    fn();
    return absl::OkStatus();
  } catch (...) {
    return StatusOf(std::current_exception());
  }
}

}  // namespace shardmesh
