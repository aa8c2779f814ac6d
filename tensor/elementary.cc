// SPDX-License-Identifier: Apache-2.0
#include "shardmesh/tensor/elementary.h"

#include "shardmesh/tensor/cpu/log_cpu.h"
#include "shardmesh/tensor/cpu/math_cpu.h"
#include "shardmesh/tensor/cpu/trigonometry_cpu.h"

namespace shardmesh::elementary {

double Exp(double x) { return cpu::Exp(x); }
double Log(double x) { return cpu::Log(x); }
double Sin(double x) { return cpu::Sin(x); }
double Cos(double x) { return cpu::Cos(x); }
double Power(double base, double exponent) { return Exp(exponent * Log(base)); }

}  // namespace shardmesh::elementary
