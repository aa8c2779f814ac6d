// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/tensor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "shardmesh/base/error.h"
#include "shardmesh/tensor/internal/output_data.h"

namespace shardmesh {
namespace {

// Bytes of a contiguous tensor. Throws for negative extents and for sizes beyond 64 bits, also
// where an extent of 0 makes the product 0: no later product of extents can overflow.
int64_t CheckedBytes(const Dims& shape, DType dtype) {
  int64_t bytes = SizeOf(dtype);
  bool overflow = false;
  bool is_empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) ThrowInvalid("a tensor's extents must not be negative: ", shape.ToString());
    is_empty |= extent == 0;
    overflow |= __builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes);
  }
  if (overflow) ThrowInvalid("a tensor of shape ", shape.ToString(), " is too large");
  return is_empty ? 0 : bytes;
}

// Calls fn(offset) for every element in row-major order.
template <typename Fn>
void ForEachElement(const Dims& shape, const Dims& strides, const Fn& fn) {
  const int64_t count = shape.NumElements();
  Dims index = Dims::Filled(shape.size(), 0);
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    fn(offset);
    for (int dim = shape.size() - 1; dim >= 0; --dim) {
      offset += strides[dim];
      if (++index[dim] < shape[dim]) break;
      offset -= strides[dim] * shape[dim];
      index[dim] = 0;
    }
  }
}

// The strides that give `to` the elements of (from, strides) in the same order, if there are any.
// Both have the same positive number of elements.
std::optional<Dims> StridesOfView(const Dims& from, const Dims& strides, const Dims& to) {
  // Dims that follow one another in memory make one run; the last dims come first.
  Dims run_extents, run_strides;
  for (int dim = from.size() - 1; dim >= 0; --dim) {
    if (from[dim] == 1) continue;
    const int last = run_extents.size() - 1;
    if (last >= 0 && strides[dim] == run_extents[last] * run_strides[last]) {
      run_extents[last] *= from[dim];
    } else {
      run_extents.push_back(from[dim]);
      run_strides.push_back(strides[dim]);
    }
  }
  // Each dim of `to` takes its part of one run.
  Dims result = Dims::Filled(to.size(), 1);
  int run = 0;
  int64_t taken = 1;
  for (int dim = to.size() - 1; dim >= 0; --dim) {
    if (to[dim] == 1) continue;
    if (taken == run_extents[run]) {
      ++run;
      taken = 1;
    }
    result[dim] = taken * run_strides[run];
    taken *= to[dim];
    if (run_extents[run] % taken != 0) return std::nullopt;
  }
  return result;
}

}  // namespace

Dims ContiguousStrides(const Dims& shape) {
  Dims strides = shape;
  int64_t stride = 1;
  for (int dim = shape.size() - 1; dim >= 0; --dim) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(shape[dim], 1);
  }
  return strides;
}

Dims ResolveShape(const Dims& shape, int64_t num_elements, const char* what) {
  Dims result = shape;
  int unknown = -1;
  int64_t known = 1;
  for (int dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] == -1) {
      if (unknown >= 0) ThrowInvalid(what, ": more than one -1 in ", shape.ToString());
      unknown = dim;
    } else if (shape[dim] < 0) {
      ThrowInvalid(what, ": negative extent in ", shape.ToString());
    } else if (__builtin_mul_overflow(known, shape[dim], &known)) {
      ThrowInvalid(what, ": ", shape.ToString(), " does not have ", num_elements, " elements");
    }
  }
  if (unknown >= 0) {
    if (known == 0) ThrowInvalid(what, ": the -1 in ", shape.ToString(), " could be anything");
    result[unknown] = num_elements / known;
    known *= result[unknown];
  }
  if (known != num_elements)
    ThrowInvalid(what, ": ", shape.ToString(), " does not have ", num_elements, " elements");
  return result;
}

Tensor Tensor::Empty(ExecutionContext& context, const Dims& shape, DType dtype) {
  return Empty(context, shape, dtype, context.default_category());
}

Tensor Tensor::Empty(ExecutionContext& context, const Dims& shape, DType dtype,
                     MemoryCategory category) {
  Tensor result;
  const int64_t bytes = CheckedBytes(shape, dtype);
  result.storage_ =
      std::make_shared<Storage>(context.device(), bytes, context.allocator(), category);
  result.shape_ = shape;
  result.strides_ = ContiguousStrides(shape);
  result.dtype_ = dtype;
  return result;
}

Tensor Tensor::Meta(const Dims& shape, DType dtype) {
  Tensor result;
  const int64_t bytes = CheckedBytes(shape, dtype);
  result.storage_ =
      std::make_shared<Storage>(Device::Meta(), bytes, nullptr, MemoryCategory::kActivations);
  result.shape_ = shape;
  result.strides_ = ContiguousStrides(shape);
  result.dtype_ = dtype;
  return result;
}

