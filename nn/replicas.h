// SPDX-License-Identifier: Apache-2.0
//
// Whether the replicas of parameters agree.
#ifndef SHARDMESH_NN_REPLICAS_H_
#define SHARDMESH_NN_REPLICAS_H_

#include "shardmesh/nn/module.h"

namespace shardmesh::nn {

/// Compares the bits of each parameter and buffer that is replicated along an axis of more than one
/// rank.
/// Replicas that start apart stay apart: every rank applies the same updates to its own. Digests
/// are exchanged (one all-gather of 8 bytes a set of such axes), not values. Parameters without
/// values are left out.
/// Collective over the meshes of the parameters.
/// Errors: throws Error(kFailedPrecondition) on every rank that has a replica which differs, naming
/// the first such parameter and two ranks.
void CheckReplicas(Module& module);

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_REPLICAS_H_
