// SPDX-License-Identifier: Apache-2.0
//
// Early return for functions that return absl::Status or absl::StatusOr.
//
//   SHARDMESH_RETURN_IF_ERROR(Open(path));
//   SHARDMESH_ASSIGN_OR_RETURN(File file, File::Open(path));
#ifndef SHARDMESH_BASE_STATUS_MACROS_H_
#define SHARDMESH_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define SHARDMESH_RETURN_IF_ERROR(expression)                                   \
  do {                                                                          \
    if (absl::Status shardmesh_status = (expression); !shardmesh_status.ok()) { \
      return shardmesh_status;                                                  \
    }                                                                           \
  } while (false)

#define SHARDMESH_CONCAT_INNER_(a, b) a##b
#define SHARDMESH_CONCAT_(a, b) SHARDMESH_CONCAT_INNER_(a, b)

#define SHARDMESH_ASSIGN_OR_RETURN(declaration, expression)             \
  auto SHARDMESH_CONCAT_(shardmesh_statusor_, __LINE__) = (expression); \
  if (!SHARDMESH_CONCAT_(shardmesh_statusor_, __LINE__).ok()) {         \
    return SHARDMESH_CONCAT_(shardmesh_statusor_, __LINE__).status();   \
  }                                                                     \
  declaration = *std::move(SHARDMESH_CONCAT_(shardmesh_statusor_, __LINE__))

#endif  // SHARDMESH_BASE_STATUS_MACROS_H_
