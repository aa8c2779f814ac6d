// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/testing/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <span>

#include "shardmesh/tensor/dtype.h"

namespace shardmesh::testing {
namespace {

// Calls fn(offset in elements) for every element of x, in row-major order.
void ForEachOffset(const Tensor& x, const std::function<void(int64_t)>& fn) {
  for (int64_t i = 0; i < x.NumElements(); ++i) {
    int64_t rest = i, offset = 0;
    for (int dim = x.num_dims() - 1; dim >= 0; --dim) {
      offset += rest % x.dim(dim) * x.strides()[dim];
      rest /= x.dim(dim);
    }
    fn(offset);
  }
}

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return static_cast<float>(value);
  } else {
    return static_cast<double>(value);
  }
}

}  // namespace

std::vector<double> RandomValues(int64_t count, uint64_t seed) {
  std::vector<double> values(count);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (double& value : values) {  // splitmix64.
    state += 0x9e3779b97f4a7c15u;
    uint64_t word = state;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    value = static_cast<double>((word ^ (word >> 31)) >> 40) * 0x1p-23 - 1.0;
  }
  return values;
}

Tensor MakeTensor(ExecutionContext& context, const Dims& shape, DType dtype,
                  const std::vector<double>& values) {
  return VisitDType(dtype, [&]<typename T>() {
    const auto elements = std::make_unique<T[]>(values.size());
    for (size_t i = 0; i < values.size(); ++i) elements[i] = FromDouble<T>(values[i]);
    return Tensor::FromValues<T>(context, shape, std::span<const T>(elements.get(), values.size()));
  });
}

Tensor RandomTensor(ExecutionContext& context, const Dims& shape, DType dtype, uint64_t seed) {
  return MakeTensor(context, shape, dtype, RandomValues(shape.NumElements(), seed));
}

Tensor InMemoryOrder(ExecutionContext& context, const Tensor& x, std::vector<int> order,
                     int64_t gap) {
  Dims shape;
  for (int dim : order) shape.push_back(x.dim(dim));
  Dims padded = shape;
  if (!order.empty()) padded[padded.size() - 1] += gap;
  std::vector<int> inverse(order.size());
  for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int>(i);
  const bool fill = IsFloating(x.dtype());
  Tensor memory =
      MakeTensor(context, padded, x.dtype(),
                 std::vector<double>(padded.NumElements(),
                                     fill ? std::numeric_limits<double>::quiet_NaN() : 123456.0));
  Tensor y = order.empty()
                 ? memory
                 : memory.Narrow(-1, 0, shape.back()).Permute(std::span<const int>(inverse));
  VisitDType(x.dtype(), [&]<typename T>() {
    std::vector<T> elements;
    ForEachOffset(x, [&](int64_t offset) { elements.push_back(x.data<T>()[offset]); });
    size_t i = 0;
    T* data = y.mutable_data<T>();
    ForEachOffset(y, [&](int64_t offset) { data[offset] = elements[i++]; });
  });
  return y;
}

std::vector<double> Values(const Tensor& x) {
  std::vector<double> values;
  VisitDType(x.dtype(), [&]<typename T>() {
    const T* data = x.data<T>();
    ForEachOffset(x, [&](int64_t offset) { values.push_back(ToDouble(data[offset])); });
  });
  return values;
}

uint64_t HashOfBits(const Tensor& x) {
  uint64_t hash = 0xcbf29ce484222325;
  const int64_t size = SizeOf(x.dtype());
  const auto* data = static_cast<const uint8_t*>(x.raw_data());
  ForEachOffset(x, [&](int64_t offset) {
    for (int64_t i = 0; i < size; ++i) hash = (hash ^ data[offset * size + i]) * 0x100000001b3;
  });
  return hash;
}

std::string Bits(const Tensor& x) {
  char text[20];
  std::snprintf(text, sizeof(text), "%016llx ", static_cast<unsigned long long>(HashOfBits(x)));
  return text;
}

double WorstRelative(const std::vector<double>& actual, const std::vector<double>& expected) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (actual.size() != expected.size()) return infinity;
  double worst = 0.0, largest = 0.0;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(expected[i]) || !std::isfinite(actual[i])) {
      const bool same = std::isnan(expected[i]) ? std::isnan(actual[i]) : actual[i] == expected[i];
      if (!same) return infinity;
      continue;
    }
    worst = std::max(worst, std::fabs(actual[i] - expected[i]));
    largest = std::max(largest, std::fabs(expected[i]));
  }
  return worst == 0.0 ? 0.0 : worst / std::max(largest, 1e-300);
}

std::vector<double> FiniteDifferences(Tensor& x, const std::function<double()>& f) {
  std::vector<double> gradient;
  constexpr double kStep = 1e-5;
  ForEachOffset(x, [&](int64_t offset) {
    const double value = x.data<double>()[offset];
    x.mutable_data<double>()[offset] = value + kStep;
    const double above = f();
    x.mutable_data<double>()[offset] = value - kStep;
    const double below = f();
    x.mutable_data<double>()[offset] = value;
    gradient.push_back((above - below) / (2 * kStep));
  });
  return gradient;
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace shardmesh::testing
