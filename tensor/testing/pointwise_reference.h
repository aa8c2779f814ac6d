// SPDX-License-Identifier: Apache-2.0
//
// Pointwise ops by their definition, in f64, and how close a dtype comes.
#ifndef SHARDMESH_TENSOR_TESTING_POINTWISE_REFERENCE_H_
#define SHARDMESH_TENSOR_TESTING_POINTWISE_REFERENCE_H_

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "shardmesh/tensor/kernel_table.h"
#include "shardmesh/tensor/tensor.h"

namespace shardmesh::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline const double kNan = std::nan("");

inline constexpr DType kFloating[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16};
inline constexpr DType kAll[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kF16,
                                 DType::kI32, DType::kI64, DType::kBool};

inline constexpr ElementwiseOp kUnaryOps[] = {
    ElementwiseOp::kNeg,        ElementwiseOp::kAbs,  ElementwiseOp::kExp,
    ElementwiseOp::kLog,        ElementwiseOp::kSqrt, ElementwiseOp::kRsqrt,
    ElementwiseOp::kReciprocal, ElementwiseOp::kTanh, ElementwiseOp::kSigmoid,
    ElementwiseOp::kSilu,       ElementwiseOp::kRelu, ElementwiseOp::kSquare,
    ElementwiseOp::kSin,        ElementwiseOp::kCos};
inline constexpr BinaryOp kBinaryOps[] = {BinaryOp::kAdd,  BinaryOp::kSub,     BinaryOp::kMul,
                                          BinaryOp::kDiv,  BinaryOp::kMaximum, BinaryOp::kMinimum,
                                          BinaryOp::kRSub, BinaryOp::kRDiv};
inline constexpr CompareOp kCompareOps[] = {CompareOp::kEqual,   CompareOp::kNotEqual,
                                            CompareOp::kLess,    CompareOp::kLessEqual,
                                            CompareOp::kGreater, CompareOp::kGreaterEqual};

double Reference(ElementwiseOp op, double x);
double Reference(BinaryOp op, double a, double b);
bool Reference(CompareOp op, double a, double b);

/// Of one operand; what the row does not read need not be there.
Tensor UnaryBackward(ExecutionContext& context, ElementwiseOp op, const Tensor& grad,
                     const Tensor& x, const Tensor& y);
Tensor SiluMul(ExecutionContext& context, const Tensor& gate, const Tensor& up);
std::pair<Tensor, Tensor> SiluMulBackward(ExecutionContext& context, const Tensor& grad,
                                          const Tensor& gate, const Tensor& up);

/// Relative error of one op in `dtype`.
double Tolerance(DType dtype);
/// A test failure where an element differs by more; NaN and infinities must be where they belong.
void ExpectClose(const Tensor& actual, const std::vector<double>& expected,
                 const std::string& what);

/// The message of the Error that `fn` throws, or "no error".
std::string ErrorOf(const std::function<void()>& fn);

/// x with the dims in memory in several orders, with and without gaps.
std::vector<Tensor> Layouts(ExecutionContext& context, const Tensor& x);

}  // namespace shardmesh::testing

#endif  // SHARDMESH_TENSOR_TESTING_POINTWISE_REFERENCE_H_
