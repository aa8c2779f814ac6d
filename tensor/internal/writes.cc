// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/internal/writes.h"

#include <cmath>
#include <string>

#include "shardmesh/base/error.h"

namespace shardmesh::internal {

void RequireWritable(const char* op, const Tensor& out) {
  for (int dim = 0; dim < out.num_dims(); ++dim) {
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

namespace {

struct ByteRange {
  int64_t begin, end;
};

// From the first to the last element; empty if there is none.
ByteRange RangeOf(const Tensor& x) {
  int64_t last = x.offset();
  for (int dim = 0; dim < x.num_dims(); ++dim) {
    if (x.dim(dim) == 0) return {0, 0};
    last += (x.dim(dim) - 1) * x.strides()[dim];
  }
  return {x.offset() * SizeOf(x.dtype()), (last + 1) * SizeOf(x.dtype())};
}

}  // namespace

void RequireApart(const char* op, const Tensor& out,
                  std::initializer_list<const Tensor*> operands) {
  if (!out) return;
  RequireWritable(op, out);
  for (const Tensor* x : operands) {
    if (!*x || x->storage() != out.storage()) continue;
    const ByteRange a = RangeOf(out), b = RangeOf(*x);
    if (a.begin < b.end && b.begin < a.end) {
      ThrowInvalid(op, ": the result ", out.ToString(), " overlaps an operand, ", x->ToString());
    }
  }
}

bool MayOverlap(const Tensor& out, const Tensor& x) {
  if (out.storage() != x.storage()) return false;
  const bool is_same_view = out.shape() == x.shape() && out.strides() == x.strides() &&
                            out.offset() == x.offset() && out.dtype() == x.dtype();
  return !is_same_view;
}

}  // namespace shardmesh::internal
