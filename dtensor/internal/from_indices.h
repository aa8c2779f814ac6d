// SPDX-License-Identifier: Apache-2.0
//
// Tensors whose elements are functions of their global index.
#ifndef SHARDMESH_DTENSOR_INTERNAL_FROM_INDICES_H_
#define SHARDMESH_DTENSOR_INTERNAL_FROM_INDICES_H_

#include "shardmesh/placement/box.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::internal {

/// Fills `local`, contiguous and of the extents of `box`, with value(global index), converted as
/// ConvertTo (tensor/dtype.h) says. Nothing on meta.
template <typename Value>
void FillFromIndices(const Box& box, Value value, Tensor& local) {
  const int64_t count = local.NumElements();
  if (local.device().IsMeta()) return;
  VisitDType(local.dtype(), [&]<typename T>() {
    T* data = local.mutable_data<T>();
    Dims index = box.begin;
    for (int64_t i = 0; i < count; ++i) {
      data[i] = ConvertTo<T>(value(static_cast<const Dims&>(index)));
      for (int d = index.size() - 1; d >= 0 && ++index[d] == box.end[d]; --d)
        index[d] = box.begin[d];
    }
  });
}

/// A mask of bools.
template <typename Value>
Tensor MaskFromIndices(ExecutionContext& context, const Box& box, Value value) {
  Tensor mask = Tensor::Empty(context, box.Extents(), DType::kBool);
  FillFromIndices(box, value, mask);
  return mask;
}

}  // namespace shardmesh::internal

#endif  // SHARDMESH_DTENSOR_INTERNAL_FROM_INDICES_H_
