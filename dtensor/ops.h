// SPDX-License-Identifier: Apache-2.0
//
// Ops on distributed tensors. Each has one sharding rule (placement/rule.h) beside its
// implementation in ops_*.cc; where the operands' layouts do not fit, the cheapest move is
// inserted. Differentiable unless stated otherwise.
//
//   DTensor y = Linear(x, w);   // x [S(0), R], w [R, S(0)] -> y [S(0), S(1)], no communication
//
// Collective: all ranks of the mesh must call with the same global arguments.
// Errors: throws Error(kInvalidArgument) naming the op, shapes, dtypes and layouts; alike on all
// ranks.
#ifndef SHARDMESH_DTENSOR_OPS_H_
#define SHARDMESH_DTENSOR_OPS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "shardmesh/dtensor/dtensor.h"
#include "shardmesh/dtensor/ops/activations.h"
#include "shardmesh/dtensor/ops/indexing.h"
#include "shardmesh/dtensor/ops/losses.h"
#include "shardmesh/dtensor/ops/order.h"
#include "shardmesh/dtensor/ops/products.h"
#include "shardmesh/dtensor/ops/reductions.h"
#include "shardmesh/dtensor/ops/shape.h"
#include "shardmesh/tensor/kernel_table.h"

namespace shardmesh {

// ---- elementwise rows (tensor/elementwise_ops.inc) ----------------------------------------------
// Neg, Exp, Gelu, Atan2, Lerp and some ninety more, one row each there: what they compute, their
// dtypes and whether a Partial passes through. Operands broadcast. An integer divided by 0 is an
// Error(kInvalidArgument) on the rank that has it, which ends the others.
#define SHARDMESH_UNARY(Function, ...) DTensor Function(const DTensor& x);
#define SHARDMESH_BINARY(Function, ...) DTensor Function(const DTensor& a, const DTensor& b);
#define SHARDMESH_TERNARY(Function, ...) \
  DTensor Function(const DTensor& a, const DTensor& b, const DTensor& c);
#include "shardmesh/tensor/elementwise_ops.inc"

/// To so many decimals, halves to even; a negative number rounds to tens, hundreds, ...
DTensor Round(const DTensor& x, int decimals);
/// Default: the largest and the lowest finite number of the dtype.
DTensor NanToNum(const DTensor& x, double nan = 0, std::optional<double> infinity = std::nullopt,
                 std::optional<double> minus_infinity = std::nullopt);
/// low <= x <= high; `high` where low > high.
DTensor Clamp(const DTensor& x, double low, double high);
DTensor Pow(const DTensor& x, double exponent);
/// log(x / (1 - x)), of an x that is kept `eps` away from 0 and 1 if given.
DTensor Logit(const DTensor& x, std::optional<double> eps = std::nullopt);
DTensor LeakyRelu(const DTensor& x, double slope = 0.01);
DTensor Elu(const DTensor& x, double alpha = 1);
DTensor Celu(const DTensor& x, double alpha = 1);
DTensor Selu(const DTensor& x);
DTensor HardTanh(const DTensor& x, double low = -1, double high = 1);
DTensor HardShrink(const DTensor& x, double lambda = 0.5);
DTensor SoftShrink(const DTensor& x, double lambda = 0.5);
/// log(1 + e^(beta x)) / beta; x where beta x > threshold.
DTensor Softplus(const DTensor& x, double beta = 1, double threshold = 20);
/// x above `threshold`, else `value`.
DTensor Threshold(const DTensor& x, double threshold, double value);
/// a + weight (b - a). P, P -> P.
DTensor Lerp(const DTensor& a, const DTensor& b, double weight);
/// |a - b| <= absolute + relative |b|. Bool result.
DTensor IsClose(const DTensor& a, const DTensor& b, double relative = 1e-5, double absolute = 1e-8,
                bool equal_nan = false);
/// a + value b c, a + value b / c.
DTensor AddCMul(const DTensor& a, const DTensor& b, const DTensor& c, double value = 1);
DTensor AddCDiv(const DTensor& a, const DTensor& b, const DTensor& c, double value = 1);
// Losses by element; the rows say which.
DTensor SmoothL1Error(const DTensor& x, const DTensor& target, double beta = 1);
DTensor HuberError(const DTensor& x, const DTensor& target, double delta = 1);
DTensor HingeEmbeddingError(const DTensor& x, const DTensor& target, double margin = 1);
DTensor KlDivError(const DTensor& x, const DTensor& target, bool log_target = false);
DTensor PoissonNllError(const DTensor& x, const DTensor& target, bool log_input = true,
                        bool full = false, double eps = 1e-8);
DTensor MarginRankingError(const DTensor& a, const DTensor& b, const DTensor& target,
                           double margin = 0);
DTensor GaussianNllError(const DTensor& x, const DTensor& target, const DTensor& variance,
                         bool full = false, double eps = 1e-6);

// ---- pointwise (ops/pointwise.cc) ---------------------------------------------------------------
// Rule "elementwise with broadcast" (NumPy's); shards stay where the operands agree. Operands have
// one dtype, which is the result's; numbers take the tensor's.
DTensor Add(const DTensor& a, const DTensor& b);  // P + P -> P.
DTensor Sub(const DTensor& a, const DTensor& b);  // P - P -> P.
// A Partial passes through Mul, Div, MatMul and Linear: one reduction of the result instead of one
// of each operand. The price: where the other operand is inf or nan, or 0 as a divisor, summands of
// either sign give nan where the reduced value would give inf. Redistribute first where that can
// be. A number is looked at: with one that is not finite, or a divisor of 0, the Partial is reduced
// first.
DTensor Mul(const DTensor& a, const DTensor& b);      // P * R -> P.
DTensor Div(const DTensor& a, const DTensor& b);      // P / R -> P.
DTensor Maximum(const DTensor& a, const DTensor& b);  // Of equal elements each gets half.
DTensor Minimum(const DTensor& a, const DTensor& b);  // The same.
DTensor Add(const DTensor& a, double b);              // Not on a Partial: it is reduced first.
DTensor Sub(const DTensor& a, double b);
DTensor Mul(const DTensor& a, double b);
DTensor Div(const DTensor& a, double b);
DTensor Sub(double a, const DTensor& b);
DTensor Div(double a, const DTensor& b);  // Floating dtypes; rounded once.
/// At a == b the gradient is 0, as that of Relu.
DTensor Maximum(const DTensor& a, double b);
DTensor Minimum(const DTensor& a, double b);
inline DTensor operator+(const DTensor& a, const DTensor& b) { return Add(a, b); }
inline DTensor operator-(const DTensor& a, const DTensor& b) { return Sub(a, b); }
inline DTensor operator*(const DTensor& a, const DTensor& b) { return Mul(a, b); }
inline DTensor operator/(const DTensor& a, const DTensor& b) { return Div(a, b); }
inline DTensor operator+(const DTensor& a, double b) { return Add(a, b); }
inline DTensor operator-(const DTensor& a, double b) { return Sub(a, b); }
inline DTensor operator*(const DTensor& a, double b) { return Mul(a, b); }
inline DTensor operator/(const DTensor& a, double b) { return Div(a, b); }
inline DTensor operator+(double a, const DTensor& b) { return Add(b, a); }
inline DTensor operator-(double a, const DTensor& b) { return Sub(a, b); }
inline DTensor operator*(double a, const DTensor& b) { return Mul(b, a); }
inline DTensor operator/(double a, const DTensor& b) { return Div(a, b); }
inline DTensor operator-(const DTensor& x) { return Neg(x); }
/// Bool result, not differentiable.
DTensor Compare(CompareOp op, const DTensor& a, const DTensor& b);
DTensor Compare(CompareOp op, const DTensor& a, double b);
/// a where `condition` (bool) holds, b elsewhere; all three broadcast. No gradient to `condition`.
DTensor Where(const DTensor& condition, const DTensor& a, const DTensor& b);
/// Converts as ConvertTo (tensor/dtype.h) says. Differentiable between floating dtypes; the
/// gradient is cast back.
DTensor Cast(const DTensor& x, DType dtype);
/// Zeroes each element with probability p and scales the rest by 1 / (1 - p); the mask depends on
/// (seed, stream, global index) alone.
DTensor Dropout(const DTensor& x, double p, RandomKey key);

// ---- in place (ops/inplace.cc) ------------------------------------------------------------------
// They keep the first operand's layout and aliasing; the other one broadcasts to it and moves.
// A Partial is refused where the op is not linear.
// Errors: beside those above, Error(kFailedPrecondition) on a copy whose writing would be lost, and
// on a tensor that requires a gradient unless NoGrad is alive, as they are not recorded.
void AddInPlace(const DTensor& a, const DTensor& b);
void MulInPlace(const DTensor& a, double b);
void FillInPlace(const DTensor& a, double value);
void CopyInPlace(const DTensor& target, const DTensor& source);
// Every handle of the tensor sees the sum, as in PyTorch; unlike there, a tensor that needs a
// gradient is refused: write x = x + y.
inline const DTensor& operator+=(const DTensor& a, const DTensor& b) {
  AddInPlace(a, b);
  return a;
}
inline const DTensor& operator-=(const DTensor& a, const DTensor& b) {
  AddInPlace(a, Neg(b));
  return a;
}
inline const DTensor& operator*=(const DTensor& a, double b) {
  MulInPlace(a, b);
  return a;
}

// ---- reductions (ops/sum_extremum.cc) -----------------------------------------------------------
// Over `dims` (-1 is the last), or all if empty; `keepdim` leaves extents of 1. Where a reduced dim
// is sharded the result is Partial.
/// Sums of integers and bools are i64, also of a tensor without dims.
DTensor Sum(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
/// Sum divided by the global count; of nothing it is nan. For bf16 and f16 the sum is f32, and only
/// the mean is rounded.
DTensor Mean(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
/// Ties share the gradient equally. Throws on a globally empty dim.
DTensor Max(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);
DTensor Min(const DTensor& x, const std::vector<int>& dims = {}, bool keepdim = false);

// ---- matrix products (ops/matmul.cc) ------------------------------------------------------------
// Other products, and Einsum, are in ops/products.h.
/// Where k is sharded the result is Partial.
/// Shape: a [.., m, k], b [.., k, n] -> [.., m, n], where leading dims broadcast. A vector is a row
///        on the left and a column on the right, without the dim in the result.
DTensor MatMul(const DTensor& a, const DTensor& b);
/// x weight^T + bias, the bias added once also where k is sharded.
/// Shape: x [.., k], weight [n, k] (as PyTorch stores it), bias [n] or none -> [.., n].
DTensor Linear(const DTensor& x, const DTensor& weight, const DTensor& bias = {});

// ---- softmax and norms (ops/rows.cc) ------------------------------------------------------------
// The normalised dim is gathered where it is sharded.
DTensor Softmax(const DTensor& x, int dim);
DTensor LogSoftmax(const DTensor& x, int dim);
/// x / sqrt(mean(x^2) + eps) * weight over the last dim. Shape: x [.., h], weight [h] -> [.., h].
DTensor RmsNorm(const DTensor& x, const DTensor& weight, double eps);
/// (x - mean) / sqrt(variance + eps) * weight + bias over the last dim, with the biased variance.
/// Shape: x [.., h], weight [h], bias [h] or none -> [.., h].
DTensor LayerNorm(const DTensor& x, const DTensor& weight, const DTensor& bias, double eps);

// ---- lookups (ops/lookup.cc) --------------------------------------------------------------------
/// Rows of a table. Where its rows are sharded the result is Partial: a rank gives zeros for ids
/// outside its rows.
/// Shape:  ids [..] (i64 or i32), table [v, h] -> [.., h].
/// Errors: Error(kOutOfRange) naming the index and the range, before any local work.
DTensor Embedding(const DTensor& ids, const DTensor& table);

// ---- losses (ops/cross_entropy.cc) --------------------------------------------------------------
// Over all elements of the global tensor, however they are spread: a mean divides by the global
// count. More of them: dtensor/ops/losses.h.
/// -log softmax(logits)[target], over all targets that are not `ignore_index`. The class dim may be
/// sharded: three small all-reduces, the logits are never gathered. If no target is counted the
/// mean is nan and the gradient zero. For bf16 and f16 logits the loss is f32.
/// Shape:  logits [.., v], targets [..] (i64 or i32) -> [], or targets' (kNone).
/// Errors: Error(kOutOfRange) naming a target that is no class.
DTensor CrossEntropy(const DTensor& logits, const DTensor& targets, int64_t ignore_index = -100,
                     LossReduction reduction = LossReduction::kMean);
/// (x - target)^2, of one shape -> [], or the same shape (kNone). Computed in f32 for bf16 and f16,
/// and rounded once.
DTensor MseLoss(const DTensor& x, const DTensor& target,
                LossReduction reduction = LossReduction::kMean);

// ---- attention (ops/attention.cc) ---------------------------------------------------------------
/// Rotary position embedding: the pairs (i, i + d/2) of each head rotated by an angle per position,
/// whose cosines and sines are plain tensors, the same on every rank and no part of the graph.
/// Shape: x [batch, heads, seq, d], cos and sin [seq, d/2] -> x's.
DTensor Rotary(const DTensor& x, const Tensor& cos, const Tensor& sin);
/// softmax(q k^T * scale) v, where query head i reads key head i / (h / kv). Memory is linear in
/// the lengths. Batch and heads may be sharded. `causal`: position i sees the keys up to
/// i + (sk - sq); one that sees none gives 0. Default scale: 1 / sqrt(d).
/// Shape: q [b, h, sq, d], k and v [b, kv, sk, d], kv dividing h -> q's.
DTensor Attention(const DTensor& q, const DTensor& k, const DTensor& v, bool causal,
                  std::optional<double> scale = std::nullopt);

// ---- shape (ops/shape.cc) -----------------------------------------------------------------------
// More of them in ops/shape.h.
// The result aliases x where no data moves; where data moves, in-place ops on it are refused.
/// As many elements in row-major order; one extent may be -1.
DTensor Reshape(const DTensor& x, const Dims& shape);
DTensor Transpose(const DTensor& x, int dim0, int dim1);
/// Dims of extent 1 repeated, new leading dims added. A result that repeats cannot be written.
DTensor Expand(const DTensor& x, const Dims& shape);
/// [start, start + length) of `dim`, which is gathered if it is sharded.
DTensor Slice(const DTensor& x, int dim, int64_t start, int64_t length);
/// Parts that agree in every dim but `dim`, one after the other.
DTensor Concat(const std::vector<DTensor>& parts, int dim);
/// The slices of these extents, which add up to that of `dim`.
std::vector<DTensor> Split(const DTensor& x, const std::vector<int64_t>& sizes, int dim);

}  // namespace shardmesh

#endif  // SHARDMESH_DTENSOR_OPS_H_
