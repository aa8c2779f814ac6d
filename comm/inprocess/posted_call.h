// SPDX-License-Identifier: Apache-2.0
//
// The arguments of one member of a collective, and whether those of two members fit together.
#ifndef SHARDMESH_COMM_INPROCESS_POSTED_CALL_H_
#define SHARDMESH_COMM_INPROCESS_POSTED_CALL_H_

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shardmesh/base/reduce_op.h"
#include "shardmesh/comm/communicator.h"

namespace shardmesh::inprocess {

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
  std::string_view kind;  ///< "all_gather", ..., "barrier", "split".
  std::optional<ReduceOp> reduction;
  std::string op;

  /// "reduce_scatter sum (op "grads")".
  std::string ToString() const;
};

struct PostedCall {
  PostedCall() = default;
  PostedCall(Operands operands, std::optional<ReduceOp> reduction, std::string_view op);

  Operands operands;
  CallName name;
};

/// A member of a group in one collective.
struct Member {
  bool has_posted = false;
  bool is_detached = false;  ///< Its targets must not be written.
  PostedCall call;
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

}  // namespace shardmesh::inprocess

#endif  // SHARDMESH_COMM_INPROCESS_POSTED_CALL_H_
