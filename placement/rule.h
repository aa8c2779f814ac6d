// SPDX-License-Identifier: Apache-2.0
//
// The sharding rule of an op, written over named index factors, and the choice of layouts that it
// allows.
//
//   Rule rule = Rule::Parse("b m k, b k n -> b m n; linear 0; linear 1");
//
// Sharding factor b, m or n shards the operands and results that have it. Sharding k, which no
// result has, makes the result Partial. `linear 0`: if the first operand is Partial and the second
// replicated, the result is Partial; `linear 1` is the same for the second operand. `pass max 0 1`:
// if both are Partial(max), so is the result; `pass max min 0`: a Partial(max) becomes one of min.
//
// A rule allows these choices for each mesh axis:
//
//   | choice          | operands that have / lack it       | results that have / lack it      |
//   |-----------------|------------------------------------|----------------------------------|
//   | shard factor f  | Shard(dim of f) / Replicate        | Shard(dim of f) / Partial(reduction) |
//   | pass Partial    | Partial(op) if in the set / Replicate | Partial(op)                   |
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

/// Value type. Parse builds it from text; ops with a variable number of dims fill in the fields.
struct Rule {
  static constexpr int kNotShardable = -1;
  /// For each dim the factor that indexes it, or kNotShardable: every rank needs (or makes) the
  /// whole dim.
  using FactorOfDim = absl::InlinedVector<int, 6>;

  struct Factor {
    std::string name;
    bool whole = false;  ///< Must not be sharded (the dim of a softmax, for example).
    /// The number of shards must divide each of these (heads, reshaped dims).
    absl::InlinedVector<int64_t, 2> must_divide;
  };

  std::vector<Factor> factors;
  std::vector<FactorOfDim> inputs;
  std::vector<FactorOfDim> outputs;
  /// The reduction that combines results when a factor that they do not have is sharded.
  ReduceOp reduction = ReduceOp::kSum;
  /// Sets of operands, as bits, in which the op is jointly linear while the other operands are
  /// fixed: sums pass through it.
  std::vector<uint32_t> linear;
  /// Other reductions that pass: op(reduction `from` of the operands of the set) = reduction `to`
  /// of op(them), while the other operands are fixed, also where a rank has the identity of `from`.
  struct Passage {
    uint32_t operands;
    ReduceOp from, to;
  };
  std::vector<Passage> passages;

  /// The op only moves elements of the operands of `set`, all alike: every reduction passes.
  Rule& PassAll(uint32_t set);
  /// `op` passes through the operands of `set`.
  Rule& Pass(ReduceOp op, uint32_t set) { return Pass(op, op, set); }
  Rule& Pass(ReduceOp from, ReduceOp to, uint32_t set);

  /// "operand, operand -> result, result; clause; ...". A tensor is a list of factor names, with
  /// '.' for a dim that is not shardable. Clauses: `whole f g`, `linear 0 1` (one set per clause),
  /// `pass max 0 1`, `pass max min 0`, `pass all 0`, `reduce max`.
  /// Errors: throws Error(kInvalidArgument) with the text and the part that is wrong.
  static Rule Parse(std::string_view text);
  std::string ToString() const;
};

/// The layouts that an op uses for given layouts of its operands.
struct Propagation {
  /// The layout that each operand is moved to; the given one if it does not move.
  std::vector<Layout> inputs;
  std::vector<Layout> outputs;
  double seconds = 0;  ///< Predicted cost of the moves.
  bool has_moves = false;
};

/// The cost of turning one layout into another, in seconds. The second argument is the operand's
/// index.
using MovePrice = std::function<double(const Layout& from, const Layout& to, int operand)>;

/// A lower bound of the price of any layout with the placements `to`; cheap.
using MoveBound =
    std::function<double(const Layout& from, std::span<const Placement> to, int operand)>;

/// The cheapest choice that `rule` allows: a pure function of the arguments. Equal costs go to the
/// choice with more sharded results, then to the first in the order of the table above. An axis
/// shards a factor only if an operand that has the factor is not replicated on it, so an axis that
/// no operand uses stays unused even if sharding along it would make a move cheaper. Several axes
/// that shard the same factor split it in the order of the first operand that exactly these axes
/// split, else in mesh order. Mesh axes of size one never cause a move; results are Replicate on
/// them. The result does not depend on `bound`, which spares prices that cannot matter.
/// Errors: throws Error(kInvalidArgument) naming `op` if meshes differ, or numbers of dims do not
/// fit the rule.
Propagation Propagate(std::string_view op, const Rule& rule, std::span<const Layout> inputs,
                      std::span<const Dims> output_shapes, const MovePrice& price,
                      const MoveBound& bound = {});

/// All choices that Propagate chooses from, by cost; `seconds` of each is what its moves cost.
std::vector<Propagation> AllowedChoices(std::string_view op, const Rule& rule,
                                        std::span<const Layout> inputs,
                                        std::span<const Dims> output_shapes,
                                        const MovePrice& price);

}  // namespace shardmesh

#endif  // SHARDMESH_PLACEMENT_RULE_H_
