// SPDX-License-Identifier: Apache-2.0
//
// Per-rank state of the DTensor layer: autograd mode and order, decision and plan caches. Lives in
// the rank's Communicator::locals(); there are no thread-local variables.
#ifndef SHARDMESH_DTENSOR_RUNTIME_H_
#define SHARDMESH_DTENSOR_RUNTIME_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "shardmesh/dtensor/partial_precision.h"
#include "shardmesh/dtensor/reshard_policy.h"
#include "shardmesh/mesh/device_mesh.h"
#include "shardmesh/placement/plan_cache.h"
#include "shardmesh/placement/rule.h"

namespace shardmesh {

class BackwardParticipant;
class BackwardRegion;
class SavedTensorHooks;
namespace internal {
class CheckpointFrame;
}

/// What a decision depends on: op, static attributes, operand layouts and dtypes, this rank's
/// coordinate. Values that change every step never enter it.
class DecisionKey {
 public:
  template <typename T>
  requires std::is_integral_v<T> || std::is_enum_v<T>
  void Add(T value) { AddWord(static_cast<uint64_t>(value)); }
  void Add(const void* pointer) { AddWord(reinterpret_cast<uintptr_t>(pointer)); }
  void Add(const Dims& dims) {
    AddWord(static_cast<uint64_t>(dims.size()));
    for (int64_t extent : dims) AddWord(static_cast<uint64_t>(extent));
  }
  /// Not for keys: a double that decides a layout is really a count, and a string would be hashed
  /// by its address.
  void Add(double) = delete;
  void Add(const char*) = delete;

  friend bool operator==(const DecisionKey& a, const DecisionKey& b) {
    return a.hash_ == b.hash_ && a.words_ == b.words_;
  }
  template <typename H>
  friend H AbslHashValue(H h, const DecisionKey& key) {
    return H::combine(std::move(h), key.hash_);
  }

 private:
  void AddWord(uint64_t word) {
    words_.push_back(word);
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15u;
    hash_ ^= hash_ >> 29;
  }

  absl::InlinedVector<uint64_t, 14> words_;
  uint64_t hash_ = 0;
};

/// Whether `dtype` is narrower than the dtype in which sums are accumulated: bf16 and f16.
inline bool IsSmall(DType dtype) { return IsFloating(dtype) && SizeOf(dtype) < 4; }
/// Whether ranks hold summands or factors (the largest and the least of values need no precision).
bool HoldsSummands(const Layout& layout);

struct Decision {
  Propagation propagation;
  absl::InlinedVector<Layout, 4> operands;     ///< As given: their ids are part of the key.
  bool has_small_summands = false;             ///< Some operand of a small dtype comes as summands.
  absl::InlinedVector<Dims, 2> output_shapes;  ///< Of this rank's box of each result.
  mutable bool was_warned_of = false;          ///< Under ReshardPolicy::kWarn.
};

/// Belongs to one rank.
class Runtime {
 public:
  /// Bound on each cache; a full one is emptied (every new sequence length is a new layout).
  static constexpr size_t kMaxCacheEntries = 1 << 14;

  static Runtime& Of(const DeviceMesh& mesh) { return mesh.locals().Get<Runtime>(); }

  // Autograd.
  bool grad_enabled = true;
  PartialPrecision partial_precision = PartialPrecision::kAccumulator;
  /// In which dtype a rank holds its box of a tensor.
  DType StoredDType(DType dtype, const Layout& layout) const {
    const bool wide = IsSmall(dtype) && partial_precision == PartialPrecision::kAccumulator &&
                      HoldsSummands(layout);
    return wide ? DType::kF32 : dtype;
  }
  ReshardPolicy reshard_policy = ReshardPolicy::kAuto;
  uint64_t NextSequence() { return ++sequence_; }
  bool in_backward = false;
  std::shared_ptr<SavedTensorHooks> saved_tensor_hooks;
  internal::CheckpointFrame* checkpoint = nullptr;  ///< The innermost whose function runs.
  std::shared_ptr<BackwardRegion> region;           ///< The innermost that is open.
  /// Of the Backward now running.
  std::vector<std::shared_ptr<BackwardParticipant>> participants;
  /// Called when the Backward now running ends, with whether it succeeded.
  std::vector<std::function<void(bool succeeded)>> at_end_of_backward;

  // Caches. Decisions hold until EndCall.
  PlanCache plans{kMaxCacheEntries};
  /// Null on a miss.
  const Decision* FindDecision(const DecisionKey& key) const;
  const Decision& AddDecision(const DecisionKey& key, Decision decision);
  /// Called with each rule that a decision is made by, not with those that are found.
  std::function<void(const char* op, const Rule& rule)> rule_observer;
  size_t max_decisions = kMaxCacheEntries;
  /// While an OpCall lives its decision does, even if the cache is emptied by an op that it calls.
  void BeginCall() { ++open_calls_; }
  void EndCall() {
    if (--open_calls_ == 0 && !retired_.empty()) retired_.clear();
  }
  size_t num_decisions() const { return decisions_.size(); }
  size_t num_plans() const { return plans.size(); }
  int64_t decision_misses() const { return decision_misses_; }

 private:
  uint64_t sequence_ = 0;
  int64_t decision_misses_ = 0;
  using Decisions = absl::flat_hash_map<DecisionKey, std::unique_ptr<const Decision>>;
  Decisions decisions_;
  std::vector<Decisions> retired_;  // Emptied while calls were open.
  int open_calls_ = 0;
};

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_RUNTIME_H_
