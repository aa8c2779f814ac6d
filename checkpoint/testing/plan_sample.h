// SPDX-License-Identifier: Apache-2.0
//
// For tests and benchmarks of planning: the tensors of a large model on a mesh of any size, without
// ranks or values.
#ifndef SHARDMESH_CHECKPOINT_TESTING_PLAN_SAMPLE_H_
#define SHARDMESH_CHECKPOINT_TESTING_PLAN_SAMPLE_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "shardmesh/base/error.h"
#include "shardmesh/checkpoint/contents.h"
#include "shardmesh/checkpoint/internal/save_plan.h"
#include "shardmesh/mesh/mesh_shape.h"
#include "shardmesh/placement/layout.h"

namespace shardmesh::checkpoint::testing {

/// In the order of the numbers.
inline std::string NameOf(int tensor) {
  return absl::StrCat("layers.", absl::Dec(tensor, absl::kZeroPad6), ".weight");
}

/// Of a mesh of dp and tp, by turns: columns and rows, as FSDP after TP has them, rows alone with
/// replicas along tp, and replicas along both.
inline Layout LayoutOf(const MeshShape& mesh, int tensor) {
  const Dims shape = {4096, 2048};
  switch (tensor % 4) {
    case 0:
      return Layout::Make(mesh, {Shard(0), Shard(1)}, shape);
    case 1:
      return Layout::Make(mesh, {Shard(0), Shard(0)}, shape, {1, 0});
    case 2:
      return Layout::Make(mesh, {Shard(0), Replicate()}, shape);
    default:
      return Layout::Replicated(mesh, {4096});
  }
}

inline std::vector<internal::TensorToSave> TensorsOf(const MeshShape& mesh, int num_tensors,
                                                     int rank) {
  std::vector<internal::TensorToSave> tensors;
  for (int i = 0; i < num_tensors; ++i) {
    const Layout layout = LayoutOf(mesh, i);
    tensors.push_back({NameOf(i),
                       {},
                       DType::kBF16,
                       layout,
                       mesh.CoordOf(rank),
                       Box::Whole(layout.global_shape())});
  }
  return tensors;
}

/// What all ranks of the mesh save together, arranged.
inline Contents SavedBy(const MeshShape& mesh, int num_tensors) {
  Contents all;
  for (int rank = 0; rank < mesh.NumRanks(); ++rank) {
    absl::StatusOr<internal::SavePlan> planned =
        internal::PlanSave(TensorsOf(mesh, num_tensors, rank), rank,
                           static_cast<int>(mesh.NumRanks()), /*metadata=*/{});
    ThrowIfError(planned.status());
    internal::SavePlan& plan = *planned;
    const int first_file = static_cast<int>(all.files.size());
    all.files.insert(all.files.end(), plan.contents.files.begin(), plan.contents.files.end());
    for (size_t i = 0; i < plan.contents.arrays.size(); ++i) {
      StoredArray& array = plan.contents.arrays[i];
      if (rank == 0) {
        all.arrays.push_back(std::move(array));
        continue;
      }
      for (StoredPiece& piece : array.pieces) {
        piece.file += first_file;
        all.arrays[i].pieces.push_back(piece);
      }
    }
  }
  ThrowIfError(all.Arrange());
  return all;
}

}  // namespace shardmesh::checkpoint::testing

#endif  // SHARDMESH_CHECKPOINT_TESTING_PLAN_SAMPLE_H_
