// SPDX-License-Identifier: Apache-2.0
//
// The planner's lower bound: cheapest plans in a space of coarse states, which forgets where splits
// are that are neither as in the source nor as in the target.
//
//   CoarseSearch coarse;
//   coarse.Start(source, target, costs);
//   double least = coarse.Run();                  // No plan is cheaper,
//   coarse.Find(coarse.Of(parts, state))->rest;   // nor is what remains from a state on the way.
//
// With 5 values per axis there are few coarse states (625 for four axes), they have no split
// orders, and the cheapest coarse plan nearly always is one that exists.
#ifndef SHARDMESH_PLACEMENT_INTERNAL_COARSE_SEARCH_H_
#define SHARDMESH_PLACEMENT_INTERNAL_COARSE_SEARCH_H_

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "shardmesh/placement/internal/cost_model.h"
#include "shardmesh/placement/internal/node_table.h"
#include "shardmesh/placement/internal/plan_state.h"

namespace shardmesh::internal {

/// What a step, and each of its axes, is charged besides its seconds, so that costs which are equal
/// but for rounding go to fewer steps, then to smaller groups.
inline constexpr double kStepSeconds = 1e-8;
inline constexpr double kAxisSeconds = 1e-9;

/// More than the rounding of a sum of costs.
inline constexpr double kRounding = 1 + 1e-12;

/// A set of axes for each value; an axis in none of them replicates.
struct CoarseState {
  uint8_t partial = 0;   ///< With the target's op, or the only one.
  uint8_t foreign = 0;   ///< Partial with the source's op if the target has another.
  uint8_t settled = 0;   ///< They shard and, with all splits outside them, as in the target.
  uint8_t original = 0;  ///< They shard as in the source, with all splits outside them.
  uint8_t moved = 0;     ///< They shard in any other way.
  uint8_t unused[3] = {};

  AxisSet sharded() const { return settled | original | moved; }
  AxisSet any_partial() const { return partial | foreign; }
  /// The state in which `axes` replicate.
  CoarseState Without(AxisSet axes) const {
    // The set in each byte.
    return std::bit_cast<CoarseState>(Word() & ~(axes * uint64_t{0x0101010101}));
  }

  /// All of the state in one word.
  uint64_t Word() const { return std::bit_cast<uint64_t>(*this); }
  friend bool operator==(const CoarseState& a, const CoarseState& b) {
    return a.Word() == b.Word();
  }
};
static_assert(sizeof(CoarseState) == sizeof(uint64_t));

/// A* from the target backwards, with CostModel::MinSeconds from the source as the lower bound of
/// what remains. Every step between states is a step of at most its cost between their coarse
/// states: a moved split is supposed to be wherever it suits, with boxes that it divides evenly. So
/// all bounds hold.
class CoarseSearch {
 public:
  struct Node {
    CoarseState state;
    double rest;       // To the target, with the charge of each step.
    double before;     // At least, from the source.
    int64_t elements;  // At least.
    bool is_closed;
    int first_step = -1;
  };
  /// A step of coarse plans over `axes`. If moved splits are anywhere before it and after it, an
  /// all-to-all may take some of them along, which costs more.
  struct Step {
    double rest;  // To the target, with this step.
    AxisSet axes;
    int to;
    int next;  // Another step from the same state, or -1.
  };

  /// Starts a search; memory of the one before is used again. Keeps a reference to `costs`.
  void Start(const PlanState& source, const PlanState& target, const CostModel& costs);

  /// The formula's bound of the cost of a plan, with charges.
  double bound() const { return nodes_[0].before; }
  /// The cost of the cheapest coarse plan, with charges; infinite if there is none.
  double Run();
  /// Finds all states on coarse plans of at most `limit`.
  void Extend(double limit);

  CoarseState Of(const PlanParts& parts, const PlanState& state) const;
  /// The op of the Partials of a state.
  ReduceOp OpOf(const CoarseState& state) const { return state.foreign != 0 ? foreign_op_ : op_; }

  /// Null if no plan within the limit of Run or Extend has such a state. Its steps lead to all
  /// states that are on such plans.
  const Node* Find(const CoarseState& state) {
    const int found = nodes_.Find(state);
    return found >= 0 && nodes_[found].is_closed ? &nodes_[found] : nullptr;
  }
  /// Whether so many states were met that their memory should not be kept.
  bool IsLarge() const { return steps_.size() > size_t{1} << 15; }
  const Node& node(int index) const { return nodes_[index]; }
  const Step& step(int index) const { return steps_[index]; }

 private:
  static constexpr size_t kNumSets = size_t{1} << MeshShape::kMaxAxes;

  struct Entry {
    double total;
    double before;
    int node;
    bool operator<(const Entry& other) const {  // The top of the heap is the least.
      if (total != other.total) return total > other.total;
      return before != other.before ? before > other.before : node > other.node;
    }
  };
  struct SettledSet {
    bool is_valid;
    AxisSet blocked;  // Original axes that split where these do not go around them.
  };
  struct OriginalSet {
    bool is_valid;
    AxisSet needed;  // Settled axes outside them.
  };

  void FillSets(const PlanParts& source, const PlanParts& target);
  bool IsValid(const CoarseState& state) const {
    const SettledSet& settled = settled_sets_[state.settled];
    const OriginalSet& original = original_sets_[state.original];
    return settled.is_valid && original.is_valid && (settled.blocked & state.original) == 0 &&
           (original.needed & ~state.settled) == 0;
  }
  /// Whether moved splits can stay in a step that settles or takes away splits of `dims`: in these
  /// dims they are inside what goes, or in the way of what comes.
  bool HasRoom(uint8_t dims) const { return dims + 1 != 1 << num_dims_; }
  int64_t Elements(const CoarseState& state) const;
  double MinBefore(const CoarseState& state) const;

  /// The node of a state, with `rest` infinite if it is new; -1 if there is no such state.
  int NodeOf(const CoarseState& state);
  bool ExpandTop();
  void Expand(int index);
  void AddSlices();
  void AddMakePartials();
  void AddReductions();
  /// All-gathers and all-to-alls.
  void AddMoves();
  void AddMove(AxisSet changed, const CoarseState& before);
  /// Notes that the state that is expanded follows on the node by a step over `axes`.
  void Relax(int index, AxisSet axes, double seconds);
  double Charge(AxisSet axes) const { return kStepSeconds + kAxisSeconds * costs_->NumAxes(axes); }

  const CostModel* costs_ = nullptr;
  int num_dims_ = 0;
  CoarseState source_, target_;
  PlanParts source_parts_, target_parts_;
  bool has_foreign_ = false;
  ReduceOp op_ = ReduceOp::kSum, foreign_op_ = ReduceOp::kSum;
  std::array<AxisSet, Dims::kMaxRank> source_splits_, target_splits_;
  std::array<uint8_t, kNumSets> source_dims_, target_dims_;  // That a set of axes splits.
  std::array<SettledSet, kNumSets> settled_sets_;
  std::array<OriginalSet, kNumSets> original_sets_;

  NodeTable<Node, 256> nodes_;
  std::vector<Entry> queue_;
  std::vector<Step> steps_;
  struct Before {
    CoarseState state;
    AxisSet changed;
  };
  std::vector<Before> befores_;  // Of AddMoves.

  // The state that is expanded.
  int to_index_ = 0;
  CoarseState to_;
  AxisSet to_replicated_ = 0;
  double to_rest_ = 0;
  int64_t to_elements_ = 0;
};

}  // namespace shardmesh::internal

#endif  // SHARDMESH_PLACEMENT_INTERNAL_COARSE_SEARCH_H_
