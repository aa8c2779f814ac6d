// SPDX-License-Identifier: Apache-2.0
//
// The arguments of one member of a collective, and whether those of two members fit together.
#ifndef SHARDMESH_COMM_INTERNAL_POSTED_CALL_H_
#define SHARDMESH_COMM_INTERNAL_POSTED_CALL_H_

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shardmesh/base/reduce_op.h"
#include "shardmesh/comm/communicator.h"

namespace shardmesh::internal {

struct SplitRequest {
  int color;
  int key;
  std::string name;
};

struct BarrierRequest {};

struct BroadcastRequest {
  std::vector<Tensor> tensors;
  int root;
};

/// The alternative says which kind of collective it is.
using Operands = std::variant<BarrierRequest, std::vector<AllGatherItem>,
                              std::vector<ReduceScatterItem>, std::vector<AllReduceItem>,
                              std::vector<AllToAllItem>, BroadcastRequest, SplitRequest>;

/// Its name in messages.
struct CallName {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::optional<ReduceOp> reduction;
  std::string op;

  /// "reduce_scatter sum (op "grads")".
  std::string ToString() const;
};

/// " of layers.3" in "fsdp_gather of layers.3".
std::string_view OwnerIn(std::string_view op);

struct PostedCall {
  PostedCall() = default;
  PostedCall(Operands operands, std::optional<ReduceOp> reduction, std::string_view op);

  Operands operands;
  CallName name;
};

/// How two members' calls of one collective differ, as "f32[3] against f32[4] (item 2,
/// targets[1])", or "" if they agree. Compares dtypes, all shapes, reduction, root and
/// what `op` has from " of " on.
/// Arguments that may differ between members but must fit together (shapes of an all-to-all,
/// requests of a split) are checked when all have posted.
std::string Difference(const PostedCall& a, const PostedCall& b);

/// As Difference, between what member i of an all-to-all sends to member j and what j expects.
std::string PairDifference(const PostedCall& a, int i, const PostedCall& b, int j);

/// Makes `call` of member `rank` independent of the caller's memory: sources that peers read are
/// copied, targets keep only their shapes. Throws if there is no memory.
void Detach(ExecutionContext& context, int rank, PostedCall& call);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_COMM_INTERNAL_POSTED_CALL_H_
