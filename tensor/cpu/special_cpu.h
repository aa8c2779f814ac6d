// SPDX-License-Identifier: Apache-2.0
//
// Special functions that libm does not have, in double.
#ifndef SHARDMESH_TENSOR_CPU_SPECIAL_CPU_H_
#define SHARDMESH_TENSOR_CPU_SPECIAL_CPU_H_

namespace shardmesh::cpu::special {

/// log |gamma(x)|; unlike std::lgamma it writes no global variable.
double Lgamma(double x);
/// The first and second derivative of Lgamma.
double Digamma(double x);
double Trigamma(double x);
/// exp(x^2) erfc(x).
double Erfcx(double x);
double Erfinv(double x);
/// Modified Bessel functions of the first kind, of order 0 and 1.
double BesselI0(double x);
double BesselI1(double x);
/// The logarithm of the normal distribution function.
double LogNormalCdf(double x);
/// sin(pi x) / (pi x).
double Sinc(double x);
double SincDerivative(double x);

}  // namespace shardmesh::cpu::special

#endif  // SHARDMESH_TENSOR_CPU_SPECIAL_CPU_H_
