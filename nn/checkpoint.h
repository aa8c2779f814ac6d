// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing by module (dtensor/checkpoint.h).
//
//   for (auto& block : model.Blocks()) nn::CheckpointActivations(block);
#ifndef SHARDMESH_NN_CHECKPOINT_H_
#define SHARDMESH_NN_CHECKPOINT_H_

#include "shardmesh/dtensor/checkpoint.h"
#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

/// From now on each call of `module`, hooks and scopes included, keeps its input tensors alone and
/// is made again in Backward. Named arguments are passed again as they are: what they point to must
/// not have changed. Hooks that count or log use OnceInCheckpoint. Calls within other checkpointed
/// modules are nested. Before or after FullyShard and Parallelize. Replaces what an earlier call of
/// this or of KeepActivations has set on the module. Local.
/// Backward throws Error(kFailedPrecondition) if the module is gone by then.
void CheckpointActivations(Module& module, const CheckpointOptions& options = {});

/// Within a checkpointed module, calls of `module` are made once: their results, and what they
/// save, are kept (selective checkpointing by module). Replaces what CheckpointActivations has set
/// on it. Local.
void KeepActivations(Module& module);

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_CHECKPOINT_H_
