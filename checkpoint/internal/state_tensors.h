// SPDX-License-Identifier: Apache-2.0
//
// What saving and loading see of a StateDict: the tensors in it, also those within lists.
#ifndef SHARDMESH_CHECKPOINT_INTERNAL_STATE_TENSORS_H_
#define SHARDMESH_CHECKPOINT_INTERNAL_STATE_TENSORS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "shardmesh/comm/communicator.h"
#include "shardmesh/state/state_dict.h"

namespace shardmesh::checkpoint::internal {

struct StateTensor {
  size_t entry = 0;  ///< Index in the state.
  std::string name;  ///< "list.3" of one within a list.
  std::vector<std::string> aliases;
  DeviceMesh mesh;  ///< None of a plain tensor.
  Layout layout;    ///< None of a plain tensor.
  Tensor local;     ///< Contiguous; this rank's box.
  Box local_box;    ///< Of the whole tensor.
  Box region;       ///< What of the whole tensor is meant.
  DType dtype = DType::kF32;
};

/// Those that have values, in order.
/// Errors: kInvalidArgument naming one that is Partial, no tensor, on another device, or whose
///         values are not in its dtype.
absl::StatusOr<std::vector<StateTensor>> TensorsOf(const StateDict& state);

/// The plain values, with an empty Tensor in the place of each tensor within a list.
std::vector<std::pair<std::string, StateValue>> ValuesOf(const StateDict& state);

/// All ranks of the mesh with the most ranks in the state; null if there is none.
Communicator* RanksOf(const StateDict& state);

}  // namespace shardmesh::checkpoint::internal

#endif  // SHARDMESH_CHECKPOINT_INTERNAL_STATE_TENSORS_H_
