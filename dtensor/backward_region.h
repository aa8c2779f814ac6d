// SPDX-License-Identifier: Apache-2.0
//
// For layers that manage memory or communication around a part of forward, as FullyShard does
// around each call of a module: they learn when backward comes to that part, when it has left it,
// and how it ended.
//
//   {
//     BackwardRegionScope scope(mesh, std::make_shared<MyRegion>());
//     y = f(x);                          // what is recorded here belongs to the region
//   }
//   Backward(Sum(y));                    // Expect, Enter, the ops of f in reverse, Leave
#ifndef SHARDMESH_DTENSOR_BACKWARD_REGION_H_
#define SHARDMESH_DTENSOR_BACKWARD_REGION_H_

#include <cstdint>
#include <memory>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/mesh/device_mesh.h"

namespace shardmesh {

/// The ops recorded while one BackwardRegionScope was the innermost. The graph owns it: it lives as
/// long as an op of it can be differentiated. Belongs to a rank. What it does must be the same on
/// all ranks, and so are the calls, in their order: they follow the order in which ops were
/// recorded.
class BackwardRegion {
 public:
  virtual ~BackwardRegion() = default;

  /// A Backward has begun whose graph has ops of this region, or of one within it. Called before
  /// any op of the graph is differentiated, in the order in which regions will be entered.
  virtual void Expect() = 0;
  /// Before the first such op is differentiated; outer regions first. `next` is the region entered
  /// after this one, null if there is none.
  virtual void Enter(BackwardRegion* next) = 0;
  /// All ops recorded since the region began have been passed, also where no gradient reached some.
  virtual void Leave() = 0;
  /// A part of forward within the region is computed again, after Enter and before Leave
  /// (checkpoint.h). What it returns makes that possible, for as long as it lives.
  virtual std::shared_ptr<void> Resume() { return nullptr; }

  /// Whether something was recorded in it, or within a region in it.
  bool has_ops() const { return has_ops_; }
  // For the engine.
  void NoteOp() { has_ops_ = true; }
  /// Ops recorded later have larger sequence numbers.
  uint64_t begin() const { return begin_; }
  const std::shared_ptr<BackwardRegion>& outer() const { return outer_; }

 private:
  friend class BackwardRegionScope;

  std::shared_ptr<BackwardRegion> outer_;
  uint64_t begin_ = 0;
  bool has_ops_ = false;
};

/// While alive, `region` is the innermost on this rank. A region is opened once. Local.
class BackwardRegionScope {
 public:
  BackwardRegionScope(const DeviceMesh& mesh, std::shared_ptr<BackwardRegion> region);
  ~BackwardRegionScope();
  BackwardRegionScope(const BackwardRegionScope&) = delete;
  BackwardRegionScope& operator=(const BackwardRegionScope&) = delete;

 private:
  Runtime& runtime_;
  std::shared_ptr<BackwardRegion> region_;
};

/// The Backward that runs on a rank.
class BackwardRun {
 public:
  virtual ~BackwardRun() = default;
  /// Adds to the gradient of a leaf, as a use of it in the graph would: its hooks see the complete
  /// sum, and it is kept only if the whole Backward succeeds.
  virtual void Deliver(const DTensor& leaf, DTensor grad) = 0;
};

/// Takes part in the end of a Backward. Belongs to a rank.
class BackwardParticipant {
 public:
  virtual ~BackwardParticipant() = default;
  /// All ops have been differentiated and no gradient is in place yet. May throw: then the Backward
  /// has failed.
  virtual void Finish(BackwardRun& run) = 0;
  /// The Backward has succeeded: every gradient is in place.
  virtual void Succeeded() = 0;
  /// The Backward has failed: no leaf has changed. Must not throw.
  virtual void Failed() = 0;
};

/// Makes `participant` take part in the Backward that now runs on this rank; once, however often it
/// joins. Errors: throws Error(kFailedPrecondition) if none runs.
void JoinBackward(const DeviceMesh& mesh, std::shared_ptr<BackwardParticipant> participant);

/// Whether a Backward runs on this rank.
bool IsInBackward(const DeviceMesh& mesh);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_BACKWARD_REGION_H_
