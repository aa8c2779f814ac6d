// SPDX-License-Identifier: Apache-2.0
//
// Activation functions that are no rows of tensor/elementwise_ops.inc: they read more than one
// element of x, or a weight of another shape.
//
// Collective: all ranks of the mesh must call with the same global arguments.
// Errors: throws Error(kInvalidArgument) naming the op, shapes and dtypes; alike on all ranks.
#ifndef SHARDMESH_DTENSOR_OPS_ACTIVATIONS_H_
#define SHARDMESH_DTENSOR_OPS_ACTIVATIONS_H_

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

/// a sigmoid(b), of the halves a and b of x along `dim`, whose extent is even.
DTensor Glu(const DTensor& x, int dim = -1);
/// x where it is positive, weight x elsewhere. Shape: weight [channels] of x [n, channels, ..], or
/// with one element.
DTensor PRelu(const DTensor& x, const DTensor& weight);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_ACTIVATIONS_H_
