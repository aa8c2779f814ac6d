// SPDX-License-Identifier: Apache-2.0
//
// What ops know of the Checkpoint that is open.
#ifndef SHARDMESH_DTENSOR_INTERNAL_CHECKPOINT_FRAME_H_
#define SHARDMESH_DTENSOR_INTERNAL_CHECKPOINT_FRAME_H_

#include <span>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/dtensor/internal/dtensor_impl.h"
#include "shardmesh/dtensor/runtime.h"

namespace shardmesh {
struct Op;
}

namespace shardmesh::internal {

/// One call of Checkpoint, while its function runs. Belongs to a rank.
class CheckpointFrame {
 public:
  virtual ~CheckpointFrame() = default;
  /// An op begins. Returns whether it records: in a recomputation what it did in forward, whatever
  /// requires a gradient by now.
  virtual bool NoteOp(const Op& op, std::span<const DTensor* const> operands, bool records) = 0;
  /// Whether the policy keeps the results of this op.
  virtual bool Keeps(std::string_view op) const = 0;
};

/// Whether the results of `op`, of which `x` is an operand, are to be computed by Kept(). Throws as
/// `op` would where x may not be used here: a runtime is of one rank, and gone when its ranks are.
inline bool IsKept(const char* op, const DTensor& x) {
  CheckUsable(op, x);
  const CheckpointFrame* const frame = x.impl()->runtime->checkpoint;
  return frame != nullptr && frame->Keeps(op);
}

/// fn() by KeepInCheckpoint.
DTensor Kept(const DTensor& x, absl::FunctionRef<DTensor()> fn);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_CHECKPOINT_FRAME_H_
