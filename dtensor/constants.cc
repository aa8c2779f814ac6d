// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/internal/constants.h"

#include <vector>

#include "shardmesh/dtensor/ops.h"

namespace shardmesh::internal {
namespace {

std::vector<Placement> Replicated(const DTensor& like) {
  return std::vector<Placement>(static_cast<size_t>(like.layout().num_axes()));
}

}  // namespace

DTensor ScalarOn(const DTensor& like, DType dtype, double value) {
  return Full(like.mesh(), {}, dtype, value, Replicated(like));
}

DTensor FilledLike(const DTensor& like, const Dims& shape, double value) {
  return Expand(ScalarLike(like, value), shape);
}

DTensor PositionsOn(const DTensor& like, int64_t extent, int dim, int num_dims) {
  Dims shape;
  for (int d = 0; d < num_dims; ++d) shape.push_back(d == dim ? extent : 1);
  return Reshape(
      Arange(like.mesh(), 0, static_cast<double>(extent), 1, DType::kI64, Replicated(like)), shape);
}

}  // namespace shardmesh::internal
