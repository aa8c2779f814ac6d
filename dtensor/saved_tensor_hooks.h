// SPDX-License-Identifier: Apache-2.0
//
// What becomes of the values that ops save for backward: kept as they are, or packed by hooks and
// unpacked when backward needs them. Activation checkpointing (checkpoint.h) computes them again;
// offloading would move them elsewhere.
//
//   {
//     SavedTensorHooksScope scope(mesh, std::make_shared<ToHost>());
//     loss = model(x);                 // Pack for each value that an op saves
//   }
//   Backward(loss);                    // Unpack, before the op that needs it
#ifndef SHARDMESH_DTENSOR_SAVED_TENSOR_HOOKS_H_
#define SHARDMESH_DTENSOR_SAVED_TENSOR_HOOKS_H_

#include <memory>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/mesh/device_mesh.h"

namespace shardmesh {

/// One saved value; destroyed when backward no longer needs it.
class PackedTensor {
 public:
  virtual ~PackedTensor() = default;
  /// The value, of the layout and dtype that were packed. May be called more than once. `op` is the
  /// op whose backward asks, for messages. Must do the same on all ranks.
  virtual DTensor Unpack(const char* op) = 0;
};

/// Belongs to a rank.
class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  /// `value` is outside the graph and shares memory with a tensor of forward, which may be written
  /// in place later: who keeps it must not rely on its contents. Null: it is kept as it is. Must do
  /// the same on all ranks.
  virtual std::shared_ptr<PackedTensor> Pack(const DTensor& value) = 0;
};

/// While alive, `hooks` are asked for each value that an op on this rank saves; null: none are.
/// Scopes nest, the innermost counts. Local.
class SavedTensorHooksScope {
 public:
  SavedTensorHooksScope(const DeviceMesh& mesh, std::shared_ptr<SavedTensorHooks> hooks);
  ~SavedTensorHooksScope();
  SavedTensorHooksScope(const SavedTensorHooksScope&) = delete;
  SavedTensorHooksScope& operator=(const SavedTensorHooksScope&) = delete;

 private:
  Runtime& runtime_;
  std::shared_ptr<SavedTensorHooks> before_;
};

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_SAVED_TENSOR_HOOKS_H_
