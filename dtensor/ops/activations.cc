// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/dtensor/ops/activations.h"

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/internal/in_f32.h"
#include "shardmesh/dtensor/internal/rules.h"
#include "shardmesh/dtensor/ops.h"

namespace shardmesh {

DTensor Glu(const DTensor& x, int given) {
  internal::CheckUsable("glu", x);
  internal::CheckFloating("glu", x);
  const int dim = internal::DimOf("glu", x, given);
  if (x.dim(dim) % 2 != 0) {
    ThrowInvalid("glu: expected an even extent of dim ", dim, ", got ", x.dim(dim), " of ",
                 x.ToString());
  }
  const int64_t half = x.dim(dim) / 2;
  return internal::InF32IfSmall("glu", {x}, [&](const internal::Operands& o) {
    return Mul(Slice(o[0], dim, 0, half), Sigmoid(Slice(o[0], dim, half, half)));
  });
}

DTensor PRelu(const DTensor& x, const DTensor& weight) {
  internal::CheckUsable("prelu", x);
  internal::CheckUsable("prelu", weight);
  internal::CheckSameDType("prelu", x, weight);
  const int64_t count = weight.shape().NumElements();
  const int64_t channels = x.num_dims() < 2 ? 1 : x.dim(1);
  if (weight.num_dims() > 1 || (count != 1 && count != channels)) {
    ThrowInvalid("prelu: expected a weight of one dim with 1 or ", channels,
                 " elements (dim 1 of x), got ", weight.ToString(), " for ", x.ToString());
  }
  Dims shape;
  for (int d = 0; d < x.num_dims(); ++d) shape.push_back(d == 1 ? count : 1);
  return Where(Compare(CompareOp::kGreater, x, 0.0), x, Mul(Reshape(weight, shape), x));
}

}  // namespace shardmesh
