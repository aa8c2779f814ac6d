// SPDX-License-Identifier: Apache-2.0
//
// What tests of kernels share: reproducible mixed-sign tensors in any memory order, comparison with
// values computed in double, and gradients by finite differences.
#ifndef SHARDMESH_TENSOR_TESTING_REFERENCE_H_
#define SHARDMESH_TENSOR_TESTING_REFERENCE_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "shardmesh/tensor/execution_context.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::testing {

/// `count` values in [-1, 1), exact in f32; the same for the same seed.
std::vector<double> RandomValues(int64_t count, uint64_t seed);

/// A contiguous tensor of `values` (row-major), converted to `dtype`.
Tensor MakeTensor(ExecutionContext& context, const Dims& shape, DType dtype,
                  const std::vector<double>& values);
Tensor RandomTensor(ExecutionContext& context, const Dims& shape, DType dtype, uint64_t seed);

/// The same elements with the dims in memory in the order `order` (outermost first), each row of
/// memory followed by a gap of NaN: [2, 3] in order {1, 0} is column-major.
Tensor InMemoryOrder(ExecutionContext& context, const Tensor& x, std::vector<int> order,
                     int64_t gap = 0);

/// The elements of x as double, in row-major order.
std::vector<double> Values(const Tensor& x);
/// FNV-1a over the bytes of the elements in row-major order; equal for equal bits, NaN included.
uint64_t HashOfBits(const Tensor& x);
/// The same as text, so that several can be joined.
std::string Bits(const Tensor& x);

/// The largest difference over the largest magnitude in `expected`; infinity if sizes differ or a
/// NaN is not one in both.
double WorstRelative(const std::vector<double>& actual, const std::vector<double>& expected);

/// d f / d x for each element of `x`, an f64 tensor that `f` reads, by central differences.
std::vector<double> FiniteDifferences(Tensor& x, const std::function<double()>& f);

/// sum a_i b_i.
double Dot(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TENSOR_TESTING_REFERENCE_H_
