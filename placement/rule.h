// SPDX-License-Identifier: Apache-2.0
//
// The sharding rule of an op, written over named index factors, and the choice of layouts that it
// allows.
//
//   Rule rule = Rule::Parse("b m k, b k n -> b m n; linear 0; linear 1");
//
// says: sharding factor b, m or n shards the operands and results that have it; sharding k, which
// no result has, makes the result Partial; a Partial first (or second) operand with the other one
// replicated gives a Partial result.
//
// Per mesh axis a rule allows these choices:
//
//   | choice          | operands that have / lack it       | results that have / lack it      |
//   |-----------------|------------------------------------|----------------------------------|
//   | shard factor f  | Shard(dim of f) / Replicate        | Shard(dim of f) / Partial(reduction) |
//   | pass Partial    | Partial(sum) if in the set / Replicate | Partial(sum)                 |
//   | replicate       | Replicate                          | Replicate                        |
#ifndef SHARDMESH_PLACEMENT_RULE_H_
#define SHARDMESH_PLACEMENT_RULE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "shardmesh/base/dims.h"
#include "shardmesh/base/reduce_op.h"
#include "shardmesh/placement/layout.h"

namespace shardmesh {

/// Value type; build it with Parse, or field by field where ranks vary.
struct Rule {
  static constexpr int kNotShardable = -1;
  /// For each dim the factor that indexes it, or kNotShardable: every rank needs (or makes) the whole
  /// dim.
  using FactorOfDim = absl::InlinedVector<int, 6>;

  struct Factor {
    std::string name;
    bool whole = false;  ///< May not be sharded (softmax over it, say).
    /// Sharding is allowed only where the number of shards divides each of these (heads, reshaped
    /// dims).
    absl::InlinedVector<int64_t, 2> must_divide;
  };

  std::vector<Factor> factors;
  std::vector<FactorOfDim> inputs;
  std::vector<FactorOfDim> outputs;
  /// How results combine when a factor that they lack is sharded.
  ReduceOp reduction = ReduceOp::kSum;
  /// Bit sets of operands in which the op is jointly linear (the other operands fixed).
  std::vector<uint32_t> linear;

  /// "operand, operand -> result, result; clause; ...". A tensor is a list of factor names and '.'
  /// for a whole dim; clauses: `whole f g`, `linear 0 1` (one set a clause), `reduce max`. Errors:
  /// throws Error(kInvalidArgument) with the text and what is wrong in it.
  static Rule Parse(std::string_view text);
  std::string ToString() const;
};

/// What an op does under given operand layouts.
struct Propagation {
  /// What each operand must be moved to; equal to the given layout where it stays.
  std::vector<Layout> inputs;
  std::vector<Layout> outputs;
  double seconds = 0;  ///< Predicted cost of the moves.
  bool has_moves = false;
};

/// Price of turning one layout into another, in seconds; the second argument is the operand's
/// index.
using MovePrice = std::function<double(const Layout& from, const Layout& to, int operand)>;

/// The cheapest choice that `rule` allows, a pure function of its arguments. Among choices of one
/// price the one with more sharded results wins, then the first in the order of the table above.
/// An axis shards a factor only if some operand that has the factor is not replicated there: an
/// axis that no operand uses stays unused, even where cutting along it would make a move cheaper.
/// Where several axes shard one factor, they split in the order in which the first operand that is
/// split by just these axes is split already, else in mesh order. Mesh axes of size one never cost
/// a move; results replicate there.
/// Errors: throws Error(kInvalidArgument) naming `op` if meshes differ, or numbers of dims do not
/// fit the rule.
Propagation Propagate(std::string_view op, const Rule& rule, std::span<const Layout> inputs,
                      std::span<const Dims> output_shapes, const MovePrice& price);

}  // namespace shardmesh

#endif  // SHARDMESH_PLACEMENT_RULE_H_
