// SPDX-License-Identifier: Apache-2.0
//
// Tensors with values that depend on rank and place, so that no mix-up goes unseen, in all the ways
// a tensor can lie in memory.
#ifndef SHARDMESH_COMM_TESTING_SAMPLE_TENSORS_H_
#define SHARDMESH_COMM_TESTING_SAMPLE_TENSORS_H_

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "shardmesh/tensor/tensor.h"

namespace shardmesh::testing {

/// A few random bits of (seed, index): splitmix64.
inline uint64_t Mix(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + index + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Value `index` of the sequence `seed`: of either sign and of different magnitudes, exact in T.
template <typename T>
T Sample(uint64_t seed, int64_t index) {
  const uint64_t bits = Mix(seed, static_cast<uint64_t>(index));
  if constexpr (std::is_same_v<T, bool>) {
    return (bits & 1) != 0;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(bits % 19) - 9;
  } else {
    const float mantissa = 1.0f + static_cast<float>(bits % 128) / 128.0f;  // 7 bits: fits bf16.
    const float scale = static_cast<float>(1 << ((bits >> 8) % 6)) / 8.0f;
    return static_cast<T>(((bits >> 16) & 1) != 0 ? mantissa * scale : -mantissa * scale);
  }
}

template <typename T>
std::vector<T> Samples(uint64_t seed, int64_t count) {
  std::vector<T> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = Sample<T>(seed, i);
  return values;
}

/// How a tensor lies in memory.
enum class Form { kContiguous, kTransposed, kColumns, kEverySecond };
inline constexpr Form kForms[] = {Form::kContiguous, Form::kTransposed, Form::kColumns,
                                  Form::kEverySecond};

/// A tensor of this shape, not yet written, in the middle of memory of its own.
inline Tensor EmptyOf(ExecutionContext& context, Form form, const Dims& shape, DType dtype) {
  const int rank = shape.size();
  Dims stored = shape;
  if (rank == 0 || form == Form::kContiguous) return Tensor::Empty(context, shape, dtype);
  if (form == Form::kTransposed) {
    std::swap(stored[0], stored[rank - 1]);
    return Tensor::Empty(context, stored, dtype).Transpose(0, rank - 1);
  }
  if (form == Form::kColumns) {  // Rows lie apart.
    stored[rank - 1] += 3;
    return Tensor::Empty(context, stored, dtype).Narrow(rank - 1, 1, shape[rank - 1]);
  }
  stored.push_back(2);
  return Tensor::Empty(context, stored, dtype).Narrow(rank, 1, 1).Squeeze(rank);
}

/// Calls fn(index, element) for every element of `tensor`, which begins at `data`, in row-major
/// order.
template <typename T, typename Fn>
void ForEachFrom(T* data, const Tensor& tensor, const Fn& fn) {
  const int64_t count = tensor.NumElements();
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    int64_t rest = i;
    for (int d = tensor.num_dims() - 1; d >= 0; --d) {
      offset += rest % tensor.dim(d) * tensor.strides()[d];
      rest /= tensor.dim(d);
    }
    fn(i, data[offset]);
  }
}

template <typename T, typename Fn>
void ForEach(const Tensor& tensor, const Fn& fn) {
  ForEachFrom(tensor.data<T>(), tensor, fn);
}
/// As ForEach; fn may write the elements.
template <typename T, typename Fn>
void ForEachMutable(const Tensor& tensor, const Fn& fn) {
  ForEachFrom(tensor.mutable_data<T>(), tensor, fn);
}

/// Writes the sequence `seed` into `tensor`.
template <typename T>
void FillWithSamples(const Tensor& tensor, uint64_t seed) {
  ForEachMutable<T>(tensor, [&](int64_t i, T& element) { element = Sample<T>(seed, i); });
}

template <typename T>
Tensor SampleTensor(ExecutionContext& context, Form form, const Dims& shape, uint64_t seed) {
  Tensor tensor = EmptyOf(context, form, shape, kDTypeOf<T>);
  FillWithSamples<T>(tensor, seed);
  return tensor;
}

}  // namespace shardmesh::testing

#endif  // SHARDMESH_COMM_TESTING_SAMPLE_TENSORS_H_
