// SPDX-License-Identifier: Apache-2.0
//
// Products of tensors that are made of MatMul, and sums over named dims.
//
//   DTensor scores = Einsum("bqhd,bkhd->bhqk", {q, k});
//
// Any dim of an operand may be sharded and stays so; where one is sharded that is summed over, the
// result is Partial.
//
// Included by dtensor/ops.h, which states what is collective and what is an error.
#ifndef SHARDMESH_DTENSOR_OPS_PRODUCTS_H_
#define SHARDMESH_DTENSOR_OPS_PRODUCTS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"

namespace shardmesh {

/// The sum over all labels that the result lacks, as NumPy's einsum: a letter per dim, "..." for
/// dims that broadcast, a letter twice in one operand for its diagonal. Extents of 1 broadcast.
/// Without "->" the result has the letters that appear once, in alphabetical order. Operands are
/// multiplied from left to right.
/// Errors: throws Error(kInvalidArgument) naming the equation and what does not fit.
DTensor Einsum(std::string_view equation, const std::vector<DTensor>& operands);

/// Summed over dims_a[i] of a and dims_b[i] of b, which have one extent. The result has the other
/// dims of a, then those of b.
DTensor TensorDot(const DTensor& a, const DTensor& b, const std::vector<int>& dims_a,
                  const std::vector<int>& dims_b);
/// Over the last `count` dims of a and the first of b.
DTensor TensorDot(const DTensor& a, const DTensor& b, int count);
/// Of two vectors. Shape: [n], [n] -> [].
DTensor Dot(const DTensor& a, const DTensor& b);
/// Over the last dims of both; with a number, Mul.
DTensor Inner(const DTensor& a, const DTensor& b);
/// Shape: [n], [m] -> [n, m].
DTensor Outer(const DTensor& a, const DTensor& b);
/// Shape: matrix [m, k], vector [k] -> [m].
DTensor Mv(const DTensor& matrix, const DTensor& vector);
/// Every element of a times all of b. Shape: [.., n], [.., m] -> [.., n m], four dims at most.
DTensor Kron(const DTensor& a, const DTensor& b);
/// The product of a chain of matrices in the cheapest order. The first may be a row, the last a
/// column, without the other dim.
DTensor MultiDot(const std::vector<DTensor>& matrices);
/// Shape: a [.., n], b [.., m], weight [o, n, m], bias [o] or none -> [.., o].
DTensor Bilinear(const DTensor& a, const DTensor& b, const DTensor& weight,
                 const DTensor& bias = {});

// beta * x + alpha * product, where x broadcasts; with beta == 0 x is not read.
DTensor AddMm(const DTensor& x, const DTensor& a, const DTensor& b, double beta = 1,
              double alpha = 1);
DTensor AddMv(const DTensor& x, const DTensor& matrix, const DTensor& vector, double beta = 1,
              double alpha = 1);
DTensor AddOuter(const DTensor& x, const DTensor& a, const DTensor& b, double beta = 1,
                 double alpha = 1);
/// Shape: x [m, n], a [b, m, k], b [b, k, n] -> [m, n], summed over the batch.
DTensor AddBmm(const DTensor& x, const DTensor& a, const DTensor& b, double beta = 1,
               double alpha = 1);
/// Shape: x [b, m, n], a [b, m, k], b [b, k, n] -> [b, m, n].
DTensor BatchAddBmm(const DTensor& x, const DTensor& a, const DTensor& b, double beta = 1,
                    double alpha = 1);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_PRODUCTS_H_
