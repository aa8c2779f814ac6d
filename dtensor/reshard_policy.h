// SPDX-License-Identifier: Apache-2.0
//
// Whether ops may move their operands without being asked to.
//
//   {
//     ReshardPolicyScope scope(mesh, ReshardPolicy::kExplicit);
//     y = MatMul(a, b);        // throws if a or b must be gathered first; says what may be done
//     a = Redistribute(a, ..); // always allowed
//   }
//
//   | policy    | an op whose operands must communicate first                               |
//   |-----------|---------------------------------------------------------------------------|
//   | kAuto     | moves them                                                                |
//   | kWarn     | moves them; the mesh's first rank says so on stderr, once for each kind of call |
//   | kExplicit | throws before anything is moved or computed                               |
//   | kForbid   | throws; and so does every other move, whoever asks for it                 |
//
// kWarn and kExplicit are about the forward pass: the moves of a backward pass follow from those
// that the forward pass made, and a program has no place to ask for them. Local moves (a slice, the
// summands of a replicated tensor) cost no communication and are always allowed but under kForbid,
// which is meant for tests: nothing at all moves while it holds, in a backward pass neither.
// What an op exchanges to compute (the sums of boxes in CumSum, the failures of a batch in Inv) and
// FullyShard's own collectives are not moves of operands. A function that is made of several ops
// (docs/ops.md) is looked at op by op: Var along a sharded dim needs the mean on every rank, and is
// refused as its parts are; Redistribute its operand first.
#ifndef SHARDMESH_DTENSOR_RESHARD_POLICY_H_
#define SHARDMESH_DTENSOR_RESHARD_POLICY_H_

#include <cstdint>

#include "shardmesh/mesh/device_mesh.h"

namespace shardmesh {

class Runtime;

enum class ReshardPolicy : uint8_t { kAuto, kWarn, kExplicit, kForbid };

/// While alive, what ops on this rank may move. Must be used alike on all ranks. Scopes nest; the
/// default is kAuto.
///
/// Errors: under kExplicit an op whose operands would have to communicate throws
///         Error(kFailedPrecondition) on all ranks, naming the op, its operands, and each layout
///         that the op allows with the bytes that a rank sends to get there. Under kForbid every
///         move throws the same, naming the layouts.
class ReshardPolicyScope {
 public:
  ReshardPolicyScope(const DeviceMesh& mesh, ReshardPolicy policy);
  ~ReshardPolicyScope();
  ReshardPolicyScope(const ReshardPolicyScope&) = delete;
  ReshardPolicyScope& operator=(const ReshardPolicyScope&) = delete;

 private:
  Runtime& runtime_;
  ReshardPolicy before_;
};

/// For tests: the code in its scope moves nothing.
class NoReshard : public ReshardPolicyScope {
 public:
  explicit NoReshard(const DeviceMesh& mesh) : ReshardPolicyScope(mesh, ReshardPolicy::kForbid) {}
};

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_RESHARD_POLICY_H_