template <typename T>
Tensor Tensor::FromValues(ExecutionContext& context, const Dims& shape, std::span<const T> values) {
  CheckedBytes(shape, kDTypeOf<T>);
  if (static_cast<int64_t>(values.size()) != shape.NumElements()) {
    ThrowInvalid("Tensor::FromValues: ", values.size(), " values for shape ", shape.ToString());
  }
  Tensor result = Empty(context, shape, kDTypeOf<T>);
  if (!values.empty()) std::copy(values.begin(), values.end(), internal::OutputData<T>(result));
  return result;
}

Tensor Tensor::Over(std::shared_ptr<Storage> storage, const Dims& shape, DType dtype,
                    int64_t offset) {
  if (storage == nullptr) ThrowInvalid("Tensor::Over: no storage");
  const int64_t bytes = CheckedBytes(shape, dtype);
  if (offset < 0 || offset > (storage->bytes() - bytes) / SizeOf(dtype) ||
      bytes > storage->bytes()) {
    ThrowInvalid("Tensor::Over: ", std::string(Name(dtype)), shape.ToString(), " at element ",
                 offset, " does not fit into ", storage->bytes(), " bytes");
  }
  Tensor result;
  result.storage_ = std::move(storage);
  result.shape_ = shape;
  result.strides_ = ContiguousStrides(shape);
  result.offset_ = offset;
  result.dtype_ = dtype;
  return result;
}

bool Tensor::IsContiguous() const {
  int64_t stride = 1;
  bool contiguous = true;
  for (int dim = shape_.size() - 1; dim >= 0; --dim) {
    if (shape_[dim] == 0) return true;
    contiguous &= shape_[dim] == 1 || strides_[dim] == stride;
    stride *= shape_[dim];
  }
  return contiguous;
}

template <typename T>
std::vector<T> Tensor::ToVector() const {
  std::vector<T> result;
  result.reserve(NumElements());
  VisitDType(dtype_, [&]<typename From>() {
    const From* values = data<From>();
    ForEachElement(shape_, strides_,
                   [&](int64_t offset) { result.push_back(ConvertTo<T>(values[offset])); });
  });
  return result;
}

double Tensor::Item() const {
  if (NumElements() != 1)
    ThrowInvalid("Tensor::Item: ", ToString(), " has ", NumElements(), " elements, not one");
  const double value =
      VisitDType(dtype_, [&]<typename T>() { return ConvertTo<double>(*data<T>()); });
  const bool is_exact =
      dtype_ != DType::kI64 || (value < 0x1p63 && static_cast<int64_t>(value) == *data<int64_t>());
  if (!is_exact) {
    Throw(absl::StatusCode::kOutOfRange, "Tensor::Item: ", *data<int64_t>(),
          " is no double; use IntegerItem");
  }
  return value;
}

int64_t Tensor::IntegerItem() const {
  if (NumElements() != 1)
    ThrowInvalid("Tensor::IntegerItem: ", ToString(), " has ", NumElements(), " elements, not one");
  if (IsFloating(dtype_)) ThrowInvalid("Tensor::IntegerItem: ", ToString(), " is not of integers");
  return VisitDType(dtype_, [&]<typename T>() { return ConvertTo<int64_t>(*data<T>()); });
}

Tensor Tensor::Transpose(int dim0, int dim1) const {
  dim0 = NormalizeDim(dim0, num_dims(), "Transpose");
  dim1 = NormalizeDim(dim1, num_dims(), "Transpose");
  Tensor result = *this;
  std::swap(result.shape_[dim0], result.shape_[dim1]);
  std::swap(result.strides_[dim0], result.strides_[dim1]);
  return result;
}

Tensor Tensor::Permute(std::span<const int> dims) const {
  Tensor result = *this;
  uint32_t seen = 0;
  if (static_cast<int>(dims.size()) == num_dims()) {
    for (int i = 0; i < num_dims(); ++i) {
      const int dim = NormalizeDim(dims[i], num_dims(), "Permute");
      seen |= 1u << dim;
      result.shape_[i] = shape_[dim];
      result.strides_[i] = strides_[dim];
    }
  }
  if (static_cast<int>(dims.size()) != num_dims() || seen != (1u << num_dims()) - 1) {
    ThrowInvalid("Permute: [", absl::StrJoin(dims, ","), "] is no permutation of the dims of ",
                 ToString());
  }
  return result;
}

