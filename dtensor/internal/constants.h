// SPDX-License-Identifier: Apache-2.0
//
// Small tensors that an op needs beside its operands: the same on every rank, replicated, and no
// part of the graph.
#ifndef SHARDMESH_DTENSOR_INTERNAL_CONSTANTS_H_
#define SHARDMESH_DTENSOR_INTERNAL_CONSTANTS_H_

#include <cstdint>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh::internal {

/// A number, on the mesh of `like`; it broadcasts.
DTensor ScalarOn(const DTensor& like, DType dtype, double value);
inline DTensor ScalarLike(const DTensor& like, double value) {
  return ScalarOn(like, like.dtype(), value);
}
/// Of that shape, all in one element of memory.
DTensor FilledLike(const DTensor& like, const Dims& shape, double value);

/// 0, 1, .. extent - 1 (i64) along `dim` of a tensor of `num_dims` dims, whose others are 1.
DTensor PositionsOn(const DTensor& like, int64_t extent, int dim, int num_dims);

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_CONSTANTS_H_
