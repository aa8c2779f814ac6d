// SPDX-License-Identifier: Apache-2.0
//
// A local, strided tensor: shape, strides, offset and dtype over a shared Storage. Views share the
// storage.
//
//   ExecutionContext context;
//   Tensor x = Tensor::Empty(context, {3, 5}, DType::kF32);
//   Tensor column = x.Narrow(/*dim=*/1, /*start=*/2, /*length=*/1);   // aliases x
//
// Ops on tensors are in tensor/ops.h; kernels in tensor/kernel_table.h.
#ifndef SHARDMESH_TENSOR_TENSOR_H_
#define SHARDMESH_TENSOR_TENSOR_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "shardmesh/base/dims.h"
#include "shardmesh/tensor/dtype.h"
#include "shardmesh/tensor/execution_context.h"
#include "shardmesh/tensor/storage.h"

namespace shardmesh {

/// A handle: copies alias. Thread-compatible; different threads may read one tensor.
class Tensor {
 public:
  /// No tensor; only bool and assignment are allowed.
  Tensor() = default;

  /// Contiguous (row-major), uninitialised, on the context's device.
  static Tensor Empty(ExecutionContext& context, const Dims& shape, DType dtype);
  static Tensor Empty(ExecutionContext& context, const Dims& shape, DType dtype,
                      MemoryCategory category);
  /// Shape and dtype without elements.
  static Tensor Meta(const Dims& shape, DType dtype);
  /// A contiguous CPU tensor with these elements, in row-major order. Throws if the count does not
  /// fit the shape.
  template <typename T>
  static Tensor FromValues(ExecutionContext& context, const Dims& shape, std::span<const T> values);
  template <typename T>
  static Tensor FromValues(ExecutionContext& context, const Dims& shape,
                           std::initializer_list<T> values) {
    return FromValues<T>(context, shape, std::span<const T>(values.begin(), values.size()));
  }
  /// A contiguous tensor over `storage`, beginning `offset` elements into it. Throws if it would
  /// not fit.
  static Tensor Over(std::shared_ptr<Storage> storage, const Dims& shape, DType dtype,
                     int64_t offset = 0);

  explicit operator bool() const { return storage_ != nullptr; }
  const Dims& shape() const { return shape_; }
  const Dims& strides() const { return strides_; }  ///< In elements.
  int64_t offset() const { return offset_; }        ///< In elements.
  int num_dims() const { return shape_.size(); }
  /// Extent of a dim; -1 is the last. Throws Error(kInvalidArgument) if there is no such.
  int64_t dim(int index) const {
    if (index < 0 || index >= num_dims()) index = NormalizeDim(index, num_dims(), "dim");
    return shape_[index];
  }
  int64_t NumElements() const { return shape_.NumElements(); }
  int64_t Bytes() const { return NumElements() * SizeOf(dtype_); }
  DType dtype() const { return dtype_; }
  Device device() const { return storage_->device(); }
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  bool IsContiguous() const;

  /// First element. Throws Error(kFailedPrecondition) on meta and on a released storage.
  const void* raw_data() const {
    return static_cast<const char*>(storage_->data()) + offset_ * SizeOf(dtype_);
  }
  /// As raw_data. Throws Error(kInvalidArgument) unless T is the C++ type of dtype().
  template <typename T>
  const T* data() const {
    RequireType<T>();
    return static_cast<const T*>(raw_data());
  }
  /// First element, for writing. Bumps the version of the storage, so that autograd and FullyShard
  /// notice; ranks that hold no elements must call it as well (Storage::version). Const, as a const
  /// handle does not make its elements const. Errors as raw_data and data.
  void* mutable_raw_data() const {
    return static_cast<char*>(storage_->mutable_data()) + offset_ * SizeOf(dtype_);
  }
  template <typename T>
  T* mutable_data() const {
    RequireType<T>();
    return static_cast<T*>(mutable_raw_data());
  }
  /// All elements in row-major order, converted to T. For tests, printing and small host-side work.
  template <typename T>
  std::vector<T> ToVector() const;
  /// The only element. Throws Error(kInvalidArgument) if there is not exactly one, and
  /// Error(kOutOfRange) for an i64 that no double holds.
  double Item() const;
  /// As Item, of an integer dtype or bool, exact. Throws Error(kInvalidArgument) for other dtypes.
  int64_t IntegerItem() const;

  // Views: they alias this tensor. Errors throw Error(kInvalidArgument) naming the shape and the
  // arguments.
  Tensor Transpose(int dim0, int dim1) const;
  Tensor Permute(std::span<const int> dims) const;
  /// [start, start + length) of `dim`.
  Tensor Narrow(int dim, int64_t start, int64_t length) const;
  /// Dims of size 1 repeated without copying (stride 0); a leading dim may be new.
  Tensor Expand(const Dims& shape) const;
  /// A view with another shape of as many elements (one extent may be -1), or nothing if strides do
  /// not allow one.
  std::optional<Tensor> TryView(const Dims& shape) const;
  Tensor Unsqueeze(int dim) const;
  Tensor Squeeze(int dim) const;
  /// The same elements with other strides (unchecked beyond the bounds of the storage).
  Tensor AsStrided(const Dims& shape, const Dims& strides, int64_t offset) const;

  /// "f32[3,5]".
  std::string ToString() const;

 private:
  template <typename T>
  void RequireType() const {
    constexpr DType kDType = kDTypeOf<std::remove_const_t<T>>;
    if (dtype_ != kDType) ThrowWrongType(kDType);
  }
  [[noreturn]] void ThrowWrongType(DType asked_for) const;

  Dims shape_;
  Dims strides_;
  int64_t offset_ = 0;
  DType dtype_ = DType::kF32;
  std::shared_ptr<Storage> storage_;
};

/// Row-major strides of a contiguous tensor.
Dims ContiguousStrides(const Dims& shape);

/// `shape` with one -1 replaced by what makes it have `num_elements`. Throws
/// Error(kInvalidArgument) if none fits.
Dims ResolveShape(const Dims& shape, int64_t num_elements, const char* what);

}  // namespace shardmesh

#endif  // SHARDMESH_TENSOR_TENSOR_H_
