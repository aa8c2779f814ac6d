// SPDX-License-Identifier: Apache-2.0
//
// What one rank writes of a state, and where in its file. Local: the layouts say it all.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_SAVE_PLAN_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_SAVE_PLAN_H_

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/safetensors_writer.h"
#include "shardmesh/mesh/mesh_shape.h"
#include "shardmesh/placement/box.h"
#include "shardmesh/placement/layout.h"
#include "shardmesh/tensor/dtype.h"

namespace shardmesh::checkpoint::internal {

struct TensorToSave {
  std::string name;
  std::vector<std::string> aliases;
  DType dtype = DType::kF32;
  Layout layout;  ///< None of a plain tensor, which the first rank writes.
  Coord coord;    ///< Of this rank in the layout's mesh.
  Box region;     ///< What of the whole tensor is saved.
};

struct SavePlan {
  Contents contents;     ///< All arrays, with this rank's pieces, and its file. No values.
  SafetensorsPlan file;  ///< Of nothing if the rank writes nothing.
  /// The position of a tensor that the rank writes, and the box of it; in the order of file.begin.
  std::vector<std::pair<size_t, Box>> boxes;
};

/// Cost:   per tensor the logarithm of the number of its replicas, and once for all their number.
/// Errors: kInvalidArgument naming a name or text of `metadata` that is not UTF-8.
absl::StatusOr<SavePlan> PlanSave(std::span<const TensorToSave> tensors, int rank, int num_ranks,
                                  std::map<std::string, std::string> metadata);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_SAVE_PLAN_H_
