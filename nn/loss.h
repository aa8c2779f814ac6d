// SPDX-License-Identifier: Apache-2.0
//
// The losses of dtensor/ops.h in namespace nn, where users of modules look for them.
#ifndef SHARDMESH_NN_LOSS_H_
#define SHARDMESH_NN_LOSS_H_

#include "shardmesh/dtensor/ops.h"

namespace shardmesh::nn {

using shardmesh::CrossEntropy;
using shardmesh::LossReduction;
using shardmesh::MseLoss;

}  // namespace shardmesh::nn

#endif  // SHARDMESH_NN_LOSS_H_
