// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/internal/writes.h"

#include <cmath>
#include <string>

#include "shardmesh/base/error.h"

namespace shardmesh::internal {

void RequireWritable(const char* op, const Tensor& out) {
  for (int dim = 0; dim < out.rank(); ++dim) {
    if (out.dim(dim) > 1 && out.strides()[dim] == 0) {
      ThrowInvalid(op, ": cannot write to ", out.ToString(), ", an expanded view: its dim ", dim,
                   " repeats elements");
    }
  }
}

void RequireRepresentable(const char* op, DType dtype, double value) {
  if (IsFloating(dtype)) return;
  double low = 0, high = 2;  // Exclusive.
  if (dtype == DType::kI32) low = -0x1p31, high = 0x1p31;
  if (dtype == DType::kI64) low = -0x1p63, high = 0x1p63;
  if (value >= low && value < high && std::trunc(value) == value) return;
  ThrowInvalid(op, ": ", value, " is not a value of dtype ", std::string(Name(dtype)));
}

bool MayOverlap(const Tensor& out, const Tensor& x) {
  if (out.storage() != x.storage()) return false;
  const bool is_same_view = out.shape() == x.shape() && out.strides() == x.strides() &&
                            out.offset() == x.offset() && out.dtype() == x.dtype();
  return !is_same_view;
}

}  // namespace shardmesh::internal
