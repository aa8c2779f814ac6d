// SPDX-License-Identifier: Apache-2.0
#include "row_scale.h"

#include "shardmesh/base/error.h"
#include "shardmesh/dtensor/dispatch.h"
#include "shardmesh/dtensor/ops.h"

namespace consumer {

using shardmesh::DTensor;
using shardmesh::Tensor;

namespace {

constexpr shardmesh::Op kRowScale{"row_scale"};

// On this rank's rows and columns.
template <typename T>
Tensor Scaled(shardmesh::ExecutionContext& context, const Tensor& x, const Tensor& s) {
  std::vector<T> values = x.ToVector<T>();
  const std::vector<T> scale = s.ToVector<T>();
  const int64_t columns = x.dim(1);
  for (int64_t i = 0; i < x.NumElements(); ++i) values[i] *= scale[i / columns];
  return Tensor::FromValues<T>(context, x.shape(), values);
}

}  // namespace

DTensor RowScale(const DTensor& x, const DTensor& s) {
  shardmesh::OpCall call(kRowScale, {&x, &s});
  call.Decide([&] {
    if (x.num_dims() != 2 || !(s.shape() == shardmesh::Dims{x.dim(0)}) || s.dtype() != x.dtype() ||
        (x.dtype() != shardmesh::DType::kF32 && x.dtype() != shardmesh::DType::kF64)) {
      shardmesh::ThrowInvalid("row_scale: expected x [n, d] and s [n], both f32 or both f64, got ",
                              x.ToString(), " and ", s.ToString());
    }
    return shardmesh::OpRule{shardmesh::Rule::Parse("n d, n -> n d; linear 0; linear 1"),
                             {x.shape()}};
  });
  DTensor y = call.Result(x.dtype() == shardmesh::DType::kF64
                              ? Scaled<double>(call.context(), call.local(0), call.local(1))
                              : Scaled<float>(call.context(), call.local(0), call.local(1)));
  call.Record({&y}, [sx = shardmesh::Saved(call.input(0)), ss = shardmesh::Saved(call.input(1))](
                        std::span<const DTensor> grads, shardmesh::Gradients& out) {
    if (out.Needs(0)) out.Set(0, RowScale(grads[0], ss.Get(kRowScale.name)));
    if (out.Needs(1))
      out.Set(1, shardmesh::Sum(shardmesh::Mul(grads[0], sx.Get(kRowScale.name)), {1}));
  });
  return y;
}

}  // namespace consumer
