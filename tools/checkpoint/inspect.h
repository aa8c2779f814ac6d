// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_TOOLS_CHECKPOINT_INSPECT_H_
#define SHARDMESH_TOOLS_CHECKPOINT_INSPECT_H_

#include <string>

#include "absl/status/status.h"
#include "shardmesh/tools/checkpoint/console.h"

namespace shardmesh::checkpoint::tool {

struct InspectOptions {
  std::string names = {};  ///< NameFilter of tensors and plain values.
  bool pieces = false;     ///< Show each box, and where it is.
};

/// Prints what a checkpoint has: names, dtypes, shapes, layouts, bytes, plain values. Reads no
/// tensor. Errors: those of Locate and Contents::Open.
absl::Status Inspect(const std::string& path, const InspectOptions& options, Console& console);

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_INSPECT_H_