Tensor Tensor::Narrow(int dim, int64_t start, int64_t length) const {
  dim = NormalizeDim(dim, num_dims(), "Narrow");
  if (start < 0 || length < 0 || start > shape_[dim] - length) {
    ThrowInvalid("Narrow: [", start, ", ", start, " + ", length, ") of dim ", dim,
                 " is not within ", ToString());
  }
  Tensor result = *this;
  result.shape_[dim] = length;
  // An empty slice keeps the offset: it must not point past the end.
  if (result.NumElements() > 0) result.offset_ += start * strides_[dim];
  return result;
}

Tensor Tensor::Expand(const Dims& shape) const {
  const int added = shape.size() - num_dims();
  Tensor result = *this;
  result.shape_ = shape;
  result.strides_ = Dims::Filled(shape.size(), 0);
  for (int dim = 0; dim < shape.size(); ++dim) {
    const int own = dim - added;
    if (own >= 0 && shape[dim] == shape_[own]) {
      result.strides_[dim] = strides_[own];
    } else if (shape[dim] < 0 || (own >= 0 && shape_[own] != 1)) {
      ThrowInvalid("Expand: ", ToString(), " does not expand to ", shape.ToString());
    }
  }
  if (added < 0) ThrowInvalid("Expand: ", ToString(), " does not expand to ", shape.ToString());
  CheckedBytes(shape, dtype_);
  return result;
}

std::optional<Tensor> Tensor::TryView(const Dims& shape) const {
  const Dims resolved = ResolveShape(shape, NumElements(), "Reshape");
  CheckedBytes(resolved, dtype_);  // [0, huge, huge] has as few elements as [0].
  Tensor result = *this;
  result.shape_ = resolved;
  if (IsContiguous()) {
    result.strides_ = ContiguousStrides(resolved);
    return result;
  }
  const std::optional<Dims> strides = StridesOfView(shape_, strides_, resolved);
  if (!strides) return std::nullopt;
  result.strides_ = *strides;
  return result;
}

Tensor Tensor::Unsqueeze(int dim) const {
  dim = NormalizeDim(dim, num_dims() + 1, "Unsqueeze");
  Tensor result = *this;
  result.shape_.insert(dim, 1);
  result.strides_.insert(dim, dim < num_dims() ? shape_[dim] * strides_[dim] : 1);
  return result;
}

Tensor Tensor::Squeeze(int dim) const {
  dim = NormalizeDim(dim, num_dims(), "Squeeze");
  if (shape_[dim] != 1) ThrowInvalid("Squeeze: dim ", dim, " of ", ToString(), " is not 1");
  Tensor result = *this;
  result.shape_.erase(dim);
  result.strides_.erase(dim);
  return result;
}

Tensor Tensor::AsStrided(const Dims& shape, const Dims& strides, int64_t offset) const {
  CheckedBytes(shape, dtype_);
  if (strides.size() != shape.size()) {
    ThrowInvalid("AsStrided: shape ", shape.ToString(), " and strides ", strides.ToString(),
                 " differ in length");
  }
  int64_t first = offset, last = offset;
  bool fits = offset >= 0;
  for (int dim = 0; dim < shape.size(); ++dim) {
    int64_t reach = 0;
    int64_t& end = strides[dim] < 0 ? first : last;
    fits &= !__builtin_mul_overflow(std::max<int64_t>(shape[dim] - 1, 0), strides[dim], &reach) &&
            !__builtin_add_overflow(end, reach, &end);
  }
  const int64_t capacity = storage_->bytes() / SizeOf(dtype_);
  fits &= shape.NumElements() == 0 ? offset <= capacity : first >= 0 && last < capacity;
  if (!fits) {
    ThrowInvalid("AsStrided: shape ", shape.ToString(), " with strides ", strides.ToString(),
                 " at element ", offset, " is not within a storage of ", storage_->bytes(),
                 " bytes");
  }
  Tensor result = *this;
  result.shape_ = shape;
  result.strides_ = strides;
  result.offset_ = offset;
  return result;
}

void Tensor::ThrowWrongType(DType asked_for) const {
  ThrowInvalid("the elements of ", ToString(), " cannot be read as ", std::string(Name(asked_for)));
}

std::string Tensor::ToString() const {
  if (storage_ == nullptr) return "no tensor";
  return std::string(Name(dtype_)) + shape_.ToString();
}

#define SHARDMESH_INSTANTIATE(T)                                                             \
  template Tensor Tensor::FromValues<T>(ExecutionContext&, const Dims&, std::span<const T>); \
  template std::vector<T> Tensor::ToVector<T>() const;
SHARDMESH_INSTANTIATE(float)
SHARDMESH_INSTANTIATE(double)
SHARDMESH_INSTANTIATE(BFloat16)
SHARDMESH_INSTANTIATE(Float16)
SHARDMESH_INSTANTIATE(int32_t)
SHARDMESH_INSTANTIATE(int64_t)
SHARDMESH_INSTANTIATE(bool)
#undef SHARDMESH_INSTANTIATE

}  // namespace shardmesh
