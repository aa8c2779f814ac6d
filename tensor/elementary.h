// SPDX-License-Identifier: Apache-2.0
//
// Functions of one double, for numbers that programs compute beside kernels (schedules, tables).
// They give the same bits on every processor; the C library's do not, as it picks its code by what
// the processor has.
//
//   const double cosine = elementary::Cos(std::numbers::pi * progress);
#ifndef SHARDMESH_TENSOR_ELEMENTARY_H_
#define SHARDMESH_TENSOR_ELEMENTARY_H_

namespace shardmesh::elementary {

/// Within one unit in the last place, with the special values of <cmath>.
double Exp(double x);
double Log(double x);
double Sin(double x);
double Cos(double x);

/// exp(exponent log(base)), for base > 0. Relative error: 2^-52 |exponent log(base)|.
double Power(double base, double exponent);

}  // namespace shardmesh::elementary

#endif  // SHARDMESH_TENSOR_ELEMENTARY_H_
