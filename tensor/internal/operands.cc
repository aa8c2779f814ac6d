// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/internal/operands.h"

#include <limits>
#include <span>

#include "shardmesh/base/error.h"

namespace shardmesh::internal {

std::string ToString(Operands operands) {
  std::string text;
  for (const Tensor* x : operands) {
    if (!*x) continue;
    if (!text.empty()) text += ", ";
    text += x->ToString();
  }
  return text;
}

Device DeviceOf(const char* op, Operands operands, Operands optional) {
  for (const Tensor* x : operands) {
    if (!*x) ThrowInvalid(op, ": an operand is missing");
  }
  const Tensor& first = **operands.begin();
  const Device device = first.device();
  for (const Operands& list : {operands, optional}) {
    for (const Tensor* x : list) {
      if (!*x || x->device() == device) continue;
      ThrowInvalid(op, ": operands on different devices: ", first.ToString(), " on ",
                   device.ToString(), ", ", x->ToString(), " on ", x->device().ToString());
    }
  }
  return device;
}

void RequireOneFloatingDType(const char* op, Operands operands) {
  const DType dtype = (*operands.begin())->dtype();
  for (const Tensor* x : operands) {
    if (*x && x->dtype() != dtype)
      ThrowInvalid(op, ": operands of different dtypes: ", ToString(operands));
  }
  if (!IsFloating(dtype)) ThrowNotFloating(dtype, op);
}

void RequireShape(const char* op, const char* name, const Tensor& x, const Dims& shape) {
  if (!x || x.shape() == shape) return;
  ThrowInvalid(op, ": ", name, " must have the shape ", shape.ToString(), ", got ", x.ToString());
}

void RequireDType(const char* op, const char* name, const Tensor& x, DType dtype) {
  if (!x || x.dtype() == dtype) return;
  ThrowInvalid(op, ": ", name, " must have the dtype ", std::string(Name(dtype)), ", got ",
               x.ToString());
}

void RequireRank(const char* op, const char* name, const Tensor& x, int least) {
  if (x.num_dims() >= least) return;
  ThrowInvalid(op, ": ", name, " needs at least ", least, least == 1 ? " dim" : " dims", ", got ",
               x.ToString());
}

Tensor EmptyOn(ExecutionContext& context, Device device, const Dims& shape, DType dtype) {
  return device.IsMeta() ? Tensor::Meta(shape, dtype) : Tensor::Empty(context, shape, dtype);
}

Tensor EmptyInOrderOf(ExecutionContext& context, const Tensor& like, const Dims& shape,
                      DType dtype) {
  const int rank = like.num_dims();
  // A dim that repeats its elements (stride 0) is outermost.
  const auto reach = [&](int dim) {
    const int64_t stride = like.strides()[dim];
    return stride == 0 ? std::numeric_limits<int64_t>::max() : stride;
  };
  Dims order;  // Dims of `like`, outermost in memory first.
  for (int dim = 0; dim < rank; ++dim) {
    int position = order.size();
    while (position > 0 && reach(order[position - 1]) < reach(dim)) --position;
    order.insert(position, dim);
  }
  Dims in_memory;
  int inverse[Dims::kMaxRank];
  for (int i = 0; i < rank; ++i) {
    in_memory.push_back(shape[order[i]]);
    inverse[order[i]] = i;
  }
  return EmptyOn(context, like.device(), in_memory, dtype)
      .Permute(std::span<const int>(inverse, rank));
}

DType ResultDType(const char* op, DType usual, std::optional<DType> asked_for) {
  const DType dtype = asked_for.value_or(usual);
  if (dtype == usual || dtype == AccumulatorDType(usual)) return dtype;
  ThrowInvalid(op, ": operands of ", std::string(Name(usual)), " do not give a result of ",
               std::string(Name(dtype)));
}

Dims WithoutLast(const Dims& shape) {
  return Dims(std::span<const int64_t>(shape.begin(), shape.size() - 1));
}

}  // namespace shardmesh::internal
