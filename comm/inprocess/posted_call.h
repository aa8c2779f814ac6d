// SPDX-License-Identifier: Apache-2.0
//
// What one member brings to a collective, and whether what two members bring fits together.
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

/// How messages call it.
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
  bool is_detached = false;  ///< Its targets are not to be written.
  PostedCall call;
};

/// Why two members cannot have meant the same collective, as "f32[3] against f32[4] (item 2,
/// targets[1])", or "" if they can. Dtypes, all shapes, reduction and root count; `op` does not.
/// What members may bring differently and still must fit (shapes of an all-to-all, requests of a
/// split) is checked when all have posted.
std::string Difference(const PostedCall& a, const PostedCall& b);

/// As Difference, for what member i of an all-to-all sends and member j receives.
std::string PairDifference(const PostedCall& a, int i, const PostedCall& b, int j);

/// Cuts `call` of member `rank` loose from the caller's memory: what peers read of it is copied,
/// what they would write keeps its shape alone. Throws if there is no memory.
void Detach(ExecutionContext& context, int rank, PostedCall& call);

}  // namespace shardmesh::inprocess

#endif  // SHARDMESH_COMM_INPROCESS_POSTED_CALL_H_
