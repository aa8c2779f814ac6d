// SPDX-License-Identifier: Apache-2.0
#ifndef SHARDMESH_TOOLS_CHECKPOINT_DIFF_H_
#define SHARDMESH_TOOLS_CHECKPOINT_DIFF_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "shardmesh/tools/checkpoint/console.h"
#include "shardmesh/tools/checkpoint/element_difference.h"

namespace shardmesh::checkpoint::tool {

struct DiffOptions {
  std::string names = {};         ///< NameFilter.
  std::string strip_prefix = {};  ///< Taken from names of A that begin with it.
  Tolerance tolerance = {};       ///< Of tensors; plain values must be the same.
  bool ignore_dtype = false;      ///< Another dtype alone is no difference.
  bool all = false;               ///< Print tensors without a difference as well.
  bool progress = false;
  int64_t buffer_bytes = 4 << 20;  ///< Of each of two tensors, at most twice.
};

/// Prints in what two checkpoints of any formats and layouts differ: names that only one has,
/// shapes, dtypes, elements, plain values. Tensors are compared by elements whatever boxes they are
/// stored in, also if their dtypes differ. As in Load, a tensor is found under any of its names;
/// plain values are compared if both formats have such.
///
/// Returns the number of differences. Errors: those of Locate, Contents::Open and of reading;
/// kInvalidArgument for `bits` with a tolerance; kUnimplemented naming tensors in boxes of a dtype
/// that Shardmesh does not compute with.
absl::StatusOr<int64_t> Diff(const std::string& path_a, const std::string& path_b,
                             const DiffOptions& options, Console& console);

}  // namespace shardmesh::checkpoint::tool

#endif  // SHARDMESH_TOOLS_CHECKPOINT_DIFF_H_
